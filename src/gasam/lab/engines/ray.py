"""The engine `ray`: execution of jobs on a Ray cluster, without a shared file system.

Each job is a Ray task in a process of its own. It works in a temporary folder of its node. Its checkpoints, its record
and its model are sent to the driver, which alone writes the output folder. A job whose node died starts again on
another node from the last checkpoint that the driver has.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Hashable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    RayError,
    WorkerCrashedError,
)

from gasam.lab.engines.jobs import Event, Job, Work
from gasam.lab.engines.ray_cluster import check_nodes, connection, new_mailbox, nodes_for
from gasam.lab.engines.ray_worker import Message, Result, execute, node_versions, work_item
from gasam.lab.engines.shipping import data_bytes, read_files, write_snapshot
from gasam.lab.errors import InputError
from gasam.lab.storage import Checkpoints

MOST_STARTED = 200
"""Jobs that are started or queued in the cluster at a time; each holds a lock, which is an open file."""
WAITING_CALLS = 10 * MOST_STARTED
"""Calls that may wait in the mailbox, several of each job."""
MOST_DEATHS = 5
"""A job is given up if so many nodes die in a row before it sends a new checkpoint: it may be what kills them."""
STOPPING = 60.0
"""Seconds to wait for the checkpoints of interrupted jobs; the last ones of finished epochs are here already."""
SILENCE = 30.0
"""Seconds without a message after which we look whether any node is left."""
NODE_FAILURES = (NodeDiedError, LocalRayletDiedError, ObjectLostError)


@dataclass
class Attempt:
    """A job in the cluster.

    Args:
        job: The job.
        folder: The folder of all jobs on this machine.
        work: The function to call.
        lock: Holds the lock of the job's folder.
        task: Its Ray task.
        latest: The number of its latest message; -1 while it waits for a free node.
        shown: Whether its start was reported, perhaps on another node.
        deaths: Number of nodes that died since its last checkpoint.
    """

    job: Job
    folder: Path
    work: Work
    lock: ExitStack
    task: Any = None
    latest: int = -1
    shown: bool = False
    deaths: int = 0


class RayEngine:
    """Executes jobs on a running Ray cluster; a context manager that holds the connection.

    Args:
        where: `auto` for the cluster that runs on this machine, HOST:PORT, or ray://HOST:PORT.
        parallel: The largest number of jobs at a time; by default as many as the cluster holds.
        cpus: CPUs of each job, and its threads unless OMP_NUM_THREADS is set.
        gpus: GPUs of each job; by default 1 if the cluster has any. May be a fraction.
        cpu: Use the CPU even if there are GPUs.
    """

    def __init__(
        self, where: str, *, parallel: int | None = None, cpus: int = 1, gpus: float | None = None, cpu: bool = False
    ) -> None:
        self.where, self.cpus, self.gpus, self.cpu = where, cpus, gpus, cpu
        self.parallel = MOST_STARTED if parallel is None else min(parallel, MOST_STARTED)
        self.threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else cpus
        self.attempts: dict[int, Attempt] = {}
        self.numbers = itertools.count()
        self.pending: list[tuple[Job, Event]] = []
        self.data: dict[Hashable, tuple[str, Any]] = {}
        self.open = ExitStack()
        self.asked: Any = None
        self.without_nodes = False

    def __enter__(self) -> RayEngine:
        with ExitStack() as stack:
            stack.enter_context(connection(self.where))
            if self.gpus is None:
                self.gpus = 1.0 if nodes_for(0, 1e-3) and not self.cpu else 0.0
            check_nodes(self.cpus, self.gpus)
            self.versions = node_versions()
            self.execute = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_calls=1, max_retries=0)(execute)
            self.mailbox = new_mailbox(WAITING_CALLS)
            self.open = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.open.close()

    @property
    def running(self) -> int:
        return len(self.attempts) + len(self.pending)

    def start(self, job: Job, folder: Path, work: Work) -> None:
        lock = ExitStack()
        try:
            if job.exclusive:
                lock.enter_context(Checkpoints(folder / job.name).locked())
        except InputError as error:
            self.pending += [(job, ("start", None)), (job, ("failed", str(error)))]
            return
        self._submit(Attempt(job, folder, work, lock))

    def events(self) -> Sequence[tuple[Job, Event]]:
        found, self.pending = self.pending, []
        if found:
            return found
        if self.asked is None:
            self.asked = self.mailbox.take.remote()
        try:
            if not ray.wait([self.asked, *self._tasks()], num_returns=1, timeout=SILENCE)[0]:
                return self._silence()
            if ray.wait([self.asked], timeout=0)[0]:
                messages, self.asked = ray.get(self.asked), None
                found += [event for message in messages for event in self._read(message)]
        except (RayError, ConnectionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the Ray cluster is gone ({reason}): start it, and run the same command again") from None
        for number in self._ended():
            found += self._finish(number)
        return found

    def cancel(self, job: Job) -> None:
        for attempt in self.attempts.values():
            if attempt.job is job:
                ray.cancel(attempt.task, recursive=False)

    def stop(self) -> None:
        """Interrupt all jobs, and keep the checkpoints that they send."""
        if not self.attempts:
            return
        self.mailbox.stop.remote()
        for attempt in self.attempts.values():
            if attempt.latest < 0:
                ray.cancel(attempt.task, recursive=False)
        ray.wait(self._tasks(), num_returns=len(self.attempts), timeout=STOPPING)
        ended = self._ended()
        for number, attempt in self.attempts.items():
            with attempt.lock, suppress(RayError):
                if number in ended:
                    _keep(attempt, ray.get(attempt.task))
                else:
                    ray.cancel(attempt.task, force=True, recursive=False)
        self.attempts.clear()
        self.mailbox, self.asked = new_mailbox(WAITING_CALLS), None

    def _silence(self) -> list[tuple[Job, Event]]:
        """After a while without a message: tell once that there is no node left."""
        told, self.without_nodes = self.without_nodes, not nodes_for(self.cpus, self.gpus or 0)
        if told or not self.without_nodes:
            return []
        first = next(iter(self.attempts.values()))
        sentence = "no node of the cluster can run it now; it waits for one"
        return [*_shown(first), (first.job, ("moved", sentence))]

    def _tasks(self) -> list[Any]:
        return [attempt.task for attempt in self.attempts.values()]

    def _ended(self) -> list[int]:
        tasks = self._tasks()
        ready = set(ray.wait(tasks, num_returns=len(tasks), timeout=0, fetch_local=False)[0]) if tasks else set()
        return [number for number, attempt in self.attempts.items() if attempt.task in ready]

    def _submit(self, attempt: Attempt) -> None:
        number = next(self.numbers)
        data = self._reference(attempt.job)
        item = work_item(attempt.job, attempt.work, attempt.folder, data, self.threads, self.versions)
        files = read_files(attempt.folder, attempt.job.name)
        attempt.task, attempt.latest = self.execute.remote(item, files, self.mailbox, number), -1
        self.attempts[number] = attempt

    def _reference(self, job: Job) -> tuple[str, Any] | None:
        """The hash of the job's data and its reference in the object store, where it is put once."""
        family = job.plan.definition.family
        if job.data is None or not family.cached:  # the functions of a task file read their data on the node
            return None
        key = job.plan.data_key, frozenset(job.data.splits)
        if key not in self.data:
            digest, content = data_bytes(job.data)
            self.data[key] = digest, ray.put(content)
        return self.data[key]

    def _read(self, message: Message) -> list[tuple[Job, Event]]:
        """The events of one message. Messages that were overtaken, or of an attempt that has ended, are ignored."""
        attempt = self.attempts.get(message.attempt)
        if message.kind == "files":
            kept = False
            with suppress(RayError):  # its node has just died
                if attempt is not None:
                    write_snapshot(attempt.folder, attempt.job.name, ray.get(message.value[0]))
                    kept, attempt.deaths = True, 0
            self.mailbox.answer.remote(replace(message, value=None), kept)
            return []
        if attempt is None:
            return []
        overtaken, attempt.latest = message.number < attempt.latest, max(attempt.latest, message.number)
        found = _shown(attempt)
        if message.kind == "update" and not overtaken:
            found.append((attempt.job, ("update", message.value)))
        return found

    def _finish(self, number: int) -> list[tuple[Job, Event]]:
        """Handle the end of a task: keep its files, or start it again if its node died."""
        attempt = self.attempts.pop(number)
        try:
            result: Result = ray.get(attempt.task)
        except NODE_FAILURES as error:
            return self._move(attempt, error)
        except RayError as error:
            attempt.lock.close()
            return [*_shown(attempt), (attempt.job, ("failed", _reason(error)))]
        with attempt.lock:
            _keep(attempt, result)
        kind = "done" if result.kind == "done" else "failed"
        return [*_shown(attempt), (attempt.job, (kind, result.value))]

    def _move(self, attempt: Attempt, error: RayError) -> list[tuple[Job, Event]]:
        """Start a job again on another node. One that was only waiting for the dead node is not reported as moved."""
        attempt.deaths += 1
        if attempt.deaths >= MOST_DEATHS:
            attempt.lock.close()
            message = f"{MOST_DEATHS} nodes died while they ran it\n{error}"
            return [*_shown(attempt), (attempt.job, ("failed", message))]
        waited = attempt.latest < 0
        self._submit(attempt)
        told = "its node died; it continues on another one from its last checkpoint"
        return [] if waited else [*_shown(attempt), (attempt.job, ("moved", told))]


def _shown(attempt: Attempt) -> list[tuple[Job, Event]]:
    """The event of the job's first start; a job that moved to another node continues."""
    if attempt.shown:
        return []
    attempt.shown = True
    return [(attempt.job, ("start", None))]


def _keep(attempt: Attempt, result: Result) -> None:
    if result.snapshot is not None:
        write_snapshot(attempt.folder, attempt.job.name, result.snapshot)


def _reason(error: RayError) -> str:
    if isinstance(error, WorkerCrashedError):
        return "its process crashed or was killed; the node has Ray's logs, by default in /tmp/ray/session_latest/logs"
    return str(error).strip() or type(error).__name__
