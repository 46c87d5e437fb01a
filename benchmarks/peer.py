"""Perturb and restore, without the passes, beside another library; and the cost against the number of weights."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from pytorch_optimizer import SAM
from torch import nn

from benchmarks.measure import interleaved, ratio
from gasam import Pass, Perturbation, asam, climb, ga_sam, sam
from gasam.weights import Weights

# glibc's allocator gives large buffers back to the system and asks for them again, until a program has freed some;
# told to keep them, it serves whoever allocates much.
ALLOCATORS = {
    "as it comes": {},
    "keeping its memory": {"MALLOC_MMAP_THRESHOLD_": "100000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"},
}
SHAPES = {"1,000 tensors of 1,000": (1_000, 1_000), "10 tensors of 3 million": (10, 3_000_000)}


def parameters(tensors: int, size: int) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(size)) for _ in range(tensors)]
    for parameter in made:
        parameter.grad = torch.randn(size)
    return made


def walk(weights: list[nn.Parameter], perturbation: Perturbation) -> Callable[[], None]:
    """Perturb and restore with the gradients that are there."""
    kept, loss = Weights(weights), torch.tensor(1.0)

    def there_and_back() -> None:
        for _ in climb(kept, lambda k: Pass(loss), perturbation):
            pass

    return there_and_back


def peer(weights: list[nn.Parameter], adaptive: bool = False) -> Callable[[], None]:
    optimizer = SAM(weights, torch.optim.SGD, adaptive=adaptive, lr=0.0)
    optimizer.base_optimizer.step = lambda: None  # the base step is the same for both

    def there_and_back() -> None:
        optimizer.first_step()
        optimizer.second_step()

    return there_and_back


def compare(tensors: int, size: int, rounds: int) -> dict[str, Any]:
    weights = parameters(tensors, size)
    candidates = {
        "pytorch_optimizer SAM": peer(weights),
        "sam": walk(weights, sam(0.05)),
        "ga_sam": walk(weights, ga_sam(1e-4)),
        "pytorch_optimizer adaptive": peer(weights, adaptive=True),
        "asam": walk(weights, asam(0.5)),
    }
    seconds = interleaved(candidates, rounds)
    found: dict[str, Any] = {f"{name}, ms": 1e3 * statistics.median(seconds[name]) for name in candidates}
    found["sam: times faster"] = ratio(seconds, "pytorch_optimizer SAM", "sam")
    found["ga_sam: times faster"] = ratio(seconds, "pytorch_optimizer SAM", "ga_sam")
    found["asam: times faster"] = ratio(seconds, "pytorch_optimizer adaptive", "asam")
    return found


def scaling(rounds: int) -> dict[str, Any]:
    """Milliseconds of a GA-SAM walk for 10^4 to 10^8 weights in ten tensors, and the slope on logarithmic axes."""
    times = {}
    for exponent in range(4, 9):
        there_and_back = walk(parameters(10, 10**exponent // 10), ga_sam(1e-4))
        times[f"10^{exponent}"] = 1e3 * statistics.median(interleaved({"walk": there_and_back}, rounds)["walk"])
    slope = math.log10(times["10^8"] / times["10^6"]) / 2
    return {"ms": times, "slope from 10^6 to 10^8": slope}


def run(rounds: int) -> dict[str, Any]:
    """Each in a process of its own: what a fresh buffer costs depends on what the process did before."""
    found: dict[str, Any] = {}
    for state, variables in ALLOCATORS.items():
        command = [sys.executable, "-m", "benchmarks.peer", str(rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | variables)
        found[state] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({name: compare(*shape, int(sys.argv[1])) for name, shape in SHAPES.items()}))
