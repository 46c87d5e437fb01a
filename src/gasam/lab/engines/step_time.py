"""How long a step of each method takes compared with the baseline's: measured in one process, in turn."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator

from gasam.lab.engines.local import Job, threads_of_a_run
from gasam.lab.families.encoded import Encoded
from gasam.lab.training.checkpoints import Checkpoints
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import Plan
from gasam.lab.training.progress import nobody

ROUNDS, SECONDS = 15, 20.0
"""A measurement ends after that many rounds, or after that many seconds and at least one round."""
STEPS = 4
"""Steps of a round, at least: batches may differ in length."""


def mean_step_times(jobs: Iterable[Job], parallel: int = 1, *, cpu: bool = False) -> dict[str, float]:
    """The time of a step over that of plain training, averaged over a run: some steps may not walk."""
    done = [job for job in jobs if job.record is not None]
    times = step_times([job.plan for job in done], parallel, cpu=cpu)
    return {job.plan.key: 1 + _share_of_walks(job) * (times[job.plan.key] - 1) for job in done if job.plan.key in times}


def _share_of_walks(job: Job) -> float:
    """Of the walks that a run at full strength from the first step would have; 1 for plain training."""
    record, most = job.record, job.plan.choice.passes(job.plan.settings.epochs)
    if most == 1 or record is None or not record.updates:
        return 1.0
    return float((record.gradient_evaluations / record.updates - 1) / (most - 1))


def step_times(plans: Sequence[Plan], parallel: int = 1, *, cpu: bool = False) -> dict[str, float]:
    """The median time of a step over that of plain training, by configuration; nothing without a baseline.

    All methods train side by side, a few steps each in turn, so that other programs on the machine slow all of them
    alike. The walk has its full strength. A method that walks on every n-th step is measured over n steps or more.

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
    torch.set_num_threads(threads_of_a_run(parallel))
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the walks of the runs themselves were watched
            seconds = _measured(_trainings(single, cpu))
    finally:
        torch.set_num_threads(before)
    plain = statistics.median(seconds[baselines[-1]])
    return {each: statistics.median(found) / plain for each, found in seconds.items()}


def _trainings(plans: Mapping[str, Plan], cpu: bool) -> dict[str, Training]:
    """At full strength from the first step; nothing is written."""
    data: dict[object, Encoded] = {}
    found = {}
    for name, plan in plans.items():
        choice = replace(plan.choice, walk_progress=None, walk_start=0, walk_warmup=0, start_epoch=1)
        if plan.data_key not in data:
            data[plan.data_key] = plan.data()
        family, unused = plan.family(data[plan.data_key]), Checkpoints(Path("unused"))
        found[name] = Training(replace(plan, choice=choice), family, unused, nobody, Accelerator(cpu=cpu))
        found[name].model.train()
    return found


def _measured(trainings: Mapping[str, Training]) -> dict[str, list[float]]:
    """The seconds of a step in each round; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    begun = time.perf_counter()
    for count in range(ROUNDS + 1):
        for name, training in trainings.items():
            every = training.choice.walk_every
            steps = every * -(-STEPS // every)
            batches = training.family.batches(torch.Generator().manual_seed(0))
            training.carried = None
            start = time.perf_counter()
            for number in range(steps):
                training.train_step(batches[number % len(batches)])
                training.progress.step += 1
            training.loss.item()  # wait for the device
            if count:
                seconds[name].append((time.perf_counter() - start) / steps)
        if count and time.perf_counter() - begun > SECONDS:
            break
    return seconds
