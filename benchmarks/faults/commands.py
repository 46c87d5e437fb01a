"""The commands that the campaign of runs disturbs, each small, and the preparation of a warm process for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.forked import command

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards")


class InlineEngine:
    """Executes each job in this process, so that the operations of a search have one order and one number each."""

    parallel = 1

    def __init__(self, parallel: int = 1) -> None:
        self.found: list[Any] = []

    @property
    def running(self) -> int:
        return len(self.found)

    def start(self, job: Any, folder: Path, work: Any) -> None:
        from gasam.lab.engines.execution import message_of

        self.found.append((job, ("start", None)))
        try:
            value = work(job, folder, lambda update: None)
            self.found.append((job, ("done", value)))
        except Exception as error:
            self.found.append((job, ("failed", message_of(error))))

    def events(self) -> Sequence[Any]:
        found, self.found = self.found, []
        return found

    def stop(self) -> None:
        self.found.clear()


def commands(folder: Path) -> dict[str, Callable[[Path], Callable[[], None]]]:
    """For each name a function that takes the folder of the output and gives the command.

    Together they have all that a checkpoint holds: the state of an optimizer and of a schedule, best weights, averaged
    weights, gradient norms, the state that a language model carries on, and the trials of a search.
    """
    text = folder / "text.txt"
    text.write_text("".join(f"{' '.join(WORDS[(7 * i + 5 * j) % 12] for j in range(9))}\n" for i in range(60)))
    digits = ("train", "digits", "--size", "tiny", "--cpu", "--set", "rows=80")
    schedule = ("--method", "ga-sam", "--walk-progress", "0.2")
    walking = ("--method", "ga-sam", "--walk-start", 1, "--walk-warmup", 4)
    tune = ("tune", "digits", "--size", "tiny", "--cpu", "--set", "rows=80", "--trials", 2, "--json")
    lines = ("train", "lm", "--train", text, "--size", "tiny", "--cpu", "--epochs", 2)
    given: dict[str, tuple[object, ...]] = {
        "digits": (*digits, *schedule, "--epochs", 3),
        "average": (*digits, *walking, "--epochs", 3, "--set", "average=2", "--gradient-norms"),
        "language": (*lines, *schedule),
        "search": tune,
    }
    return {name: lambda out, words=words: command(*words, "--out", out) for name, words in given.items()}


def warm(folder: Path, names: Sequence[str]) -> None:
    """Import everything and run each command once in this process, so that forked ones are fast.

    Not patched is what the campaign tests. The commit, the versions and the options of the command line are read once,
    because that takes a third of the time, and a search draws no picture.
    """
    os.environ["GASAM_CACHE"] = str(folder / "cache")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    from typer.main import get_command

    from gasam.lab import record as records
    from gasam.lab.cli import commands as command_line
    from gasam.lab.cli import sessions
    from gasam.lab.engines import choice

    torch.set_num_threads(1)
    code = records.code()
    records.code = lambda: dict(code)
    versions = records.versions()
    records.versions = lambda: dict(versions)
    command_line.app = get_command(command_line.app)  # type: ignore[assignment]
    sessions.pictures.save_all = lambda figures, place: []
    sessions.tuning_figures = lambda findings: {}
    choice.LocalEngine = sessions.LocalEngine = InlineEngine  # type: ignore[assignment,misc]
    from benchmarks.faults.forked import quiet

    for name, make in commands(folder).items():
        if name in names:
            quiet(make(folder / "warm" / name))
