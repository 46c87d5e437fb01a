"""Process groups for tests: `start` starts a script under torchrun.

As a script it runs every check of DDP, FSDP2 and the family in each process, and the first process writes what they
found: one start for all of them.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

TESTS = Path(__file__).parent.parent


def start(script: str, processes: int, *words: str, timeout: float = 240) -> subprocess.CompletedProcess:
    """Run a script of this folder under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    paths = os.pathsep.join([str(TESTS), str(TESTS / "distributed"), str(TESTS.parent)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(
        [*command, str(TESTS / "distributed" / script), *words],
        capture_output=True, text=True, check=False, timeout=timeout, env=environment,
    )  # fmt: skip


def findings(processes: int, file: Path) -> dict:
    """What the checks found, by name."""
    done = start("processes.py", processes, str(file))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(file.read_text())


def worst(value: float) -> float:
    """The largest over the processes."""
    values = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.item()


def bits_agree(tensors) -> bool:
    """Whether these tensors have the same bits in all processes."""
    mine = hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()
    all_of_them = [""] * dist.get_world_size()
    dist.all_gather_object(all_of_them, mine)
    return len(set(all_of_them)) == 1


def refusal(action) -> str:
    """What an error says."""
    try:
        action()
    except (RuntimeError, TypeError) as refused:
        return str(refused)
    return ""


def mean(tensor: torch.Tensor) -> None:
    """Over the processes, in place; gloo has no such reduction."""
    dist.all_reduce(tensor)
    tensor.div_(dist.get_world_size())


class Counting(TorchDispatchMode):
    """Counts all-reduces; torch's own CommDebugMode does not survive FSDP."""

    def __init__(self) -> None:
        super().__init__()
        self.all_reduces = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.all_reduces += "all_reduce" in str(func) or "allreduce" in str(func)
        return func(*args, **(kwargs or {}))


def main(file: str) -> None:
    import ddp_checks
    import family_checks
    import fsdp_checks

    dist.init_process_group("gloo")
    checks = ddp_checks.CHECKS | fsdp_checks.CHECKS | family_checks.CHECKS
    if dist.get_world_size() == 4:
        checks = fsdp_checks.CHECKS_OF_FOUR | ddp_checks.CHECKS
    torch.manual_seed(0)
    found = {name: check() for name, check in checks.items()}
    if dist.get_rank() == 0:
        Path(file).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
