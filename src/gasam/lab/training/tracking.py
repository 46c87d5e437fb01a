"""Experiment trackers, through Accelerate: a run sends its configuration, its epochs and its final scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from gasam.lab.errors import InputError

RUN_NAMES = {"mlflow": "run_name", "swanlab": "experiment_name", "trackio": "name", "wandb": "name"}
"""The option that names a run, in trackers that have projects; the others use the name of the project."""


def check(name: str) -> None:
    known = sorted(map(str, LOGGER_TYPE_TO_CLASS))
    if name not in known:
        raise InputError(f"--track must be one of {', '.join(known)}, got {name!r}")
    if name not in map(str, get_available_trackers()):
        raise InputError(f"{name} is not installed: run `pip install {name.replace('_', '-')}`")


class Tracker:
    """Sends a run to a tracker, if one is named. If it fails, the run gets one note and continues without it."""

    def __init__(self, name: str | None, accelerator: Accelerator, note: Callable[[str], None]) -> None:
        self.name, self.accelerator, self.note = name, accelerator, note

    def begin(self, run: str, config: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> None:
        """Start, and send the epochs that a resumed run has already: earlier files may lack some of them."""
        options: dict[str, Any] = {RUN_NAMES[self.name]: run} if self.name in RUN_NAMES else {}
        project = "gasam" if options else run
        if self.name == "tensorboard":
            options["purge_step"] = 1  # hides what an earlier process wrote
        if self.name == "wandb":
            options |= {"id": run, "resume": "allow"}
        simple = bool | int | float | str
        values = {name: value if isinstance(value, simple) else json.dumps(value) for name, value in flat(config)}
        self._safely(self.accelerator.init_trackers, project, None if curve else values, {self.name: options})
        for row in curve:
            self.send(row, row["epoch"])

    def send(self, values: Mapping[str, Any], step: int) -> None:
        numbers = {name: value for name, value in flat(values) if isinstance(value, int | float) and name != "epoch"}
        self._safely(self.accelerator.log, numbers, step)

    def end(self) -> None:
        for tracker in self.accelerator.trackers:
            self._safely(tracker.finish)

    def _safely(self, action: Callable[..., Any], *arguments: Any) -> None:
        if self.name is None:
            return
        try:
            with redirect_stdout(sys.stderr):  # some trackers print, and the standard output may be JSON
                action(*arguments)
        except Exception as error:  # whatever a tracker raises
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.note(f"{self.name} failed ({reason}): training continues without it")
            self.name = None


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values with names such as `settings/batch`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
