"""Faults in training runs and searches: after each, the same command must end with the same bits.

Every disk operation of each command is numbered. The process is ended at each of them, its disk fails at each of them,
and it is interrupted at each training step; then it is killed and interrupted at random times. Afterwards the same
command is run without faults. Its files must have the same SHA-256 as those of an undisturbed run, times aside.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import kept
from benchmarks.faults.commands import commands, warm
from benchmarks.faults.disk import FAULTS, KILLED, Disk
from benchmarks.faults.forked import Ended, digests, finished, forked, in_parallel, started
from benchmarks.faults.planted_in_runs import BUGS, schedule_state_lost

# Each command, and of how many of its disk operations one has a fault: 1 means all of them.
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "commands": {"digits": 1, "search": 8, "average": 8, "language": 6},
        "kill -9": 200,
        "storm of signals": 100,
        "bugs": None,
    },
    "sample": {"commands": {"digits": 13}, "kill -9": 3, "storm of signals": 0, "bugs": 4},
}
PLANTED = "planted, "
WALKING = "average"
"""The command whose schedule changes in every step, so that its state matters in a run of a few steps."""
SOURCES = ("runs", "disk", "commands", "forked", "planted_in_runs")
Act = Callable[[], None]


@dataclass
class Command:
    """One command, what an undisturbed run of it leaves, its disk operations, its training steps and its time."""

    name: str
    make: Callable[[Path], Act]
    folder: Path
    expected: dict[str, str] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    plant: Act = lambda: None

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def measure(self) -> None:
        """Run it undisturbed, twice, and count."""
        counts = self.folder / "counts.json"

        def act() -> None:
            disk, steps = Disk(self.out), _signalled_at(0)
            disk.install()
            try:
                self.make(self.out)()
            finally:
                counts.write_text(json.dumps([disk.operations, len(steps)]))

        self.folder.mkdir(parents=True, exist_ok=True)
        for number in range(2):
            shutil.rmtree(self.out, ignore_errors=True)
            begun = time.monotonic()
            ended = forked(act, self.log)
            self.seconds = time.monotonic() - begun
            if ended.code:
                raise RuntimeError(f"{self.name} fails without a fault:\n{ended.text}")
            found = digests(self.out)
            if number and found != self.expected:
                raise RuntimeError(f"{self.name} does not repeat itself without a fault")
            self.expected = found
        self.operations, self.steps = json.loads(counts.read_text())

    def faults(self, seed: int, every: int, chosen: random.Random) -> list[tuple[str, int, Act]]:
        """Every fault that has a number, or one of `every`: its kind, its number, and what brings it about."""
        found: list[tuple[str, int, Act]] = []
        for kind in FAULTS:
            numbers = [n for n, each in enumerate(self.operations, 1) if kind != "torn" or each == "write"]
            some = numbers[chosen.randrange(every) :: every]
            found += [(kind, number, partial(self.fail_disk, kind, number, seed)) for number in some]
        steps = range(1 + chosen.randrange(every) % self.steps, self.steps + 1, every)
        found += [("signal at a step", step, partial(_signalled_at, step)) for step in steps]
        chosen.shuffle(found)  # a campaign that is stopped has tried some of all kinds
        return found

    def fail_disk(self, kind: str, number: int, seed: int) -> None:
        Disk(self.out, kind, number, seed + number).install()

    def by_kind(self, seed: int, every: int, chosen: random.Random) -> dict[str, list[tuple[str, int, Act]]]:
        faults = self.faults(seed, every, chosen)
        kinds = dict.fromkeys(kind for kind, _, _ in faults)
        return {kind: [each for each in faults if each[0] == kind] for kind in kinds}

    def disturbed(self, fault: Act) -> Ended:
        """Start in an empty folder, with a fault."""
        shutil.rmtree(self.out, ignore_errors=True)

        def act() -> None:
            self.plant()
            fault()
            self.make(self.out)()

        return forked(act, self.log)

    def lost(self) -> str | None:
        """Run the same command without a fault; say what is wrong with its end, if anything is."""

        def act() -> None:
            self.plant()
            self.make(self.out)()

        ended = forked(act, self.log)
        if ended.code:
            return f"the same command ends with code {ended.code}: {ended.text.strip().splitlines()[-1:]}"
        found = digests(self.out)
        wrong = sorted(name for name in {*found, *self.expected} if found.get(name) != self.expected.get(name))
        return f"other files: {', '.join(wrong)}" if wrong else None


def _signalled_at(number: int) -> list[int]:
    """Send SIGTERM to this process in the given training step; give the list to which each step is added."""
    from gasam.lab.training.loop import Training

    real, steps = Training.train_step, []

    def train_step(self: Any, chosen: Any) -> None:
        steps.append(1)
        if len(steps) == number:
            os.kill(os.getpid(), signal.SIGTERM)
        real(self, chosen)

    Training.train_step = train_step  # type: ignore[method-assign]
    return steps


def badly_ended(kind: str, ended: Ended) -> str | None:
    """Say what is wrong with how a disturbed command ended: it must not crash, and tell an error in one sentence."""
    allowed = {"kill": (KILLED,), "torn": (KILLED,), "power": (KILLED,), "kill -9": (0, -signal.SIGKILL)}
    errors = (0, 1, 2)
    signals = (0, 130, -signal.SIGTERM, -signal.SIGINT)
    codes = allowed.get(kind) or (errors if kind in FAULTS else signals)
    if ended.code not in codes:
        return f"ended with code {ended.code}: {ended.text.strip().splitlines()[-1:]}"
    if "Traceback" in ended.text:
        return "printed a traceback"
    last = ended.text.strip().splitlines()[-1:]
    if ended.code == 2 and not (last and last[0].startswith("gasam: ")):
        return f"did not end with a sentence: {last}"
    return None


class Figures:
    """Counts the faults and keeps what was lost."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lost: list[str] = []
        self.begun = time.monotonic()

    def add(self, command: str, kind: str, number: object, *faults: str | None) -> None:
        self.counts[kind] += 1
        self.lost += [f"{command}, {kind} {number}: {fault}" for fault in faults if fault is not None]
        if sum(self.counts.values()) % 50 == 0 or any(faults):
            done = f"{sum(self.counts.values())} faults, {len(self.lost)} lost, {time.monotonic() - self.begun:.0f} s"
            print(f"{command}: {done}{''.join(f'; {each}' for each in self.lost[-1:])}", file=sys.stderr, flush=True)


