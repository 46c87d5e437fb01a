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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gasam.lab.engines.engine import Event, Job, Work, read_files, write_files
from gasam.lab.engines.ray_node import Depot, execute, node_versions
from gasam.lab.errors import InputError
from gasam.lab.storage import Checkpoints

FORWARDED = re.compile(r"GASAM_.*|(OMP|MKL|OPENBLAS)_NUM_THREADS|ONEDNN_.*|ATEN_CPU_CAPABILITY|CUBLAS_WORKSPACE_CONFIG")
"""The environment variables that every run gets: ours, and those that change its bits."""
HOW_TO_START = "start one with `ray start --head`, and on other machines `ray start --address=HOST:6379`"
MOST_STARTED = 200
"""Jobs that are started or queued in the cluster at a time."""
MOST_RETRIES = 5
"""How often Ray starts a job again whose node died, or whose process did."""
PATIENCE, STOPPING = 120.0, 60.0
"""Seconds to wait for the first answer of a node, and for the checkpoints of interrupted jobs."""


@dataclass
class Started:
    """A job in the cluster: its folder, its Ray task, the name of the process that does it, and its lock."""

    job: Job
    folder: Path
    task: Any
    process: str | None = None
    lock: ExitStack = field(default_factory=ExitStack)


@contextmanager
def connected(where: str, *, parallel: int | None, cpus: int, gpus: float | None, cpu: bool) -> Iterator[RayEngine]:
    """The engine of a running cluster, connected to it; the arguments are those of a `Place`."""
    address = _found_on_this_machine() if where in ("ray", "auto") else where
    _check_answers(address)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    variables = {name: value for name, value in os.environ.items() if FORWARDED.fullmatch(name)}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": variables})
    except (RuntimeError, ConnectionError, ValueError) as error:
        raise InputError(f"cannot connect to the Ray cluster at {address}: {' '.join(str(error).split())}") from None
    finally:
        for number, handler in before.items():  # Ray sets its own
            signal.signal(number, handler)
    try:
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU") and not cpu else 0.0  # type: ignore[no-untyped-call]
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
        self.data: dict[Hashable, Any] = {}
        self.taken: Any = None
        self.execute = ray.remote(num_cpus=cpus, num_gpus=gpus, max_calls=1, max_retries=MOST_RETRIES)(execute)
        here = _on_node(ray.get_runtime_context().get_node_id())
        self.depot: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(Depot).remote()

    @property
    def running(self) -> int:
        return len(self.started)

    def start(self, job: Job, folder: Path, work: Work) -> None:
        number, text = next(self.numbers), job.plan.definition.family.task_text
        task = pickle.dumps((replace(job, data=None, record=None), work, self.threads, text))
        self.started[number] = Started(job, folder, self.execute.remote(number, task, str(folder), self.depot))

    def events(self) -> Sequence[tuple[Job, Event]]:
        try:
            self.taken = self.taken or self.depot.take.remote()
            ray.wait([self.taken, *self._tasks()], fetch_local=False)
            found: list[tuple[Job, Event]] = []
            if ray.wait([self.taken], timeout=0)[0]:
                message, self.taken = ray.get(self.taken), None
                found = self._read(*message)
            return found + [self._finished(number) for number in self._ended()]
        except (RayError, ConnectionError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"the Ray cluster is gone ({reason}): start it, and run the same command again") from None

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

    def _read(self, message: int, number: int, process: str, kind: str, value: Any) -> list[tuple[Job, Event]]:
        """Answer a message, and give its event. Updates of a job that has ended or was started again are ignored."""
        started, found, answer = self.started.get(number), list[tuple[Job, Event]](), None
        if started is not None and kind == "start":
            moved = "moved", "its node died; it continues on another one from its last checkpoint"
            found = [(started.job, ("start", None) if started.process is None else moved)]
            answer = self._files_for(started, value)
            started.process = process
        elif started is not None and started.process == process:
            update, [snapshot] = value
            with suppress(RayError):  # its node has just died
                write_files(started.folder, started.job.name, *ray.get(snapshot))
            found = [(started.job, ("update", update))]
        self.depot.answer.remote(message, answer)
        return found

    def _files_for(self, started: Started, versions: dict[str, str | None]) -> list[Any] | InputError:
        """References to what a process needs: the files that this machine has of its job, and its data."""
        job, data = started.job, ray.put(None)
        try:
            _check_versions("the node of this run", versions)
            if job.exclusive and started.process is None:
                started.lock.enter_context(Checkpoints(started.folder / job.name).locked())
        except InputError as error:
            return error
        if job.data is not None and job.plan.definition.family.task_text is None:  # a task file reads its own
            if job.plan.data_key not in self.data:
                self.data[job.plan.data_key] = ray.put(job.data.as_bytes())
            data = self.data[job.plan.data_key]
        return [ray.put(read_files(started.folder, job.name)), data]

    def _finished(self, number: int) -> tuple[Job, Event]:
        """The last event of a job; keep its files, and release its lock."""
        started, files = self.started.pop(number), None
        with started.lock:
            try:
                kind, value, files = ray.get(started.task)
            except RayError as error:
                kind, value = "failed", str(error).strip() or type(error).__name__
            if files is not None:
                write_files(started.folder, started.job.name, files, files)
        return started.job, (kind, value)


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
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), timeout=10).close()
    except (OSError, OverflowError):
        raise InputError(f"no Ray cluster answers at {address}: {HOW_TO_START}") from None


def _check_nodes(cpus: float, gpus: float) -> None:
    """Raise if no node is large enough, or if one of those has not the Python, torch and gasam of this process."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    needed = {"CPU": cpus, "GPU": gpus}
    nodes = [node for node in alive if all(node["Resources"].get(name, 0) >= n for name, n in needed.items())]
    if not nodes:
        told = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        raise InputError(
            f"none of the cluster's {len(alive)} nodes has {told}: lower --cpus-per-run or "
            "--gpus-per-run, or add a node"
        )
    report = ray.remote(num_cpus=0, max_retries=0)(node_versions)
    asked = [report.options(scheduling_strategy=_on_node(node["NodeID"])).remote() for node in nodes]
    for node, answer in zip(nodes, asked, strict=True):
        place = f"node {node['NodeManagerAddress']} of the cluster"
        try:
            _check_versions(place, ray.get(answer, timeout=PATIENCE))
        except (RayError, TimeoutError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise InputError(f"{place} cannot run gasam ({reason}): run `pip install 'gasam[ray]'` there") from None


def _check_versions(place: str, theirs: dict[str, str | None]) -> None:
    for name, version in node_versions().items():
        if None not in (version, theirs[name]) and version != theirs[name]:
            difference = f"has {name} {theirs[name]} and we have {version}"
            raise InputError(f"{place} {difference}: install the same versions on every node")


def _on_node(node: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)
