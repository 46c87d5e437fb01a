"""Overhead: a GA-SAM step against two forward and backward passes and the base step, on the paper's models.

Measured for the paper's form, and for a walk with a budget, a cap and a schedule at full strength.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.measure import Timed, interleaved, ratio
from benchmarks.models import MODELS
from gasam import Schedule, SharpBackward, ga_sam


def forms(model: torch.nn.Module, timed: Timed) -> dict[str, SharpBackward]:
    guarded = SharpBackward(
        model, ga_sam(budget=1e-4, cap=0.01), schedule=Schedule(progress=0.2), backward=timed.backward
    )
    guarded.load_state_dict(guarded.state_dict() | {"initial": 1e6})  # far above the loss: full strength
    return {
        "GA-SAM": SharpBackward(model.parameters(), ga_sam(1e-6), backward=timed.backward),
        "guarded": guarded,
    }


def overhead(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    timed = Timed(model.loss)
    own: dict[str, list[float]] = {name: [] for name in ("GA-SAM", "guarded")}

    def two_passes() -> None:
        optimizer.zero_grad()
        for _ in range(2):
            model.loss().backward()
        optimizer.step()

    def sharp_step(form: str, sharp: SharpBackward) -> None:
        optimizer.zero_grad()
        timed.seconds = 0.0
        start = time.perf_counter()
        sharp(timed.loss)
        own[form].append(time.perf_counter() - start - timed.seconds)
        optimizer.step()

    steps = {form: partial(sharp_step, form, sharp) for form, sharp in forms(model, timed).items()}
    seconds = interleaved({"two passes": two_passes, "again": two_passes, **steps}, rounds)
    plain = statistics.median(seconds["two passes"] + seconds["again"])
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        "two passes and a step, s": plain,
        "GA-SAM over it": ratio(seconds, "GA-SAM", "two passes"),
        "the same against itself": ratio(seconds, "again", "two passes"),
        "1 + own time over it": 1 + statistics.median(own["GA-SAM"][-rounds:]) / plain,
        "1 + own time with budget, cap and schedule": 1 + statistics.median(own["guarded"][-rounds:]) / plain,
    }


def run(rounds: int) -> dict[str, Any]:
    return {name: overhead(name, rounds) for name in MODELS}
