"""DDP, FSDP2 and the family in several processes: pytest runs the files `*_checks.py` under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(processes: int, *words: str) -> str:
    """What these words print under torchrun, which ends all processes when one fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_checks_hold_in_every_process(processes):
    """With four processes some shards are empty, and shards have replicas."""
    files = map(str, sorted(HERE.glob("*_checks.py")))
    run(processes, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", *files)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_example_runs_in_two_processes(name):
    """Each under a torchrun of its own: two groups one after the other in one process may wait for each other."""
    printed = run(2, str(HERE.parents[1] / "examples" / f"{name}.py"))
    for worker in range(2):
        assert printed.count(f"worker {worker}: fine") == 1
