"""Parallel execution of runs on this machine, one process each."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from gasam.lab import records
from gasam.lab.errors import InputError
from gasam.lab.families.encoded import Encoded
from gasam.lab.records import RunRecord
from gasam.lab.training.plan import Plan
from gasam.lab.training.progress import OnUpdate
from gasam.lab.training.run import run


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
    """

    plan: Plan
    name: str
    notes: tuple[str, ...] = ()
    record: Any = None
    error: str | None = None
    log: Path | None = None
    detail: str = ""


Event = tuple[str, Any]
OnEvent = Callable[[Job, Event], None]
"""Called for each job with ("start", None), ("update", an Update), ("done", its record) or ("failed", message)."""
Work = Callable[[Any, Path, OnUpdate], Any]
"""The function that a process calls with the job, the folder and a callback for updates; it must be picklable."""


@dataclass
class Worker:
    """The process of a job, and the pipe that it reports through."""

    job: Job
    process: BaseProcess
    pipe: Connection
    ended: bool = False


def default_jobs() -> int:
    """The default number of parallel runs: one for each core, or 1 if there is an accelerator."""
    return 1 if torch.accelerator.is_available() else cores()


def cores() -> int:
    """The number of cores that this process may use, or of all cores if that is not known."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_a_run(parallel: int) -> int:
    """The threads of each run: the cores are divided among the parallel runs, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return max(1, cores() // parallel)


def prepare(plans: Iterable[Plan], folder: Path) -> list[Job]:
    """Make the jobs of plans. Their data is encoded here, once, before any process starts. Known records are read."""
    jobs: dict[str, Job] = {}
    known: dict[Hashable, Encoded] = {}
    for plan in plans:
        if plan.data_key not in known:
            known[plan.data_key] = plan.data()
        data = known[plan.data_key]
        name = plan.name(data.hash)
        file = folder / f"{name}.json"
        jobs[name] = Job(plan, name, data.notes, records.read(file) if file.exists() else None)
    return list(jobs.values())


def run_all(
    jobs: list[Job], folder: Path, parallel: int, on_event: OnEvent, *, cpu: bool = False, gradient_norms: bool = False
) -> None:
    """Train every job that has no record yet.

    Args:
        jobs: The jobs from `prepare`; their `record` or `error` is set.
        folder: The folder for records and checkpoints.
        parallel: Number of processes at a time.
        on_event: Called with every event of every job.
        cpu: Use the CPU even if there is a GPU.
        gradient_norms: Record gradient norms, see `training.run.run`.
    """
    do_all(jobs, folder, parallel, on_event, partial(_train, cpu=cpu, gradient_norms=gradient_norms))


def do_all(jobs: Sequence[Job], folder: Path, parallel: int, on_event: OnEvent, work: Work) -> None:
    """Call `work` for every job that has no record yet, each in its own process.

    If this ends early, for example by Ctrl-C, every running job writes its checkpoint first.
    """
    if parallel < 1:
        raise InputError(f"jobs must be a whole number >= 1, got {parallel}")
    waiting = [job for job in jobs if job.record is None]
    threads = threads_of_a_run(parallel)
    running: list[Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(_start(waiting.pop(0), folder, threads, work))
                on_event(running[-1].job, ("start", None))
            ready = wait([worker.pipe for worker in running])
            for worker in running:
                if worker.pipe in ready:
                    _listen(worker, folder, on_event)
            running = [worker for worker in running if not worker.ended]
    finally:
        _stop(running)


def _train(job: Job, folder: Path, on_update: OnUpdate, *, cpu: bool, gradient_norms: bool) -> RunRecord:
    return run(job.plan, folder, on_update=on_update, cpu=cpu, gradient_norms=gradient_norms)


def _start(job: Job, folder: Path, threads: int, work: Work) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, job, folder, threads, theirs), name=job.name)
    process.start()
    theirs.close()
    return Worker(job, process, ours)


def _work(work: Work, job: Job, folder: Path, threads: int, pipe: Connection) -> None:
    """The main function of a job's process. A crash here does not affect other jobs."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C then reaches only the parent, which stops every run once
    torch.set_num_threads(threads)
    try:
        pipe.send(("done", work(job, folder, lambda update: pipe.send(("update", update)))))
    except KeyboardInterrupt:
        _send_failure(pipe, "interrupted; run the same command to continue")
    except InputError as error:
        _send_failure(pipe, str(error))
    except Exception as error:
        _send_failure(pipe, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _send_failure(pipe: Connection, message: str) -> None:
    with suppress(BrokenPipeError):  # the parent was killed
        pipe.send(("failed", message))


def _listen(worker: Worker, folder: Path, on_event: OnEvent) -> None:
    """Handle one message of a worker. A worker that was killed sends nothing, or part of a message."""
    job = worker.job
    try:
        kind, value = worker.pipe.recv()
    except Exception:  # EOFError, OSError, or any error from unpickling part of a message
        kind, value = "ended", None
    if kind == "ended":
        worker.process.join()
        worker.ended = True
        if job.record is None and job.error is None:
            _fail(job, f"the process ended with code {worker.process.exitcode}", folder, on_event)
    elif kind == "failed":
        _fail(job, value, folder, on_event)
    else:
        if kind == "done":
            job.record = value
            _log(job, folder).unlink(missing_ok=True)  # from an earlier attempt
        on_event(job, (kind, value))


def _fail(job: Job, message: str, folder: Path, on_event: OnEvent) -> None:
    """Keep the first line of the message for display, and write all of it to a file."""
    job.error = message.partition("\n")[0]
    job.log = _log(job, folder)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.log.write_text(message + "\n", encoding="utf-8")
    on_event(job, ("failed", job.error))


def _log(job: Job, folder: Path) -> Path:
    return folder / job.name / "error.txt"


def _stop(running: list[Worker]) -> None:
    for worker in running:
        worker.process.terminate()  # SIGTERM: a run writes its checkpoint first
    for worker in running:
        with suppress(EOFError, OSError):
            while True:
                worker.pipe.recv()
        worker.process.join()
