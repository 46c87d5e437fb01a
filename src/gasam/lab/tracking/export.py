"""The export of finished records to a tracker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from accelerate import PartialState

from gasam.lab.errors import InputError
from gasam.lab.records import RunRecord
from gasam.lab.tracking.session import Session


def export(tracker: str, runs: Iterable[tuple[str, RunRecord]], folder: Path, *, cpu: bool = True) -> list[str]:
    """Send records to a tracker, and return the names of those that it did not have yet.

    Args:
        tracker: The name of the tracker.
        runs: The names of the runs with their records.
        folder: The folder of the tracker.
        cpu: The choice of the device in this process, which Accelerate fixes here if nothing has fixed it before.

    Raises:
        InputError: If the tracker fails. Calling it again sends the rest.
    """
    PartialState(cpu=cpu)  # the log messages of Accelerate's trackers need it
    sent = []
    for name, record in runs:
        with Session(tracker, name, folder, _refuse) as session:
            if session.finish(record):
                sent.append(name)
    return sent


def _refuse(fault: str) -> NoReturn:
    raise InputError(f"{fault}: run the same command to send the rest")
