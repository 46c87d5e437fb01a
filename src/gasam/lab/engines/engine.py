"""Jobs and the engines that execute them, each in a process of its own: this machine, or a Ray cluster (`ray.py`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gasam.lab import record as records
from gasam.lab.errors import InputError, RunFailedError
from gasam.lab.families.family import Encoded
from gasam.lab.record import Record
from gasam.lab.storage import Checkpoints, replaced
from gasam.lab.training.loop import OnUpdate
from gasam.lab.training.plan import Plan
from gasam.lab.training.run import run


@dataclass
class Job:
    """A run to execute. In the end it has a `record`, or the first line of an `error` and the `log` with all of it."""

    plan: Plan
    name: str  # of the run and its record
    record: Any = None
    error: str | None = None
    log: Path | None = None
    detail: str = ""  # to add to its label in the display
    data: Encoded | None = field(default=None, repr=False)  # for engines without access to the source files
    exclusive: bool = True  # whether only one process at a time may work on a job of this name in a folder


Event = tuple[str, Any]
OnEvent = Callable[[Job, Event], None]
"""Called for each job with ("start", None), ("update", an Update), ("moved", a sentence), and at the end with ("done",
its record) or ("failed", a message)."""
Work = Callable[[Any, Path, OnUpdate], Any]
"""The function that a process calls with the job, the folder and a callback for updates; it must be picklable."""


class Engine(Protocol):
    """A place that executes jobs, each in a process of its own, at most `parallel` at a time."""

    parallel: int

    @property
    def running(self) -> int:
        """The number of jobs that were started and have not yet ended."""

    def start(self, job: Job, folder: Path, work: Work) -> None:
        """Start `work(job, folder, on_update)`, or queue it. Its files in `folder` are those of this machine."""

    def events(self) -> Sequence[tuple[Job, Event]]:
        """Wait for the next events of the started jobs."""

    def stop(self) -> None:
        """Interrupt all jobs; return when each has written its checkpoint and has ended."""


def prepare(plans: Iterable[Plan], folder: Path) -> list[Job]:
    """Make the jobs of plans. Their data is encoded here, once, before any process starts. Known records are read."""
    jobs: dict[str, Job] = {}
    known: dict[Hashable, Encoded] = {}
    for plan in plans:
        data = known[plan.data_key] = known.get(plan.data_key) or plan.data()
        name, record = plan.name(data.hash), None
        if (folder / f"{name}.json").exists():
            record = records.read(folder / f"{name}.json")
            Checkpoints(folder / name).clean()  # it may have been killed just after it wrote its record
        jobs[name] = Job(plan, name, record, data=data)
    return list(jobs.values())


def train(job: Job, folder: Path, on_update: OnUpdate, **options: Any) -> Record:
    return run(job.plan, folder, on_update=on_update, data=job.data, **options)


def do_all(jobs: Sequence[Job], folder: Path, engine: Engine, on_event: OnEvent, work: Work = train) -> None:
    """Call `work` for every job without a record. If this ends early, every running job writes its checkpoint first."""
    waiting = [job for job in jobs if job.record is None]
    if waiting:
        folder.mkdir(parents=True, exist_ok=True)  # one error, instead of one for each run, if it cannot be made
    try:
        while waiting or engine.running:
            while waiting and engine.running < engine.parallel:
                engine.start(waiting.pop(0), folder, work)
            for job, (kind, value) in engine.events():
                log = folder / job.name / "error.txt"
                if kind == "failed":
                    with suppress(OSError):  # the disk may be full
                        log.parent.mkdir(parents=True, exist_ok=True)
                        log.write_text(f"{value}\n", encoding="utf-8")
                        job.log = log
                    job.error = value = value.partition("\n")[0]
                if kind == "done":
                    job.record = value
                    log.unlink(missing_ok=True)  # from an earlier attempt
                on_event(job, (kind, value))
    finally:
        engine.stop()


def raise_failed(jobs: Iterable[Job]) -> None:
    if failed := [f"{job.name}: {job.error} ({job.log})" for job in jobs if job.record is None]:
        raise RunFailedError("; ".join(failed))


def message_of(error: BaseException) -> str:
    """The message of a job that failed: a sentence for the user, or the error with its traceback."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; run the same command to continue"
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"


Files = dict[str, bytes]
"""The content of files by their path in the folder of all jobs, for machines without access to it."""


def names_of_files(folder: Path, job: str) -> list[str]:
    """The files of a job, "*" for any job, without those that are being written or belong to the machine."""
    found = [file for pattern in (f"{job}.json", f".{job}.json", f"{job}/**/*") for file in folder.glob(pattern)]
    names = [file.relative_to(folder).as_posix() for file in found if file.is_file() and file.name != "error.txt"]
    return [name for name in dict.fromkeys(names) if "/." not in name]


def read_files(folder: Path, job: str) -> Files:
    return {name: (folder / name).read_bytes() for name in names_of_files(folder, job)}


def write_files(folder: Path, job: str, files: Files, names: Collection[str]) -> None:
    """Write changed files of a job, then delete its files that are not among `names`."""
    for name, content in files.items():
        with replaced(folder / name) as partial:
            partial.write_bytes(content)
    for name in names_of_files(folder, job):
        if name not in names:
            (folder / name).unlink(missing_ok=True)
