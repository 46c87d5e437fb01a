"""How long a step of each method takes compared with the baseline's: measured in one process, in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from gasam.experiments.checkpoints import Checkpoints
from gasam.experiments.compare import cores
from gasam.experiments.plan import Plan
from gasam.experiments.train import Training

ROUNDS, SECONDS = 15, 20.0
"""A measurement ends after that many rounds, or after that many seconds and at least three rounds."""


def step_times(plans: Sequence[Plan], parallel: int = 1, *, cpu: bool = False) -> dict[str, float]:
    """The median time of a step over that of plain training, by configuration; nothing without a baseline.

    All methods train side by side, a few steps each in turn, so that other programs on the machine slow all of them
    alike. The walk has its full strength. A method that walks on every n-th step is measured over n steps.

    Args:
        plans: What was compared; one seed of each configuration is enough.
        parallel: How many runs at a time there were: this process uses as many threads as each of them.
        cpu: Do not use an accelerator.
    """
    single = {plan.key: plan for plan in reversed(plans)}
    baselines = [each for each, plan in single.items() if plan.choice.moved == "nothing"]
    if len(single) < 2 or not baselines:
        return {}
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, cores() // parallel))
    try:
        seconds = _measured({each: _training(plan, cpu) for each, plan in single.items()})
    finally:
        torch.set_num_threads(before)
    plain = statistics.median(seconds[baselines[-1]])
    return {each: statistics.median(found) / plain for each, found in seconds.items()}


def _training(plan: Plan, cpu: bool) -> Training:
    """At full strength from the first step; nothing is written."""
    choice = replace(plan.choice, walk_progress=None, walk_start=0, walk_warmup=0, start_epoch=1)
    family = plan.family(plan.data())
    return Training(
        replace(plan, choice=choice), family, Checkpoints(Path("unused")), lambda update: None, Accelerator(cpu=cpu)
    )


def _measured(trainings: Mapping[str, Training]) -> dict[str, list[float]]:
    """The seconds of a step in each round; the first round is not counted."""
    steps = math.lcm(*(training.choice.walk_every for training in trainings.values()))
    batches = {}
    for name, training in trainings.items():
        every = training.family.batches(torch.Generator().manual_seed(0))
        batches[name] = [every[number % len(every)] for number in range(steps)]
        training.model.train()
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    begun = time.perf_counter()
    for count in range(ROUNDS + 1):
        for name, training in trainings.items():
            training.carried = None
            start = time.perf_counter()
            for batch in batches[name]:
                training.train_step(batch)
                training.progress.step += 1
            training.loss.item()  # wait for the device
            if count:
                seconds[name].append((time.perf_counter() - start) / steps)
        if count >= 3 and time.perf_counter() - begun > SECONDS:
            break
    return seconds
