"""The time of a training step of each method relative to plain training: the last job of a comparison."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from accelerate import Accelerator

from gasam.lab.engines.engine import Engine, Job, do_all
from gasam.lab.storage import Checkpoints
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import Plan

ROUNDS, SECONDS = 15, 20.0
"""The measurement ends after this many rounds, or after this many seconds and at least one round."""
STEPS = 4
"""The minimum number of steps in a round; more than one, because batches may differ in length."""
AT_ONCE = {"walk_progress": None, "walk_start": 0, "walk_warmup": 0, "start_epoch": 1}
"""Options of a walk at full strength from the first step."""


def step_times(engine: Engine, jobs: Sequence[Job], *, cpu: bool = False) -> dict[str, float]:
    """The mean time of a step over a whole run, including steps without a walk, relative to plain training.

    It is measured by the engine that trained the runs, so with as many threads, in a process of its own. The times are
    by the key of each configuration; there are none without plain training or without another configuration. Raises
    `RuntimeError` if the measurement fails.
    """
    done = {job.record.key: job for job in reversed(jobs) if job.record is not None}
    plans = {key: job.plan for key, job in done.items()}
    plain = next((key for key, plan in plans.items() if plan.walk.moved == "nothing"), None)
    if plain is None or len(plans) == 1:
        return {}
    measurement = Job(jobs[0].plan, "step-times", data=jobs[0].data, exclusive=False)
    with tempfile.TemporaryDirectory() as folder:
        work = partial(_measure, plans=plans, rounds=ROUNDS, cpu=cpu)
        do_all([measurement], Path(folder), engine, lambda job, event: None, work)
    if measurement.record is None:
        raise RuntimeError(measurement.error)
    seconds: dict[str, float] = measurement.record
    return {key: 1 + _share_of_walks(job) * (seconds[key] / seconds[plain] - 1) for key, job in done.items()}


def _share_of_walks(job: Job) -> float:
    """The share of steps with a walk, relative to walking at full strength from the start; 1 for plain training."""
    most = job.plan.walk.passes(job.plan.settings.epochs)
    if most == 1 or not job.record.updates:
        return 1.0
    return float((job.record.gradient_evaluations / job.record.updates - 1) / (most - 1))


def _measure(job: Job, folder: Path, _: Any, *, plans: Mapping[str, Plan], rounds: int, cpu: bool) -> dict[str, float]:
    """The median seconds of a step of each plan at full strength.

    The plans take turns, a few steps each, so that other programs on the machine slow all of them equally.
    """
    data = job.plan.data() if job.data is None else job.data
    trainings = {}
    for key, plan in plans.items():
        at_once = replace(plan, walk=plan.walk.model_copy(update=AT_ONCE))
        trainings[key] = Training(at_once, data, Checkpoints(folder), Accelerator(cpu=cpu))
        trainings[key].model.train()
    seconds: dict[str, list[float]] = {key: [] for key in trainings}
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the runs themselves have already given these warnings
        for count in range(rounds + 1):
            for key, training in trainings.items():
                taken = _seconds_per_step(training)
                if count:  # the first round is a warm-up
                    seconds[key].append(taken)
            if count and time.perf_counter() - begun > SECONDS:
                break
    return {key: median(each) for key, each in seconds.items()}


def _seconds_per_step(training: Training) -> float:
    every = training.plan.walk.every  # a method that walks on every n-th step is measured over at least n steps
    steps = every * -(-STEPS // every)
    batches = training.family.batches(torch.Generator().manual_seed(0))
    training.carried = None
    start = time.perf_counter()
    for number in range(steps):
        training.train_step(batches[number % len(batches)])
        training.progress.step += 1
    training.loss.item()  # wait for the device
    return (time.perf_counter() - start) / steps
