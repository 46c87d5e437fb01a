"""Overhead: a GA-SAM step against two forward and backward passes and the base step, on the paper's models."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import interleaved, ratio
from benchmarks.models import MODELS
from gasam import SharpBackward, ga_sam


class Timed:
    """A loss function and a backward that add up the time spent in them."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.seconds = 0.0

    def loss(self) -> Tensor:
        start = time.perf_counter()
        loss = self.model.loss()
        self.seconds += time.perf_counter() - start
        return loss

    def backward(self, loss: Tensor) -> None:
        start = time.perf_counter()
        loss.backward()
        self.seconds += time.perf_counter() - start


def overhead(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    timed = Timed(model)
    sharp = SharpBackward(model.parameters(), ga_sam(1e-6), backward=timed.backward)
    own: list[float] = []

    def two_passes() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            model.loss().backward()
        optimizer.step()

    def ga_sam_step() -> None:
        optimizer.zero_grad()
        timed.seconds = 0.0
        start = time.perf_counter()
        sharp(timed.loss)
        own.append(time.perf_counter() - start - timed.seconds)
        optimizer.step()

    seconds = interleaved({"two passes": two_passes, "again": two_passes, "GA-SAM": ga_sam_step}, rounds)
    plain = statistics.median(seconds["two passes"] + seconds["again"])
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        "two passes and a step, s": plain,
        "GA-SAM over it": ratio(seconds, "GA-SAM", "two passes"),
        "the same against itself": ratio(seconds, "again", "two passes"),
        "1 + own time over it": 1 + statistics.median(own[-rounds:]) / plain,
    }


def run(rounds: int) -> dict[str, Any]:
    return {name: overhead(name, rounds) for name in MODELS}
