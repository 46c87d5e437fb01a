"""The engine `local`: jobs in processes of this machine, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from gasam.lab.engines.engine import Event, Job, Work, message_of


def cores() -> int:
    """The number of cores that this process may use, or of all cores if that is not known."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """Executes jobs in processes, by default one for each core, or one with an accelerator; they divide the cores."""

    def __init__(self, parallel: int | None = None) -> None:
        self.parallel = parallel or (1 if torch.accelerator.is_available() else cores())
        set_by_user = "OMP_NUM_THREADS" in os.environ
        self.threads = torch.get_num_threads() if set_by_user else max(1, cores() // self.parallel)
        self.workers: dict[Connection, tuple[Job, BaseProcess]] = {}  # by the pipe that the job reports through

    @property
    def running(self) -> int:
        return len(self.workers)

    def start(self, job: Job, folder: Path, work: Work) -> None:
        context = process_context()
        ours, theirs = context.Pipe(duplex=False)
        sent = replace(job, data=None)  # the process reads it from the cache
        given = (work, sent, folder, self.threads, dict(os.environ), theirs)
        process = context.Process(target=_work, args=given, name=job.name)
        with main_module_hidden():
            process.start()
        theirs.close()
        self.workers[ours] = job, process

    def events(self) -> Sequence[tuple[Job, Event]]:
        found: list[tuple[Job, Event]] = []
        ready = wait(list(self.workers))
        for pipe in [pipe for pipe in self.workers if pipe in ready]:
            job, process = self.workers[pipe]
            try:
                kind, value = pipe.recv()
            except Exception:  # a process that was killed sends nothing, or part of a message
                process.join()
                kind, value = "failed", f"the process ended with code {process.exitcode}"
            if kind in ("done", "failed"):
                process.join()
                del self.workers[pipe]
            found.append((job, (kind, value)))
        return found

    def stop(self) -> None:
        for _, process in self.workers.values():
            process.terminate()  # SIGTERM: a run writes its checkpoint first
        for pipe, (_, process) in self.workers.items():
            with suppress(EOFError, OSError):
                while True:
                    pipe.recv()
            process.join()
        self.workers.clear()


def process_context() -> ForkServerContext | SpawnContext:
    """How processes are started. On Linux a server imports torch once, and every job is a copy of it.

    This saves each job the two seconds of that import. A process that has used a GPU must not be copied, and looking
    for one may count as use, so with an accelerator every job imports torch itself.
    """
    if sys.platform != "linux" or torch.accelerator.is_available():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gasam.lab.engines.local"])
    return context


@contextmanager
def main_module_hidden() -> Iterator[None]:
    """Keep a new process from running the user's script again. The functions of jobs are ours and do not need it."""
    names = vars(sys.modules["__main__"])
    file, spec = names.pop("__file__", None), names["__spec__"]
    names["__spec__"] = None
    try:
        yield
    finally:
        names["__spec__"] = spec
        if file is not None:
            names["__file__"] = file


def _work(work: Work, job: Job, folder: Path, threads: int, environment: Mapping[str, str], pipe: Connection) -> None:
    """The main function of a job's process. A crash here does not affect other jobs."""
    os.environ.clear()  # a server has the environment of the time at which it was started
    os.environ.update(environment)
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C then reaches only the parent, which stops every run once
    torch.set_num_threads(threads)
    try:
        pipe.send(("start", None))
        pipe.send(("done", work(job, folder, lambda update: pipe.send(("update", update)))))
    except (Exception, KeyboardInterrupt) as error:
        with suppress(BrokenPipeError):  # the parent was killed
            pipe.send(("failed", message_of(error)))
