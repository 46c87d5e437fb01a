"""Killed workers, nodes and drivers of a real Ray cluster of three nodes on this machine.

Each kill comes when the run has written a checkpoint. Then the same command is run again, and the record and the model
must have the same SHA-256 as those of an undisturbed run without a cluster, times aside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.faults.forked import CRASHED, digests

ROOT = Path(__file__).parents[2]
ORDERS = {
    "full": ("worker killed", "driver killed", "worker killed", "driver killed", "node killed"),
    "sample": ("driver killed",),
}
"""A node is killed last, because the cluster has two nodes that can run anything."""
TRIES = 3
"""A command that was disturbed must be finished after this many tries without a fault."""
RUN = ("compare", "digits", "--size", "tiny", "--cpu", "--methods", "ga-sam", "--epochs", "80")
PATIENCE = 600.0
"""Seconds until a command hangs."""


def machinery() -> Any:
    """The module that starts a cluster, which the tests share."""
    spec = spec_from_file_location("ray_nodes", ROOT / "tests" / "lab" / "ray_nodes.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["ray_nodes"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Driver:
    """The command on a cluster, or on this machine alone, as a process."""

    def __init__(self, out: Path, nodes: Any = None) -> None:
        self.out = out
        words = [sys.executable, "-m", "gasam", *RUN, "--out", str(out)]
        environment = dict(os.environ)
        if nodes is not None:
            words += ["--on", nodes.address]
            environment["RAY_TMPDIR"] = nodes.folder
        self.log = out.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, env=environment)

    def wait_for_checkpoint(self) -> None:
        until = time.monotonic() + PATIENCE
        while not any(self.out.glob("*/last.pt")):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the command wrote no checkpoint: {self.text()}")
            time.sleep(0.02)

    def ended(self) -> tuple[int, str]:
        """The exit code and the output. A command that hangs is killed, and counts as crashed."""
        try:
            return self.process.wait(PATIENCE), self.text()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return CRASHED, f"the command hangs:\n{self.text()}"

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()


def kill_worker(driver: Driver, nodes: Any) -> None:
    """Kill the process that executes the run, but not its node."""
    for raylet in nodes.raylets:
        with suppress(psutil.NoSuchProcess):
            for worker in psutil.Process(raylet).children():
                if "execute" in " ".join(worker.cmdline()):
                    worker.kill()


def kill_node(driver: Driver, nodes: Any) -> None:
    nodes.kill_a_busy_one()


def kill_driver(driver: Driver, nodes: Any) -> None:
    driver.process.kill()


KILLS: dict[str, tuple[Callable[[Driver, Any], None], tuple[int, ...]]] = {
    "worker killed": (kill_worker, (0, 1)),
    "driver killed": (kill_driver, (-signal.SIGKILL,)),
    "node killed": (kill_node, (0, 1)),
}
"""What kills, and the exit codes that the command may then have."""


def results(out: Path) -> dict[str, str]:
    """The SHA-256 of the record and of the run's files; the tables of a comparison have times in their text."""
    return {name: digest for name, digest in digests(out).items() if not name.startswith("tables/")}


def judged(kind: str, out: Path, nodes: Any, pause: float, expected: dict[str, str]) -> list[str]:
    """Kill, run the same command again, and return what is wrong."""
    kill, codes = KILLS[kind]
    driver = Driver(out, nodes)
    driver.wait_for_checkpoint()
    time.sleep(pause)
    kill(driver, nodes)
    code, text = driver.ended()
    wrong = [] if code in codes else [f"ended with code {code}: {text[-300:]}"]
    wrong += ["printed a traceback"] if "Traceback" in text else []
    tries = 0
    while code and tries < TRIES:
        code, text = Driver(out, nodes).ended()
        tries += 1
    found = results(out)
    names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return wrong + ([f"code {code}, other files: {', '.join(names)}"] if code or names else [])


def campaign(seed: int = 0, size: str = "full", jobs: int = 1) -> dict[str, Any]:
    """Kill workers, drivers and nodes; `jobs` has no effect, because all of them use one cluster."""
    random, begun = Random(seed), time.monotonic()
    kinds, lost = Counter[str](), list[str]()
    ray_nodes = machinery()
    with tempfile.TemporaryDirectory(prefix="gasam-cluster-") as place:
        folder = Path(place)
        os.environ["GASAM_CACHE"] = str(folder / "cache")
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # the machine may be busy
        alone = Driver(folder / "alone")
        if alone.ended()[0]:
            raise RuntimeError(f"the command fails without a fault: {alone.text()}")
        expected = results(alone.out)
        cluster = ray_nodes.Cluster(folder / "cluster.info")
        try:
            cluster.wait()
            nodes = ray_nodes.read(cluster.info)
            for number, kind in enumerate(ORDERS[size]):
                wrong = judged(kind, folder / f"out-{number}", nodes, random.random() / 4, expected)
                kinds[kind] += 1
                lost += [f"{kind} {number}: {each}" for each in wrong]
                print(f"{kind}: {wrong or 'nothing lost'}", file=sys.stderr, flush=True)
        finally:
            cluster.stop()
    seconds = round(time.monotonic() - begun)
    return {"seed": seed, "faults": kinds.total(), "kinds": dict(kinds), "lost": lost, "seconds": seconds}
