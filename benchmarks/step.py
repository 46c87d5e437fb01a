"""The cost of a step on the paper's models: two passes and one step of Adam, and what a walk adds to them."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.measure import MODELS, Timed, interleaved, ratio
from gasam import Schedule, SharpBackward, ga_sam


def overhead(name: str, rounds: int) -> dict[str, Any]:
    """The paper's walk, the recommended one at full strength, and a walk on every fourth step."""
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    timed = Timed(model.loss)
    guarded = SharpBackward(
        model, ga_sam(budget=1e-4, cap=0.01), schedule=Schedule(progress=0.2), backward=timed.backward
    )
    guarded.load_state_dict(guarded.state_dict() | {"initial": 1e6})  # far above the loss: full strength
    walks = {
        "GA-SAM": SharpBackward(model.parameters(), ga_sam(1e-6), backward=timed.backward),
        "guarded": guarded,
    }
    fourth = SharpBackward(model.parameters(), ga_sam(1e-6), schedule=Schedule(every=4), backward=timed.backward)
    own: dict[str, list[float]] = {name: [] for name in walks}

    def passes(count: int) -> None:
        optimizer.zero_grad()
        for _ in range(count):
            model.loss().backward()
        optimizer.step()

    def sharp_step(form: str, sharp: SharpBackward) -> None:
        optimizer.zero_grad()
        timed.seconds = 0.0
        start = time.perf_counter()
        sharp(timed.loss)
        own[form].append(time.perf_counter() - start - timed.seconds)
        optimizer.step()

    def four_steps() -> None:
        for _ in range(4):
            optimizer.zero_grad()
            fourth(timed.loss)
            optimizer.step()

    steps = {form: partial(sharp_step, form, sharp) for form, sharp in walks.items()}
    twice = {"two passes": partial(passes, 2), "again": partial(passes, 2)}
    seconds = interleaved(twice | {"one pass": partial(passes, 1), "four steps": four_steps, **steps}, rounds)
    two_passes = statistics.median(seconds["two passes"] + seconds["again"])
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        "two passes and a step, s": two_passes,
        "GA-SAM over it": ratio(seconds, "GA-SAM", "two passes"),
        "the same against itself": ratio(seconds, "again", "two passes"),
        "1 + own time over it": 1 + statistics.median(own["GA-SAM"][-rounds:]) / two_passes,
        "1 + own time with budget, cap and schedule": 1 + statistics.median(own["guarded"][-rounds:]) / two_passes,
        "every fourth step over one pass": ratio(seconds, "four steps", "one pass") / 4,
    }


def run(rounds: int) -> dict[str, Any]:
    return {name: overhead(name, rounds) for name in MODELS}
