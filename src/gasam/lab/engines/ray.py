"""The engine `ray`: jobs on a running Ray cluster, without a shared file system.

Each job is a Ray task in a process of its own, which works in a temporary folder of its node. Its checkpoints, its
record and its model are sent to the driver, which alone writes the output folder. If its node dies, Ray starts the task
again on another one, and the driver sends it the last checkpoint that it has.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import re
import signal
import socket
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gasam.lab.engines.engine import Event, Job, Work, read_files, write_files
from gasam.lab.engines.ray_node import Depot, Message, execute, node_versions, version_difference
from gasam.lab.errors import InputError
from gasam.lab.storage import Checkpoints

FORWARDED = re.compile(r"GASAM_.*|(OMP|MKL|OPENBLAS)_NUM_THREADS|ONEDNN_.*|ATEN_CPU_CAPABILITY|CUBLAS_WORKSPACE_CONFIG")
"""The environment variables that every run gets: ours, and those that change its bits."""
HOW_TO_START = "start one with `ray start --head`, and on other machines `ray start --address=HOST:6379`"
MOST_STARTED = 200
"""Jobs that are started or queued in the cluster at a time; each holds a lock, which is an open file."""
MOST_RETRIES = 5
"""How often Ray starts a job again whose node died, or whose process did."""
PATIENCE, STOPPING = 120.0, 60.0
"""Seconds to wait for the first answer of a node, and for the checkpoints of interrupted jobs."""


@dataclass
class Started:
    """A job in the cluster: its folder, its lock, its Ray task, the number of its starts, and the files sent to it."""

    job: Job
    folder: Path
    lock: ExitStack
    task: Any
    attempt: int = 0
    files: Any = None
    cancelled: bool = False


@contextmanager
def connected(where: str, *, parallel: int | None, cpus: int, gpus: float | None, cpu: bool) -> Iterator[RayEngine]:
    """The engine of a running cluster, connected to it; the arguments are those of `engines.opened`."""
    address = _found_on_this_machine() if where in ("ray", "auto") else where
    _check_answers(address)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    variables = {name: value for name, value in os.environ.items() if FORWARDED.fullmatch(name)}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": variables})
    except (RuntimeError, ConnectionError, ValueError) as error:
        sentence = " ".join(str(error).split())
        raise InputError(f"cannot connect to the Ray cluster at {address}: {sentence}") from None
    finally:
        for number, handler in before.items():  # Ray sets its own
            signal.signal(number, handler)
    try:
        if gpus is None:
            gpus = 1.0 if _nodes_for(0, 1e-3) and not cpu else 0.0
        _check_nodes(cpus, gpus)
        yield RayEngine(parallel, cpus, gpus)
    finally:
        ray.shutdown()


class RayEngine:
    """Executes jobs on the cluster that this process is connected to, see `connected`."""

    def __init__(self, parallel: int | None, cpus: int, gpus: float) -> None:
        self.parallel = MOST_STARTED if parallel is None else min(parallel, MOST_STARTED)
        self.threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else cpus
        self.started: dict[int, Started] = {}
        self.numbers = itertools.count()
        self.pending: list[tuple[Job, Event]] = []
        self.data: dict[Hashable, Any] = {}
        self.asked: Any = None
        self.versions = node_versions()
        self.execute = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1, max_retries=MOST_RETRIES)(execute)
        depot: Any = ray.remote(Depot)
        here = _on_node(ray.get_runtime_context().get_node_id())
        self.depot = depot.options(num_cpus=0, scheduling_strategy=here).remote()

    @property
    def running(self) -> int:
        return len(self.started) + len(self.pending)

    def start(self, job: Job, folder: Path, work: Work) -> None:
        lock = ExitStack()
        try:
            if job.exclusive:
                lock.enter_context(Checkpoints(folder / job.name).locked())
        except InputError as error:
            self.pending += [(job, ("start", None)), (job, ("failed", str(error)))]
            return
        number, family = next(self.numbers), job.plan.definition.family
        task = pickle.dumps((replace(job, data=None, record=None), work, self.threads, family.task_text))
        data = []
        if job.data is not None and family.task_text is None:  # a task file reads its own
            key = job.plan.data_key, frozenset(job.data.splits)
            if key not in self.data:
                stream = BytesIO()
                job.data.save(stream)
                self.data[key] = ray.put(stream.getvalue())
            data.append(self.data[key])
        started = self.execute.remote(number, task, data, str(folder), self.versions, self.depot)
        self.started[number] = Started(job, folder, lock, started)

    def events(self) -> Sequence[tuple[Job, Event]]:
        found, self.pending = self.pending, []
        if found:
            return found
        try:
            self.asked = self.asked or self.depot.take.remote()
            ray.wait([self.asked, *self._tasks()], num_returns=1)
            if ray.wait([self.asked], timeout=0)[0]:
                messages, self.asked = ray.get(self.asked), None
                found += [event for message in messages for event in self._read(message)]
        except (RayError, ConnectionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the Ray cluster is gone ({reason}): start it, and run the same command again") from None
        return found + [self._finished(number) for number in self._ended()]

    def cancel(self, job: Job) -> None:
        for started in self.started.values():
            if started.job is job:
                started.cancelled = True
                ray.cancel(started.task, recursive=False)

    def stop(self) -> None:
        """Interrupt all jobs, and keep the checkpoints that they send."""
        for started in self.started.values():
            ray.cancel(started.task, recursive=False)
        if self.started:
            ray.wait(self._tasks(), num_returns=len(self.started), timeout=STOPPING)
        for number in self._ended():
            self._finished(number)
        for started in self.started.values():
            ray.cancel(started.task, force=True, recursive=False)
            started.lock.close()
        self.started.clear()

    def _tasks(self) -> list[Any]:
        return [started.task for started in self.started.values()]

    def _ended(self) -> list[int]:
        tasks = self._tasks()
        ready = set(ray.wait(tasks, num_returns=len(tasks), timeout=0, fetch_local=False)[0]) if tasks else set()
        return [number for number, started in self.started.items() if started.task in ready]

    def _read(self, message: Message) -> list[tuple[Job, Event]]:
        """The events of one message. Those of a job that has ended, or of an earlier start, are ignored."""
        started = self.started.get(message.job)
        if started is None or message.attempt < started.attempt:
            return []
        if message.kind == "update":
            return [(started.job, ("update", message.value))]
        if message.kind == "files":
            with suppress(RayError):  # its node has just died
                write_files(started.folder, started.job.name, *ray.get(message.value[0]))
            return []
        moved, started.attempt = started.attempt > 0, message.attempt
        started.files = ray.put(read_files(started.folder, started.job.name))
        self.depot.give.remote(message.job, [started.files])
        told = "its node died; it continues on another one from its last checkpoint"
        return [(started.job, ("moved", told) if moved else ("start", None))]

    def _finished(self, number: int) -> tuple[Job, Event]:
        """Handle the end of a task: keep its files, and release its lock."""
        started = self.started.pop(number)
        with started.lock:
            try:
                kind, value, snapshot = ray.get(started.task)
            except WorkerCrashedError:
                logs = "/tmp/ray/session_latest/logs"
                return started.job, (
                    "failed",
                    f"its process crashed or was killed; Ray's logs are on its node in {logs}",
                )
            except RayError as error:
                kind, value, snapshot = "failed", str(error).strip() or type(error).__name__, None
            if snapshot is not None:
                write_files(started.folder, started.job.name, *snapshot)
        cancelled = kind == "failed" and started.cancelled
        return started.job, ("cancelled", None) if cancelled else (kind, value)


def _found_on_this_machine() -> str:
    """The address of the cluster that `ray start` started on this machine, where Ray itself looks for it.

    Ray would wait for many minutes if its file were left from a cluster that no longer exists.
    """
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    temporary = os.environ.get("RAY_TMPDIR") or ("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir())
    file = Path(temporary) / "ray" / "ray_current_cluster"
    if not file.is_file():
        raise InputError(f"no Ray cluster runs on this machine: {HOW_TO_START}")
    return file.read_text(encoding="utf-8").strip()


def _check_answers(address: str) -> None:
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/:\s]+|\[[^\]]+\]):(?P<port>\d{1,5})", address)
    if found is None:
        raise InputError(f"--on must be local, ray, auto, HOST:PORT or ray://HOST:PORT, got {address!r}")
    host, port = found["host"].strip("[]"), int(found["port"])
    if not _answers(host, port):
        raise InputError(f"no Ray cluster answers at {address}: {HOW_TO_START}")
    used = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    if host in ("localhost", "127.0.0.1", "::1") and "://" not in address and not _answers(used, port):
        raise InputError(
            f"the cluster at {address} has only the loopback address, for which Ray would try {used}: set the "
            "environment variable RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0"
        )


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=10).close()
    except (OSError, OverflowError):
        return False
    return True


def _nodes_for(cpus: float, gpus: float) -> list[dict[str, Any]]:
    """The nodes that are large enough for a run."""
    alive = (node for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
    return [node for node in alive if all(node["Resources"].get(k, 0) >= n for k, n in (("CPU", cpus), ("GPU", gpus)))]


def _check_nodes(cpus: float, gpus: float) -> None:
    """Raise if no node is large enough, or if one has not the Python, torch and gasam of this process."""
    nodes = _nodes_for(cpus, gpus)
    if not nodes:
        needed = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        raise InputError(
            f"none of the cluster's {len(_nodes_for(0, 0))} nodes has {needed}: lower --cpus-per-run or "
            "--gpus-per-run, or add a node"
        )
    report = ray.remote(num_cpus=0, max_retries=0)(node_versions)
    asked = [report.options(scheduling_strategy=_on_node(node["NodeID"])).remote() for node in nodes]
    for node, answer in zip(nodes, asked, strict=True):
        place = f"node {node['NodeManagerAddress']} of the cluster"
        try:
            difference = version_difference(node_versions(), ray.get(answer, timeout=PATIENCE))
        except (RayError, TimeoutError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise InputError(f"{place} cannot run gasam ({reason}): run `pip install 'gasam[ray]'` there") from None
        if difference:
            raise InputError(f"{place} {difference}")


def _on_node(node: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)
