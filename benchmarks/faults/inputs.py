"""Broken inputs and bad luck: every command must tell it in one sentence, and write nothing outside its folder.

A command that is given a broken input must end with code 2, or with 1 if a run failed, and must not print a traceback.
A random change may leave an input valid: then the command may end with 0.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import broken, kept
from benchmarks.faults.broken import OUT, Case
from benchmarks.faults.commands import commands, warm
from benchmarks.faults.forked import Ended, command, forked, in_parallel

SIZES = {"full": 1.0, "sample": 0.03}
SOURCES = ("inputs", "broken", "commands", "forked")
LUCK = "bad luck"
TRAINING = ("train", "compare", "tune")


def cases(folder: Path, seed: int, share: float) -> dict[str, Callable[[], Iterator[Case]]]:
    """The generators of broken inputs, each with a seed of its own; of `share` below 1 they give fewer."""

    def some(count: int) -> int:
        return max(4, round(count * share))

    def chosen(name: str) -> random.Random:
        return random.Random(f"{seed} {name}")

    return {
        "data": lambda: broken.data_files(chosen("data"), some(130)),
        "runs": lambda: broken.run_files(folder, chosen("runs"), some(160)),
        "checkpoints": lambda: broken.checkpoints(folder, chosen("checkpoints"), some(40)),
        "journals": lambda: broken.journals(folder, chosen("journals"), some(70)),
        "tasks": lambda: broken.task_files(chosen("tasks"), some(40)),
        "arguments": lambda: broken.arguments(chosen("arguments"), some(120)),
    }


def run_case(
    case: Case, place: Path, made: dict[str, Callable[[Path], Callable[[], None]]]
) -> tuple[Ended, str | None]:
    """Run one case in an empty folder; give how it ended, and what is wrong with that."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    case.write(place)
    before = _files(place)
    words = case.arguments
    act = made[str(words[0])](Path(OUT)) if len(words) == 1 else command(*words, *_quick(words))

    def there() -> None:
        os.chdir(place)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        act()

    ended = forked(there, place.with_suffix(".log"))
    return ended, fault_of(case, ended, before, _files(place))


def _quick(words: tuple[object, ...]) -> list[str]:
    """Options that make a training command short, and its output known, unless they are given."""
    if words[0] not in TRAINING:
        return []
    wanted = {"--out": OUT} if str(words[1]).endswith(".py") else {"--out": OUT, "--size": "tiny", "--epochs": "1"}
    return ["--cpu", *(word for option in wanted if option not in words for word in (option, wanted[option]))]


def fault_of(case: Case, ended: Ended, before: dict[str, bytes], after: dict[str, bytes]) -> str | None:
    """Say what is wrong with the end of a command, if anything is."""
    lines = ended.text.strip().splitlines()
    if "Traceback" in ended.text or "most recent call last" in ended.text:
        return f"a traceback: {lines[-1]}"
    allowed = (0, 1, 2) if case.may_be_valid else (1, 2)
    if ended.code not in allowed:
        return f"code {ended.code}: {lines[-1:]}"
    told = [line for line in lines if line.startswith("gasam: ")]
    if ended.code == 2 and len(told) != 1 and "Usage:" not in ended.text:
        return f"{len(told)} sentences: {lines[-2:]}"
    if ended.code == 1 and not any("failed" in line for line in lines):
        return f"no sentence: {lines[-2:]}"
    wrong = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    outside = [name for name in wrong if not _is_output(name, case)]
    return f"written outside: {outside}" if outside else None


