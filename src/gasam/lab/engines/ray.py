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
from collections.abc import Callable, Hashable, Iterator, Sequence
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
from gasam.lab.engines.ray_node import Depot, Message, Versions, execute, node_versions, version_difference
from gasam.lab.errors import InputError
from gasam.lab.families import encoded
from gasam.lab.storage import Checkpoints

FORWARDED = re.compile(r"GASAM_.*|(OMP|MKL|OPENBLAS)_NUM_THREADS|ONEDNN_.*|ATEN_CPU_CAPABILITY|CUBLAS_WORKSPACE_CONFIG")
"""The environment variables that every run gets: ours, and those that change its bits."""
HOW_TO_START = "start one with `ray start --head`, and on other machines `ray start --address=HOST:6379`"
MOST_STARTED = 200
"""Jobs that are started or queued in the cluster at a time; each holds a lock, which is an open file."""
MOST_RETRIES = 5
"""How often Ray starts a job again whose node died, or whose process did."""
PATIENCE, STOPPING, SILENCE = 120.0, 60.0, 30.0
"""Seconds to wait for the first answer of a node, for the checkpoints of interrupted jobs, and for any message."""


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
        self.started: dict[int, Started] = {}
        self.numbers = itertools.count()
        self.pending: list[tuple[Job, Event]] = []
        self.data: dict[Hashable, Any] = {}
        self.open = ExitStack()
        self.asked: Any = None
        self.without_nodes = False

    def __enter__(self) -> RayEngine:
        with ExitStack() as stack:
            stack.enter_context(_connection(self.where))
            if self.gpus is None:
                self.gpus = 1.0 if _nodes_for(0, 1e-3) and not self.cpu else 0.0
            self.versions = node_versions()
            _check_nodes(self.cpus, self.gpus, self.versions)
            remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_calls=1, max_retries=MOST_RETRIES)
            self.execute = remote(execute)
            self.depot = _new_depot()
            self.open = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.open.close()

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
        task = pickle.dumps((replace(job, data=None, record=None), work, self.threads, family.task_text()))
        data = [self._reference(job)] if job.data is not None and family.cached else []  # a task file reads its own
        started = self.execute.remote(number, task, data, str(folder), self.versions, self.depot)
        self.started[number] = Started(job, folder, lock, started)

    def _reference(self, job: Job) -> Any:
        """The reference to the job's data in the object store, where it is put once."""
        assert job.data is not None
        key = job.plan.data_key, frozenset(job.data.splits)
        if key not in self.data:
            stream = BytesIO()
            encoded.save(job.data, stream)
            self.data[key] = ray.put(stream.getvalue())
        return self.data[key]

    def events(self) -> Sequence[tuple[Job, Event]]:
        found, self.pending = self.pending, []
        if found:
            return found
        try:
            self.asked = self.asked or self.depot.take.remote()
            if not ray.wait([self.asked, *self._tasks()], num_returns=1, timeout=SILENCE)[0]:
                return self._silence()
            if ray.wait([self.asked], timeout=0)[0]:
                messages, self.asked = ray.get(self.asked), None
                found += [event for message in messages for event in self._read(message)]
        except (RayError, ConnectionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the Ray cluster is gone ({reason}): start it, and run the same command again") from None
        return found + [(each.job, event) for number in self._ended() for each, event in [self._finished(number)]]

    def cancel(self, job: Job) -> None:
        for started in self.started.values():
            if started.job is job:
                started.cancelled = True
                ray.cancel(started.task, recursive=False)

    def stop(self) -> None:
        """Interrupt all jobs, and keep the checkpoints that they send."""
        if not self.started:
            return
        for started in self.started.values():
            ray.cancel(started.task, recursive=False)
        ray.wait(self._tasks(), num_returns=len(self.started), timeout=STOPPING)
        ended = self._ended()
        for number, started in list(self.started.items()):
            if number in ended:
                self._finished(number)
            else:
                ray.cancel(started.task, force=True, recursive=False)
                started.lock.close()
        self.started.clear()
        ray.kill(self.depot)
        self.depot, self.asked = _new_depot(), None

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
        if message.kind == "start":
            moved, started.attempt = started.attempt > 0, message.attempt
            started.files = ray.put(read_files(started.folder, started.job.name))
            self.depot.give.remote(message.job, [started.files])
            told = "its node died; it continues on another one from its last checkpoint"
            return [(started.job, ("moved", told) if moved else ("start", None))]
        if message.kind == "files":
            with suppress(RayError):  # its node has just died
                snapshot = ray.get(message.value[0])
                write_files(started.folder, started.job.name, *snapshot)
            return []
        return [(started.job, ("update", message.value))]

    def _finished(self, number: int) -> tuple[Started, Event]:
        """Handle the end of a task: keep its files, and release its lock."""
        started = self.started.pop(number)
        with started.lock:
            try:
                kind, value, snapshot = ray.get(started.task)
            except RayError as error:
                kind, value, snapshot = "failed", _reason(error), None
            if snapshot is not None:
                write_files(started.folder, started.job.name, *snapshot)
        if kind == "done":
            return started, (kind, value)
        return started, ("cancelled", None) if started.cancelled else ("failed", value)

    def _silence(self) -> list[tuple[Job, Event]]:
        """After a while without a message: tell once that there is no node left."""
        told, self.without_nodes = self.without_nodes, not _nodes_for(self.cpus, self.gpus or 0)
        if told or not self.without_nodes:
            return []
        first = next(iter(self.started.values()))
        return [(first.job, ("moved", "no node of the cluster can run it now; it waits for one"))]


def _reason(error: RayError) -> str:
    if isinstance(error, WorkerCrashedError):
        return "its process crashed or was killed; the node has Ray's logs, by default in /tmp/ray/session_latest/logs"
    return str(error).strip() or type(error).__name__


@contextmanager
def _connection(where: str) -> Iterator[None]:
    """Connect to a running cluster: `auto` for the one on this machine, HOST:PORT, or ray://HOST:PORT."""
    address = _found_on_this_machine() if where == "auto" else where
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
        yield
    finally:
        ray.shutdown()


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


def _check_nodes(cpus: float, gpus: float, ours: Versions) -> None:
    """Raise if no node is large enough, or if one has not the Python, torch and gasam of this process.

    The nodes answer at the same time.
    """
    nodes = _nodes_for(cpus, gpus)
    if not nodes:
        needed = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        raise InputError(
            f"none of the cluster's {len(_nodes_for(0, 0))} nodes has {needed}: lower --cpus-per-run or "
            "--gpus-per-run, or add a node"
        )
    report = ray.remote(num_cpus=0, max_retries=0)(_reporter())
    asked = {report.options(scheduling_strategy=_on_node(node["NodeID"])).remote(): node for node in nodes}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE)
    for answer, node in asked.items():
        place = f"node {node['NodeManagerAddress']} of the cluster"
        if answer not in answered:
            raise InputError(f"{place} did not answer within {PATIENCE:g} seconds: check it with `ray status`")
        try:
            versions = ray.get(answer)
        except RayError as error:
            raise InputError(f"{place} cannot run gasam: {str(error).strip().splitlines()[-1]}") from None
        if "missing" in versions:
            raise InputError(f"{place} has no package {versions['missing']}: run `pip install 'gasam[ray]'` there")
        if difference := version_difference(ours, versions):
            raise InputError(f"{place} {difference}")


def _reporter() -> Callable[[], Versions]:
    """A function that a node can call without gasam, because Ray sends its code and not its name."""

    def report() -> Versions:
        import platform

        try:
            from gasam.lab.engines.ray_node import node_versions
        except ModuleNotFoundError as error:
            return {"Python": ".".join(platform.python_version_tuple()[:2]), "missing": error.name}
        return node_versions()

    return report


def _new_depot() -> Any:
    """A depot on the node of this process. It ends with the connection."""
    actor: Any = ray.remote(Depot)
    here = _on_node(ray.get_runtime_context().get_node_id())
    return actor.options(num_cpus=0, scheduling_strategy=here).remote()


def _on_node(node: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)
