"""One trial of a search: training that sees only the validation split, and may be stopped early."""

from __future__ import annotations

import math
from pathlib import Path

from accelerate import Accelerator

from gasam.lab.engines.engine import Job
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.worth import Pruner, stops
from gasam.lab.storage import Checkpoints, write_json
from gasam.lab.training.loop import OnUpdate, Training, finite
from gasam.lab.training.run import judge

OUTCOME = "outcome.json"
"""The name of the file with a trial's outcome, in the trial's folder."""


def run_trial(
    job: Job, folder: Path, on_update: OnUpdate, *, pruner: Pruner | None = None, cpu: bool = False
) -> Outcome:
    """Train a trial, or resume it from its checkpoint. The outcome is stored before the checkpoints are deleted.

    Args:
        job: What to train.
        folder: The folder of all trials.
        on_update: Called with an `Update` during training.
        pruner: Decides after each epoch whether to stop early; by default all epochs are run.
        cpu: Use the CPU even if there is a GPU.
    """
    checkpoints = Checkpoints(folder / job.name)
    with checkpoints.locked():
        family = job.plan.family(job.plan.data().without_test())
        training = Training(job.plan, family, checkpoints, on_update, Accelerator(cpu=cpu))
        if pruner is not None:
            training.give_up = lambda rows: stops(pruner, [row["valid"] for row in rows], job.plan.settings)
        training.resume()
        training.train()
        done = training.progress
        ended = not done.diverged and done.epoch == job.plan.settings.epochs
        found = judge(training, "valid") if ended else {}
        outcome = Outcome(
            valid=finite(found.get("valid", math.nan)),
            error=found.get("valid_error"),
            worthless=family.worthless("valid"),
            diverged=done.diverged,
            curve=tuple(row["valid"] for row in done.curve),
            gradient_evaluations=done.passes,
            seconds=round(done.seconds, 2),
            **training.code,
        )
        write_json(checkpoints.folder / OUTCOME, outcome.as_json())
        checkpoints.clean()
    return outcome
