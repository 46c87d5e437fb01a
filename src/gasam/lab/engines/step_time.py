"""The time of a training step of each method relative to the baseline, measured in one process."""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator

from gasam.lab.engines.execution import Engine, do_all
from gasam.lab.engines.jobs import Job
from gasam.lab.engines.local import threads_of_a_run
from gasam.lab.families.encoded import Encoded
from gasam.lab.storage import Checkpoints
from gasam.lab.training.loop import OnUpdate, Training, ignore_update
from gasam.lab.training.plan import Plan

ROUNDS, SECONDS = 15, 20.0
"""The measurement after a comparison ends after this many rounds, or after this many seconds and at least one round."""
STEPS = 4
"""The minimum number of steps in a round; more than one, because batches may differ in length."""


def mean_step_times(
    jobs: Iterable[Job], parallel: int | None = 1, *, cpu: bool = False, effort: int = 1
) -> dict[str, float]:
    """The mean time of a step over a whole run, including steps without a walk, relative to plain training.

    Args:
        jobs: The jobs that were compared; jobs without a record are ignored.
        parallel: Number of runs at a time, which sets the number of threads; None to leave it as it is.
        cpu: Use the CPU even if there is a GPU.
        effort: How many times as long to measure as after a comparison.
    """
    done = [job for job in jobs if job.record is not None]
    times = step_times([job.plan for job in done], parallel, cpu=cpu, effort=effort)
    found = {job.record.key: (job, times.get(job.plan.key(""))) for job in done}
    return {key: 1 + _share_of_walks(job) * (each - 1) for key, (job, each) in found.items() if each is not None}


def step_times_by(engine: Engine, jobs: Sequence[Job], *, cpu: bool = False) -> dict[str, float]:
    """`mean_step_times`, measured by an engine on one of its machines.

    Args:
        engine: Where to measure.
        jobs: The jobs that were compared; jobs without a record are ignored.
        cpu: Use the CPU even if there is a GPU.
    """
    if not _baselines({job.plan.key(""): job.plan for job in jobs if job.record is not None}):
        return {}
    measured = Job(jobs[0].plan, "step-times", data=jobs[0].data, exclusive=False)
    work = partial(_measure, jobs=[replace(job, data=None) for job in jobs], cpu=cpu)
    with tempfile.TemporaryDirectory() as folder:
        do_all([measured], Path(folder), engine, lambda job, event: None, work)
    if measured.error is not None:
        raise RuntimeError(measured.error)
    found: dict[str, float] = measured.record
    return found


def _measure(job: Job, folder: Path, on_update: OnUpdate, *, jobs: Sequence[Job], cpu: bool) -> dict[str, float]:
    return mean_step_times(jobs, None, cpu=cpu)


def _share_of_walks(job: Job) -> float:
    """The share of steps with a walk, relative to walking at full strength from the start; 1 for plain training."""
    record, most = job.record, job.plan.walk.passes(job.plan.settings.epochs)
    if most == 1 or record is None or not record.updates:
        return 1.0
    return float((record.gradient_evaluations / record.updates - 1) / (most - 1))


def step_times(
    plans: Sequence[Plan], parallel: int | None = 1, *, cpu: bool = False, effort: int = 1
) -> dict[str, float]:
    """The median time of a step relative to plain training, by `plan.key("")`; empty without a baseline.

    The methods take turns, a few steps each, so that other programs on the machine slow all of them equally. The walk
    has its full strength. A method that walks on every n-th step is measured over at least n steps.

    Args:
        plans: The plans that were compared; one seed of each configuration is used.
        parallel: Number of runs at a time; this process uses as many threads as each of them did. None leaves the
            number of threads as it is.
        cpu: Use the CPU even if there is a GPU.
        effort: How many times as long to measure as after a comparison.
    """
    single = {plan.key(""): plan for plan in reversed(plans)}
    baselines = _baselines(single)
    if not baselines:
        return {}
    before = torch.get_num_threads()
    torch.set_num_threads(before if parallel is None else threads_of_a_run(parallel))
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the runs themselves have already given these warnings
            seconds = _measured(_trainings(single, cpu), effort)
    finally:
        torch.set_num_threads(before)
    plain = statistics.median(seconds[baselines[-1]])
    return {each: statistics.median(found) / plain for each, found in seconds.items()}


def _baselines(plans: Mapping[str, Plan]) -> list[str]:
    """The configurations of plain training; none if there is nothing to compare them with."""
    return [each for each, plan in plans.items() if plan.walk.moved == "nothing"] if len(plans) > 1 else []


def _trainings(plans: Mapping[str, Plan], cpu: bool) -> dict[str, Training]:
    """Training at full strength from the first step, without writing any file."""
    data: dict[object, Encoded] = {}
    found = {}
    for name, plan in plans.items():
        at_once = {"walk_progress": None, "walk_start": 0, "walk_warmup": 0, "start_epoch": 1}
        walk = plan.walk.model_copy(update=at_once)
        if plan.data_key not in data:
            data[plan.data_key] = plan.data()
        family, unused = plan.family(data[plan.data_key]), Checkpoints(Path("unused"))
        found[name] = Training(replace(plan, walk=walk), family, unused, ignore_update, Accelerator(cpu=cpu))
        found[name].model.train()
    return found


def _measured(trainings: Mapping[str, Training], effort: int) -> dict[str, list[float]]:
    """The seconds per step in each round, without the first round, which is a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    begun = time.perf_counter()
    for count in range(effort * ROUNDS + 1):
        for name, training in trainings.items():
            every = training.plan.walk.every
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
        if count and time.perf_counter() - begun > effort * SECONDS:
            break
    return seconds
