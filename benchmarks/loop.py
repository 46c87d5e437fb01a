"""The experiments' training loop against a bare one: the same model, method, batches and draws, step by step."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from benchmarks.measure import interleaved, ratio
from gasam import Perturbation, SharpBackward
from gasam.lab.families.family import Family
from gasam.lab.storage import Checkpoints
from gasam.lab.training.loop import Training, optimizer_for
from gasam.lab.training.plan import Plan, make

TASKS = {"docstrings": "TextCNN", "pydoc": "LSTM", "numerals": "Transformer"}
STEPS = 5


def bare(plan: Plan, family: Family[Any], batches: list[Any]) -> Callable[[], None]:
    """What a user would write: no checkpoints, no seeds, no processes; the rate stays as it is."""
    model = family.model()
    optimizer = optimizer_for(model, plan.settings)
    choice = plan.choice
    walk = Perturbation(epsilon=choice.epsilon, norm=choice.norm, steps=choice.steps)
    sharp = SharpBackward(model.parameters(), walk)
    turn = itertools.cycle(batches)
    carried = None

    def steps() -> None:
        nonlocal carried
        for _ in range(STEPS):
            batch = family.batch(next(turn))
            optimizer.zero_grad()
            _, carried = sharp(partial(family.loss, model, batch, carried))
            if plan.settings.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), plan.settings.clip)
            optimizer.step()

    return steps


def ours(plan: Plan, family: Family[Any], batches: list[Any], folder: Path) -> Callable[[], None]:
    training = Training(plan, family, Checkpoints(folder), print, Accelerator(cpu=True))
    turn = itertools.cycle(batches)

    def steps() -> None:
        for _ in range(STEPS):
            training.train_step(next(turn))

    return steps


def overhead(task: str, rounds: int) -> dict[str, float]:
    plan = make(task, "ga-sam", walk={"start_epoch": 1, "steps": 1, "epsilon": 1e-6})
    family = plan.family(plan.data())
    # One batch for all steps: what is compared must not differ by the length of its sentences.
    batches = [family.batches(torch.Generator().manual_seed(0))[0]]
    with tempfile.TemporaryDirectory() as folder:
        candidates = {
            "bare": bare(plan, family, batches),
            "again": bare(plan, family, batches),
            "loop": ours(plan, family, batches, Path(folder)),
        }
        seconds = interleaved(candidates, rounds)
    return {
        "bare step, ms": 1e3 * sorted(seconds["bare"])[rounds // 2] / STEPS,
        "the loop over it": ratio(seconds, "loop", "bare"),
        "the same against itself": ratio(seconds, "again", "bare"),
    }


def run(rounds: int) -> dict[str, Any]:
    return {model: overhead(task, rounds) for task, model in TASKS.items()}
