"""The execution of many jobs by an engine. An engine is one file: `local.py`, `ray.py`."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from gasam.lab.engines.jobs import Event, Job, OnEvent, Work
from gasam.lab.errors import InputError
from gasam.lab.record import Record
from gasam.lab.training.loop import OnUpdate
from gasam.lab.training.run import run


class Engine(Protocol):
    """A place that executes jobs, each in a process of its own. `do_all` calls it.

    A job ends with the event "done" or "failed". "failed" has the whole message. Afterwards the engine writes nothing
    more to the job's folder.
    """

    @property
    def parallel(self) -> int:
        """The largest number of jobs that may be started and not yet ended."""

    @property
    def running(self) -> int:
        """The number of jobs that were started and have not yet ended."""

    def start(self, job: Job, folder: Path, work: Work) -> None:
        """Start `work(job, folder, on_update)`, or queue it. Its files in `folder` are those of this machine."""

    def events(self) -> Sequence[tuple[Job, Event]]:
        """Wait for the next events of the started jobs."""

    def cancel(self, job: Job) -> None:
        """Interrupt one job. It writes its checkpoint and fails."""

    def stop(self) -> None:
        """Interrupt all jobs; return when each has written its checkpoint and has ended."""


def run_all(
    jobs: list[Job],
    folder: Path,
    engine: Engine,
    on_event: OnEvent,
    *,
    cpu: bool = False,
    gradient_norms: bool = False,
    track: str | None = None,
) -> None:
    """Train every job that has no record yet.

    Args:
        jobs: The jobs from `prepare`; their `record` or `error` is set.
        folder: The folder for records and checkpoints.
        engine: Where to run them, such as `LocalEngine(2)`.
        on_event: Called with every event of every job.
        cpu: Use the CPU even if there is a GPU.
        gradient_norms: Record gradient norms, see `training.run.run`.
        track: The name of a tracker that follows the runs, see `training.run.run`.
    """
    do_all(jobs, folder, engine, on_event, partial(train, cpu=cpu, gradient_norms=gradient_norms, track=track))


def train(
    job: Job, folder: Path, on_update: OnUpdate, *, cpu: bool, gradient_norms: bool, track: str | None = None
) -> Record:
    """The work of a training job."""
    return run(job.plan, folder, on_update=on_update, cpu=cpu, gradient_norms=gradient_norms, track=track)


def do_all(jobs: Sequence[Job], folder: Path, engine: Engine, on_event: OnEvent, work: Work) -> None:
    """Call `work` for every job that has no record yet, each in its own process.

    If this ends early, for example by Ctrl-C, every running job writes its checkpoint first.

    Args:
        jobs: The jobs; their `record` or `error` is set.
        folder: The folder for records, checkpoints and logs.
        engine: Where to execute them.
        on_event: Called with every event of every job.
        work: The function to call.
    """
    waiting = [job for job in jobs if job.record is None]
    if waiting:
        folder.mkdir(parents=True, exist_ok=True)  # one error, instead of one for each run, if it cannot be made
    try:
        while waiting or engine.running:
            while waiting and engine.running < engine.parallel:
                engine.start(waiting.pop(0), folder, work)
            for job, event in engine.events():
                _handle(job, event, folder, on_event)
    finally:
        engine.stop()


def message_of(error: BaseException) -> str:
    """The message of a job that failed: a sentence for the user, or the error with its traceback."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; run the same command to continue"
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"


def _handle(job: Job, event: Event, folder: Path, on_event: OnEvent) -> None:
    kind, value = event
    if kind == "failed":
        _fail(job, value, folder)
        on_event(job, ("failed", job.error))
        return
    if kind == "done":
        job.record = value
        _log(job, folder).unlink(missing_ok=True)  # from an earlier attempt
    on_event(job, event)


def _fail(job: Job, message: str, folder: Path) -> None:
    """Keep the first line of the message for display, and write all of it to a file, unless the disk is full."""
    job.error = message.partition("\n")[0]
    log = _log(job, folder)
    with suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(message + "\n", encoding="utf-8")
        job.log = log


def _log(job: Job, folder: Path) -> Path:
    return folder / job.name / "error.txt"
