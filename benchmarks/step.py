"""The cost of a step on the paper's models, with Adam: what a walk adds to plain training, and what it does itself."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.measure import MODELS, Timed, interleaved, ratio
from gasam import MovingAverage, SharpBackward, ga_sam, random_offsets

WALKS = {
    "2 passes": ga_sam(budget=0.1, cap=0.01),
    "1.25 passes": ga_sam(budget=0.1, cap=0.01, needs_ascent=True),
    "1 pass, average": ga_sam(budget=0.1, cap=0.01, method=MovingAverage()),
    "1 pass, random": random_offsets(0.01),
}


def overhead(name: str, rounds: int) -> dict[str, Any]:
    """Every walk at full strength in every step."""
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    timed, part = Timed(model.loss), Timed(lambda: model.loss(0.25))
    walks = {form: SharpBackward(model, walk, backward=timed.backward) for form, walk in WALKS.items()}
    own: dict[str, list[float]] = {form: [] for form in walks}

    def plain() -> None:
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()

    def walking(form: str) -> None:
        optimizer.zero_grad()
        timed.seconds = part.seconds = 0.0
        ascent = part.loss if walks[form].perturbation.needs_ascent else None
        start = time.perf_counter()
        walks[form](timed.loss, ascent=ascent)
        own[form].append(time.perf_counter() - start - timed.seconds - part.seconds)
        optimizer.step()

    candidates: dict[str, Any] = {"plain": plain, "again": plain}
    seconds = interleaved(candidates | {form: partial(walking, form) for form in walks}, rounds)
    step = statistics.median(seconds["plain"] + seconds["again"])
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        "plain step, s": step,
        "again": ratio(seconds, "again", "plain"),
        "steps": {form: ratio(seconds, form, "plain") for form in walks},
        "own time": {form: statistics.median(own[form][-rounds:]) / step for form in walks},
    }


def run(rounds: int) -> dict[str, Any]:
    return {name: overhead(name, rounds) for name in MODELS}
