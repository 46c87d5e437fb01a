"""A Ray cluster of three nodes on this machine, in a process of its own: `python ray_nodes.py INFO [CLIENT_PORT]`.

The head has no CPU, so that runs are on the other two. The cluster ends when its standard
input ends, so it never outlives the process that started it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

SOURCE = str(Path(__file__).parents[2] / "src")


@dataclass
class Nodes:
    """A running cluster: its address, the processes of its nodes, and its folder."""

    address: str
    raylets: list[int]
    folder: str
    port: int = 0

    def kill_a_busy_one(self):
        """Kill a node that executes a run, as a power cut would. Between two runs no node is busy."""
        while not any(map(killed_if_busy, self.raylets)):
            time.sleep(0.05)


def killed_if_busy(raylet):
    with suppress(psutil.NoSuchProcess):
        node = psutil.Process(raylet)
        workers = [each for each in node.children() if "execute" in " ".join(each.cmdline())]
        for process in (node, *workers) if workers else ():
            process.kill()
        return bool(workers)
    return False


class Cluster:
    """Starts the cluster, and stops it with all its processes."""

    def __init__(self, info, *client_port):
        self.folder = tempfile.mkdtemp(prefix="gr-", dir="/tmp")  # short, because it is part of the names of sockets
        self.info = info
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(info), *map(str, client_port)],
            stdin=subprocess.PIPE,
            # Ray would give its processes a low priority.
            env=os.environ | {"RAY_TMPDIR": self.folder, "PYTHONPATH": SOURCE, "RAY_worker_niceness": "0"},
        )

    def wait(self):
        while not self.info.exists():
            assert self.process.poll() is None, "the cluster did not start"
            time.sleep(0.1)

    def stop(self):
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.stdin.close()
        self.process.wait(timeout=120)
        _, left = psutil.wait_procs(started, timeout=120)
        for process in left:
            process.kill()
        subprocess.run(["rm", "-rf", self.folder], check=True)
        self.info.unlink(missing_ok=True)
        assert not [process for process in left if "raylet" in process.name() or "gcs_server" in process.name()]


def read(info):
    return Nodes(**json.loads(info.read_text()))


def main(info, client_port=None):
    from ray.cluster_utils import Cluster as Raylets

    store = {"object_store_memory": 100 * 2**20}
    head = {"num_cpus": 0, "include_dashboard": False, "ray_client_server_port": client_port, **store}
    cluster = Raylets(initialize_head=True, head_node_args=head)
    try:
        nodes = [cluster.add_node(num_cpus=1, wait=False, **store) for _ in range(2)]
        cluster.wait_for_nodes()
        raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
        found = Nodes(cluster.address, raylets, os.environ["RAY_TMPDIR"])
        partial = info.with_suffix(".partial")
        partial.write_text(json.dumps(vars(found)))
        partial.replace(info)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
