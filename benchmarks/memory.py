"""Peak memory over plain training, each case in a process of its own, in sizes of the parameters."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gasam import MovingAverage, Perturbation, SharpBackward, SharpnessAware
from gasam.family.random_offsets import RandomDirection

LAYERS, WIDTH = 64, 1000
BYTES = 4 * LAYERS * WIDTH * (WIDTH + 1)
CASES: dict[str, dict[str, Any]] = {
    "K = 1": {},
    "K = 3, final risk": {"steps": 3, "risk": "final"},
    "K = 3, mean risk": {"steps": 3},
    "K = 1, added to gradients that are there": {},
    "K = 1, through a closure": {},
    "one pass, random offsets": {"risk": "final", "scale": "weight_rms", "method": RandomDirection(0)},
    "one pass, moving average": {"method": MovingAverage()},
}


def train(case: str, plain: bool, steps: int) -> int:
    """The peak of this process's resident memory, in bytes."""
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    x = torch.randn(4, WIDTH)

    def loss() -> Tensor:
        return model(x).square().mean()

    base = torch.optim.SGD(model.parameters(), lr=1e-3)
    perturbation = Perturbation(epsilon=0.0 if plain else 1e-4, **CASES[case])
    sharp, optimizer = SharpBackward(model.parameters(), perturbation), SharpnessAware(base, perturbation)

    def closure() -> Tensor:
        value = loss()
        value.backward()
        return value

    for _ in range(steps):
        if "closure" in case:
            optimizer.step(closure)
        else:
            base.zero_grad(set_to_none="added" not in case)
            sharp(loss)
            base.step()
    # Not ru_maxrss: a child inherits the peak of the process that started it.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1))  # type: ignore[union-attr]


def in_a_process(case: str, plain: bool, steps: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", case, str(int(plain)), str(steps)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run(steps: int = 4) -> dict[str, float]:
    """For each case (peak with a walk minus peak without) / size of the parameters.

    Each peak is the smallest of three: the allocator sometimes keeps freed memory.
    """

    def peak(case: str, plain: bool) -> int:
        return min(in_a_process(case, plain, steps) for _ in range(3))

    return {case: (peak(case, False) - peak(case, True)) / BYTES for case in CASES}


if __name__ == "__main__":
    print(train(sys.argv[1], bool(int(sys.argv[2])), int(sys.argv[3])))
