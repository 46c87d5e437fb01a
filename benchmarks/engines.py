"""The cost of Ray: the same runs by both engines on the same two cores, in turns.

Wall time depends on what else the machine does, so the CPU time of all processes involved is measured as well. The
start of Ray and the connection to it are left out. Use: `python -m benchmarks.engines --epochs 60 --rounds 3`
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from gasam.lab.engines.choice import engine
from gasam.lab.engines.execution import Engine, run_all
from gasam.lab.engines.jobs import prepare
from gasam.lab.training.plan import make

PARALLEL = 2


class CpuTime:
    """The CPU time of this process and of all below it, sampled, because nobody waits for Ray's processes."""

    def __init__(self) -> None:
        self.latest: dict[int, float] = {}
        self.ended = threading.Event()
        self.sampling = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> CpuTime:
        self._look()
        self.before = sum(self.latest.values())
        self.sampling.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
        self.sampling.join()
        self.seconds = sum(self.latest.values()) - self.before

    def _sample(self) -> None:
        while not self.ended.wait(0.2):
            self._look()

    def _look(self) -> None:
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                self.latest[process.pid] = sum(process.cpu_times()[:2])


def measured(opened: Engine, runs: int, epochs: int, size: str) -> dict[str, float]:
    plans = [make("docstrings", "ga-sam", size, seed, settings={"epochs": epochs}) for seed in range(1, runs + 1)]
    with tempfile.TemporaryDirectory() as folder:
        jobs = prepare(plans, Path(folder))
        begun = time.perf_counter()
        with CpuTime() as cpu:
            run_all(jobs, Path(folder), opened, lambda job, event: None, cpu=True)
        wall = time.perf_counter() - begun
        assert all(job.record is not None for job in jobs)
        return {"wall": wall, "cpu": cpu.seconds, "training": median(job.record.seconds for job in jobs)}


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    from ray.cluster_utils import Cluster

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60, help="choose them so that a run takes 30 seconds or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--size", default="small")
    given = parser.parse_args()
    node = {"num_cpus": PARALLEL, "include_dashboard": False, "object_store_memory": 200 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    found: dict[str, list[dict[str, Any]]] = {"local": [], "ray": []}
    try:
        for _ in range(given.rounds):
            for where, place in (("local", "local"), ("ray", cluster.address)):
                with engine(place, parallel=PARALLEL, cpu=True) as opened:
                    found[where].append(measured(opened, given.runs, given.epochs, given.size))
                print(where, found[where][-1], flush=True)
    finally:
        cluster.shutdown()
    ratios = {
        unit: [ray[unit] / local[unit] for local, ray in zip(found["local"], found["ray"], strict=True)]
        for unit in ("wall", "cpu")
    }
    print(json.dumps({"measured": found, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