def numbered(command: Command, faults: list[tuple[str, int, Act]], figures: Figures) -> None:
    for kind, number, fault in faults:
        ended = command.disturbed(fault)
        figures.add(command.name, kind, number, badly_ended(kind, ended), command.lost())


def at_random_times(command: Command, figures: Figures, kind: str, count: int, chosen: random.Random) -> None:
    """Kill a command at a random time, or send it 1 to 6 signals, all at random times or, in turn, within 10 ms."""
    for number in range(count):
        shutil.rmtree(command.out, ignore_errors=True)
        process = started(command.make(command.out), command.log)
        sent = [signal.SIGKILL] if kind == "kill -9" else chosen.choices((signal.SIGTERM, signal.SIGINT), k=6)
        first, spread = (0.0, command.seconds) if number % 2 else (chosen.random() * command.seconds, 0.01)
        times = sorted(first + chosen.random() * spread for _ in sent[: 1 + number // 2 % 6])
        pauses = (b - a for a, b in itertools.pairwise([0.0, *times]))
        for pause, each in zip(pauses, sent, strict=False):
            time.sleep(pause)
            if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                os.kill(process, each)
        figures.add(command.name, kind, number, badly_ended(kind, finished(process, command.log)), command.lost())


def caught(command: Command, bug: Act, seed: int) -> dict[str, Any]:
    """Plant a bug; give the number of faults that were needed to catch it, None if all of them did not."""
    command.plant = bug
    chosen = random.Random(seed)
    order = command.by_kind(seed, 3, chosen).values()
    # One of each kind in turn, so that a bug which only one kind finds is found soon.
    mixed = [row[i] for i in range(max(map(len, order))) for row in order if i < len(row)]
    found: dict[str, Any] = {"bug": bug.__name__.replace("_", " "), "faults": None}
    for count, (kind, number, fault) in enumerate(mixed, 1):
        command.disturbed(fault)
        lost = command.lost()
        if lost is not None:
            found |= {"faults": count, "caught by": f"{kind} {number}", "sign": lost.replace(str(command.out), "OUT")}
            break
    command.plant = lambda: None
    return found


def parts(known: dict[str, Command], seed: int, options: dict[str, Any]) -> dict[str, Callable[[Figures], Any]]:
    """The parts of a campaign, which are independent of each other, by name."""
    chosen = {name: random.Random(f"{seed} {name}") for name in (*known, "kill -9", "storm of signals")}
    first = next(iter(known.values()))
    found: dict[str, Callable[[Figures], Any]] = {
        kind: lambda figures, kind=kind: at_random_times(first, figures, kind, options[kind], chosen[kind])
        for kind in ("kill -9", "storm of signals")
    }
    for bug in BUGS[: options["bugs"]]:
        command = known[WALKING] if bug is schedule_state_lost else first
        found[f"{PLANTED}{bug.__name__}"] = lambda figures, bug=bug, command=command: caught(command, bug, seed)
    for name, command in known.items():
        for kind, faults in command.by_kind(seed, options["commands"][name], chosen[name]).items():
            found[f"{name}, {kind}"] = partial(numbered, command, faults)
    return found


def campaign(seed: int = 0, size: str = "full", jobs: int = 1) -> dict[str, Any]:
    """Inject all faults and give the figures. The finished parts of a full campaign are kept, and not run again.

    Args:
        seed: The seed of the random times and choices.
        size: "full", or "sample" for half a minute.
        jobs: Number of parts of the campaign that run at a time.
    """
    options = SIZES[size]
    with tempfile.TemporaryDirectory(prefix="gasam-faults-") as place:
        folder = Path(place)
        warm(folder, tuple(options["commands"]))
        made = commands(folder)
        known = {name: Command(name, made[name], folder / name) for name in options["commands"]}
        for command in known.values():
            command.measure()
        wanted = {
            name: partial(_figures, name, part, known.values(), folder)
            for name, part in parts(known, seed, options).items()
        }
        finished = kept.FOLDER / f"runs-{kept.source_hash(kept.ALL, SOURCES)}-{seed}" if size == "full" else folder
        results = in_parallel(wanted, finished, jobs)
    planted = [each["value"] for name, each in results.items() if name.startswith(PLANTED)]
    return {
        "seed": seed,
        "faults": sum(sum(each["counts"].values()) for each in results.values()),
        "kinds": dict(sum((Counter(each["counts"]) for each in results.values()), Counter())),
        "commands": {
            name: {
                "operations": len(command.operations),
                "steps": command.steps,
                "every": options["commands"][name],
            }
            for name, command in known.items()
        },
        "lost": [lost for each in results.values() for lost in each["lost"]],
        "planted": {each["bug"]: each["faults"] for each in planted},
        "caught by": {each["bug"]: each.get("caught by") for each in planted},
        "seconds": round(sum(each["seconds"] for each in results.values())),
    }


def _figures(name: str, part: Callable[[Figures], Any], known: Iterable[Command], folder: Path) -> Any:
    """Do one part of the campaign in folders of its own."""
    for command in known:
        command.folder = folder / "parts" / name / command.name
        command.folder.mkdir(parents=True)
    figures = Figures()
    value = part(figures)
    seconds = time.monotonic() - figures.begun
    return {"counts": figures.counts, "lost": figures.lost, "value": value, "seconds": seconds}
