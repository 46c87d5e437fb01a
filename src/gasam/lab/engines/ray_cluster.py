"""The connection to a running Ray cluster, and the check of its nodes. It never starts a cluster."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gasam.lab.engines.ray_worker import Mailbox, node_versions, version_difference
from gasam.lab.errors import InputError

FORWARDED = re.compile(r"GASAM_.*|(OMP|MKL|OPENBLAS)_NUM_THREADS|ONEDNN_.*|ATEN_CPU_CAPABILITY|CUBLAS_WORKSPACE_CONFIG")
"""The environment variables that every run gets: ours, and those that change its bits."""
HOW_TO_START = "start one with `ray start --head`, and on other machines `ray start --address=HOST:6379`"
PATIENCE = 120.0
"""Seconds to wait for the first answer of a node."""


@contextmanager
def connection(where: str) -> Iterator[None]:
    """Connect to a running cluster: `auto` for the one on this machine, HOST:PORT, or ray://HOST:PORT."""
    address = _found_on_this_machine() if where == "auto" else where
    _check_answers(address)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    variables = {name: value for name, value in os.environ.items() if FORWARDED.fullmatch(name)}
    try:
        ray.init(
            address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": variables},
        )
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


def nodes_for(cpus: float, gpus: float) -> list[dict[str, Any]]:
    """The nodes that are large enough for a run."""
    return [
        node for node in _alive() if node["Resources"].get("CPU", 0) >= cpus and node["Resources"].get("GPU", 0) >= gpus
    ]


def check_nodes(cpus: float, gpus: float) -> None:
    """Raise if no node is large enough, or if one has not the Python, torch and gasam of this process.

    The nodes answer at the same time.
    """
    nodes = nodes_for(cpus, gpus)
    if not nodes:
        needed = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        raise InputError(
            f"none of the cluster's {len(_alive())} nodes has {needed}: lower --cpus-per-run or --gpus-per-run, or add "
            "a node"
        )
    report = ray.remote(num_cpus=0, max_retries=0)(_reporter())
    asked = {report.options(scheduling_strategy=on_node(node["NodeID"])).remote(): node for node in nodes}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=PATIENCE)
    for answer, node in asked.items():
        place = f"node {node['NodeManagerAddress']} of the cluster"
        if answer not in answered:
            raise InputError(f"{place} did not answer within {PATIENCE:g} seconds: check it with `ray status`")
        _check_versions(place, answer)


def _check_versions(place: str, answer: Any) -> None:
    try:
        versions = ray.get(answer)
    except ray.exceptions.RayError as error:
        raise InputError(f"{place} cannot run gasam: {str(error).strip().splitlines()[-1]}") from None
    if "missing" in versions:
        raise InputError(f"{place} has no package {versions['missing']}: run `pip install 'gasam[ray]'` there")
    difference = version_difference(node_versions(), versions)
    if difference:
        raise InputError(f"{place} {difference}")


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def new_mailbox(waiting: int) -> Any:
    """A mailbox on the node of this process, where `waiting` calls may wait. It ends with the connection."""
    actor: Any = ray.remote(Mailbox)
    here = on_node(ray.get_runtime_context().get_node_id())
    return actor.options(num_cpus=0, max_concurrency=waiting, scheduling_strategy=here).remote()


def on_node(node: str) -> Any:
    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _reporter() -> Callable[[], Mapping[str, str | None]]:
    """A function that a node can call without gasam, because Ray sends its code and not its name."""

    def report() -> Mapping[str, str | None]:
        import platform

        try:
            from gasam.lab.engines.ray_worker import node_versions
        except ModuleNotFoundError as error:
            return {"Python": ".".join(platform.python_version_tuple()[:2]), "missing": error.name}
        return node_versions()

    return report
