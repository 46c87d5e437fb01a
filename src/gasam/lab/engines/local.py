"""Many runs at once on this machine: a process each, one watcher, finished ones skipped, failures kept apart."""

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
    """A run to be computed; `record` is its result, None before and when it failed."""

    plan: Plan
    name: str
    notes: tuple[str, ...] = ()
    record: Any = None
    error: str | None = None
    log: Path | None = None
    detail: str = ""


Event = tuple[str, Any]
OnEvent = Callable[[Job, Event], None]
"""Told of ("start", None), ("update", an Update), ("done", its record) and ("failed", message) of each job."""
Work = Callable[[Any, Path, OnUpdate], Any]
"""What a process does for a job, telling how far it is; it can be pickled."""


@dataclass
class Worker:
    job: Job
    process: BaseProcess
    pipe: Connection
    ended: bool = False


def default_jobs() -> int:
    """One run for each core; one alone where there is an accelerator."""
    return 1 if torch.accelerator.is_available() else cores()


def cores() -> int:
    """Those that this process may use, where the system says so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_of_a_run(parallel: int) -> int:
    """The cores are divided among the runs, unless OMP_NUM_THREADS says otherwise."""
    if "OMP_NUM_THREADS" in os.environ:
        return torch.get_num_threads()
    return max(1, cores() // parallel)


def prepare(plans: Iterable[Plan], folder: Path) -> list[Job]:
    """Jobs with their data encoded, once, before any process starts; those that have a record hold it already."""
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
    """Run what has no record yet."""
    do_all(jobs, folder, parallel, on_event, partial(_train, cpu=cpu, gradient_norms=gradient_norms))


def do_all(jobs: Sequence[Job], folder: Path, parallel: int, on_event: OnEvent, work: Work) -> None:
    """`work` on every job that has no record yet, each in a process. Ctrl-C, or whatever else ends this early, lets
    every running one write its checkpoint first."""
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
    """A process of its own: a crash, of whatever kind, is this run's alone."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the watcher only, which then asks every run to stop, once
    torch.set_num_threads(threads)
    try:
        pipe.send(("done", work(job, folder, lambda update: pipe.send(("update", update)))))
    except KeyboardInterrupt:
        _send_failure(pipe, "interrupted; run the same command to go on")
    except InputError as error:
        _send_failure(pipe, str(error))
    except Exception as error:
        _send_failure(pipe, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _send_failure(pipe: Connection, message: str) -> None:
    with suppress(BrokenPipeError):  # the watcher was killed: nobody wants to know
        pipe.send(("failed", message))


def _listen(worker: Worker, folder: Path, on_event: OnEvent) -> None:
    """What a worker says. One that was killed says nothing, or half of something."""
    job = worker.job
    try:
        kind, value = worker.pipe.recv()
    except Exception:  # EOFError, OSError, or whatever the torn bytes of a message raise
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
            _log(job, folder).unlink(missing_ok=True)  # of an attempt before
        on_event(job, (kind, value))


def _fail(job: Job, message: str, folder: Path, on_event: OnEvent) -> None:
    """The first line is for the eye, all of it is kept in a file."""
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
