"""Jobs: the runs to execute, their events, and the preparation of their data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gasam.lab import record as records
from gasam.lab.families.encoded import Encoded
from gasam.lab.storage import Checkpoints
from gasam.lab.training.loop import OnUpdate
from gasam.lab.training.plan import Plan


@dataclass
class Job:
    """A run to execute.

    Args:
        plan: What to train.
        name: The name of the run and its record.
        notes: Notes about the data.
        record: The result; None before the run has finished, and if it failed.
        error: The first line of the error message, if it failed.
        log: The file with the whole error message, if it failed.
        detail: Text to add to the run's label in the display.
        data: The encoded data, which engines without access to the source files send along; it may lack the test split.
        exclusive: Whether only one process at a time may work on a job of this name in a folder.
    """

    plan: Plan
    name: str
    notes: tuple[str, ...] = ()
    record: Any = None
    error: str | None = None
    log: Path | None = None
    detail: str = ""
    data: Encoded | None = field(default=None, repr=False)
    exclusive: bool = True


Event = tuple[str, Any]
OnEvent = Callable[[Job, Event], None]
"""Called for each job with ("start", None), ("update", an Update), ("moved", a sentence), ("done", its record),
("failed", message) or, in a search, ("stopped", a sentence)."""
Work = Callable[[Any, Path, OnUpdate], Any]
"""The function that a process calls with the job, the folder and a callback for updates; it must be picklable."""


def prepare(plans: Iterable[Plan], folder: Path) -> list[Job]:
    """Make the jobs of plans. Their data is encoded here, once, before any process starts. Known records are read.

    The checkpoints of a run that was killed just after it wrote its record are deleted.
    """
    jobs: dict[str, Job] = {}
    known: dict[Hashable, Encoded] = {}
    for plan in plans:
        if plan.data_key not in known:
            known[plan.data_key] = plan.data()
        data = known[plan.data_key]
        name = plan.name(data.hash)
        file = folder / f"{name}.json"
        record = records.read(file) if file.exists() else None
        if record is not None:
            Checkpoints(folder / name).clean()
        jobs[name] = Job(plan, name, data.notes, record, data=data)
    return list(jobs.values())
