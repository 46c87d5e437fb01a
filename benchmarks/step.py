"""Overhead: a GA-SAM step against two forward and backward passes and the base step, on the paper's models."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from benchmarks.measure import Timed, interleaved, ratio
from benchmarks.models import MODELS
from gasam import SharpBackward, ga_sam


def overhead(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    timed = Timed(model.loss)
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
