"""What SharpBackward adds to its passes, compared with another library's SAM."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from pytorch_optimizer import SAM
from torch import Tensor, nn

from benchmarks.measure import Timed
from gasam import Perturbation, SharpBackward, asam, ga_sam, sam

# glibc's allocator returns large buffers to the system and asks for them again, until a program has freed some. With
# these settings it keeps them, as it does in a long training run.
ALLOCATORS = {
    "as it is": {},
    "keeps its memory": {"MALLOC_MMAP_THRESHOLD_": "100000000", "MALLOC_TRIM_THRESHOLD_": "10000000000"},
}
PEERS = (("sam", "SAM"), ("ga_sam", "SAM"), ("asam", "adaptive"), ("recommended", "adaptive"))
"""Each walk with the form of pytorch_optimizer's SAM that reads as much: the adaptive one also reads the weights."""
SHAPES = {
    "1,000 tensors of 1,000": (1_000, 1_000),
    "200 tensors of 50,000": (200, 50_000),
    "10 tensors of 3 million": (10, 3_000_000),
}


class Given(torch.autograd.Function):
    """A loss whose gradient is given: passes that cost as little as possible."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.ones(())

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (None, *(gradient.clone() for gradient in ctx.gradients))


class Passes(Timed):
    """Parameters, and passes over them that give random gradients."""

    def __init__(self, tensors: int, size: int) -> None:
        self.parameters = [nn.Parameter(torch.randn(size)) for _ in range(tensors)]
        gradients = [torch.randn_like(parameter) for parameter in self.parameters]
        super().__init__(lambda: Given.apply(gradients, *self.parameters))

    def clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        self.seconds = 0.0


def ours(passes: Passes, perturbation: Perturbation) -> Callable[[], float]:
    """Seconds of a whole call of SharpBackward, minus its two passes."""
    sharp = SharpBackward(passes.parameters, perturbation, backward=passes.backward)

    def call() -> float:
        passes.clear()
        start = time.perf_counter()
        sharp(passes.loss)
        return time.perf_counter() - start - passes.seconds

    return call


def theirs(passes: Passes, adaptive: bool) -> Callable[[], float]:
    """Seconds of first_step and second_step. The base step is left out, because it is the same for both libraries."""
    optimizer = SAM(passes.parameters, torch.optim.SGD, adaptive=adaptive, lr=0.0)
    optimizer.base_optimizer.step = lambda: None

    def call() -> float:
        seconds = 0.0
        for step in (optimizer.first_step, optimizer.second_step):
            passes.clear()
            passes.backward(passes.loss())
            start = time.perf_counter()
            step()
            seconds += time.perf_counter() - start
        return seconds

    return call


def compare(tensors: int, size: int, rounds: int) -> dict[str, Any]:
    passes = Passes(tensors, size)
    candidates = {
        "pytorch_optimizer SAM": theirs(passes, adaptive=False),
        "sam": ours(passes, sam(0.05)),
        "ga_sam": ours(passes, ga_sam(1e-4)),
        "pytorch_optimizer adaptive": theirs(passes, adaptive=True),
        "asam": ours(passes, asam(0.5)),
        "recommended": ours(passes, ga_sam(budget=0.1, cap=0.01)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(-2, rounds):
        for name, call in candidates.items():
            own = call()
            if turn >= 0:
                seconds[name].append(own)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    found: dict[str, Any] = {f"{name}, ms": 1e3 * median for name, median in medians.items()}
    for name, peer in PEERS:
        found[f"{name}: times faster"] = medians[f"pytorch_optimizer {peer}"] / medians[name]
    return found


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