def _is_output(name: str, case: Case) -> bool:
    own = ("runs/", f"{OUT}/") if case.arguments[0] in ("export", "reproduce", "report", "results") else (f"{OUT}/",)
    if "--out" in case.arguments or "--html" in case.arguments:
        own = (*own, "".join(str(case.arguments[-1])))
    return name.startswith(own)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path | None]:
    """A disk of this size; None if this user may not mount one."""
    place = folder / "disk"
    place.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    if os.name == "nt" or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def bad_luck(folder: Path, share: float) -> Iterator[tuple[str, str, Ended, str | None]]:
    """Full disks, read-only disks, and files where folders must be."""
    log = folder / "luck.log"
    file = folder / "a file"
    file.write_text("")
    train = ("train", "digits", "--size", "tiny", "--cpu", "--set", "rows=80")
    tune = ("tune", "digits", "--size", "tiny", "--cpu", "--set", "rows=80", "--trials", 1)
    predict = ("predict", broken.stored_files(folder, "language")["record"], folder / "text.txt", "--cpu")
    report = ("report", folder / "warm" / "digits")
    for name, words in {
        "--out is a file": (*train, "--out", file),
        "--out is below a file": (*train, "--out", file / "runs"),
        "tune --out is a file": (*tune, "--out", file),
        "compare --out is a file": ("compare", "digits", "--methods", "baseline", "--size", "tiny", "--out", file),
        "predict --out is a folder": (*predict, "--out", folder),
        "predict --out is below a file": (*predict, "--out", file / "a.txt"),
        "report --html is a folder": (*report, "--html", folder / "warm"),
        "report --html is below a file": (*report, "--html", file / "page.html"),
        "/proc as --out": (*train, "--out", "/proc/gasam"),
    }.items():
        ended = forked(command(*words), log)
        yield LUCK, name, ended, _told(ended, {2})
    for name, cache in {"GASAM_CACHE is a file": file, "GASAM_CACHE is below a file": file / "cache"}.items():
        ended = forked(_with_cache(cache, command(*train, "--out", folder / "luck")), log)
        yield LUCK, name, ended, _told(ended, {2})
    sizes = (4, 16, 64, 128, 200, 256, 300, 400, 500)
    for kilobytes in sizes if share == 1 else sizes[3:5]:
        with small_disk(folder, kilobytes) as disk:
            if disk is not None:
                for name, words in {"train": train, "tune": tune}.items():
                    ended = forked(command(*words, "--out", disk / name), log)
                    yield LUCK, f"{name} on a disk of {kilobytes} KB", ended, _told(ended, {0, 1, 2})
                    shutil.rmtree(disk / name, ignore_errors=True)
                again = _with_cache(disk / "cache", command(*train, "--out", folder / "luck2"))
                ended = forked(again, log)
                yield LUCK, f"cache on a disk of {kilobytes} KB", ended, _told(ended, {0, 2})
    with small_disk(folder, 64) as disk:
        if disk is not None and not subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode:
            for name, words in {"train": train, "tune": tune}.items():
                ended = forked(command(*words, "--out", disk / "runs"), log)
                yield LUCK, f"{name} on a read-only disk", ended, _told(ended, {2})
            ended = forked(_with_cache(disk / "cache", command(*train, "--out", folder / "luck3")), log)
            yield LUCK, "cache on a read-only disk", ended, _told(ended, {0, 2})


def _with_cache(cache: Path, act: Callable[[], None]) -> Callable[[], None]:
    def changed() -> None:
        os.environ["GASAM_CACHE"] = str(cache)
        act()

    return changed


def _told(ended: Ended, codes: set[int]) -> str | None:
    lines = ended.text.strip().splitlines()
    if "Traceback" in ended.text or ended.code not in codes:
        return f"code {ended.code}: {lines[-1:]}"
    if ended.code == 2 and sum(line.startswith("gasam: ") for line in lines) != 1:
        return f"no single sentence: {lines[-3:]}"
    return None


def campaign(seed: int = 0, size: str = "full", jobs: int = 1) -> dict[str, Any]:
    """Give every broken input to its command, and give the figures. The finished kinds of a full campaign are kept.

    Args:
        seed: The seed of the broken inputs.
        size: "full", or "sample" for some of each kind.
        jobs: Number of kinds of inputs that are tried at a time.
    """
    with tempfile.TemporaryDirectory(prefix="gasam-inputs-") as place:
        folder = Path(place)
        made = commands(folder)
        warm(folder, ("digits", "language", "search"))

        def of_cases(name: str, generate: Callable[[], Iterator[Case]]) -> Iterator[tuple[str, str, Ended, str | None]]:
            for case in generate():
                ended, fault = run_case(case, folder / name, made)
                yield case.kind, f"{case.name} ({' '.join(map(str, case.arguments))})", ended, fault

        kinds = cases(folder, seed, SIZES[size])
        parts = {name: partial(of_cases, name, generate) for name, generate in kinds.items()}
        parts["luck"] = lambda: bad_luck(folder, SIZES[size])
        finished = kept.FOLDER / f"inputs-{kept.source_hash(kept.ALL, SOURCES)}-{seed}" if size == "full" else folder
        figures = in_parallel({name: partial(_figures, part, place) for name, part in parts.items()}, finished, jobs)
    counts, codes = (
        sum((Counter[str](each[name]) for each in figures.values()), Counter()) for name in ("counts", "codes")
    )
    return {
        "seed": seed,
        "faults": counts.total(),
        "kinds": dict(counts),
        "exit codes": dict(sorted(codes.items())),
        "tracebacks": sum(each["tracebacks"] for each in figures.values()),
        "lost": [fault for each in figures.values() for fault in each["faults"]],
        "seconds": round(sum(each["seconds"] for each in figures.values())),
    }


def _figures(part: Callable[[], Iterator[tuple[str, str, Ended, str | None]]], place: str) -> dict[str, Any]:
    counts, codes = Counter[str](), Counter[str]()
    faults, tracebacks, begun = list[str](), 0, time.monotonic()
    for kind, name, ended, fault in part():
        counts[kind] += 1
        codes[str(ended.code)] += 1
        tracebacks += "Traceback" in ended.text
        if fault is not None:
            faults.append(f"{kind}, {name}: {fault}".replace(place, "PLACE"))
            print(faults[-1], file=sys.stderr, flush=True)
    seconds = time.monotonic() - begun
    return {"counts": counts, "codes": codes, "faults": faults, "tracebacks": tracebacks, "seconds": seconds}
