"""Timing on a noisy machine: candidates interleaved in one process, medians of many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from torch import Tensor


class Timed:
    """A loss function and its backward, with the seconds spent in them."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self.function = function
        self.seconds = 0.0

    def loss(self) -> Tensor:
        start = time.perf_counter()
        loss = self.function()
        self.seconds += time.perf_counter() - start
        return loss

    def backward(self, loss: Tensor) -> None:
        start = time.perf_counter()
        loss.backward()
        self.seconds += time.perf_counter() - start


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of each candidate in every round; the order turns round by round, so that none is always first."""
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-warm_up, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            candidates[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, over: str) -> float:
    """The median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[over], strict=True))
