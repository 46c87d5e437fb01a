"""Training one run from its plan to its record."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from gasam.lab import provenance, records
from gasam.lab.data.corpus import Split
from gasam.lab.records import DataOfRun, RunRecord
from gasam.lab.training.checkpoints import Checkpoints
from gasam.lab.training.loop import Training, finite, without_norms
from gasam.lab.training.plan import Plan
from gasam.lab.training.progress import OnUpdate, ignore_update
from gasam.lab.training.selection import chosen_weights


def run(
    plan: Plan, folder: Path, *, on_update: OnUpdate = ignore_update, cpu: bool = False, gradient_norms: bool = False
) -> RunRecord:
    """Train a plan and return its record. A finished run is only read; an interrupted one resumes from its checkpoint.

    The record is `folder/NAME.json`. The folder `folder/NAME/` holds the checkpoints and, at the end, the final model.
    If torchrun or accelerate started several processes, they share every batch; all must see the same folder.

    Args:
        plan: What to train; `plan.make` creates it.
        folder: The folder for records and checkpoints.
        on_update: Called with an `Update` while the run trains.
        cpu: Use the CPU even if there is a GPU.
        gradient_norms: Add the epoch's mean gradient norm of every tensor, of the layers and of the whole model to each
            row of the curve. It is the norm of the gradient that the optimizer receives, before clipping.
    """
    data = plan.data()
    name = plan.name(data.hash)
    file, checkpoints = folder / f"{name}.json", Checkpoints(folder / name)
    accelerator = Accelerator(cpu=cpu)
    if not file.exists():
        with checkpoints.locked() if accelerator.is_main_process else nullcontext():
            training = Training(plan, plan.family(data), checkpoints, on_update, accelerator)
            training.resume(gradient_norms)
            training.train()
            if accelerator.is_main_process:
                records.write(file, record_of(training, judge(training, "valid", "test")))
                checkpoints.clean()
            accelerator.wait_for_everyone()
    elif accelerator.is_main_process:
        checkpoints.clean()  # the run may have been killed just after it wrote its record
    record = records.read(file)
    if gradient_norms and not all("gradient_norms" in row for row in record.curve):
        raise without_norms(file)
    return record


def record_of(training: Training, scores: Mapping[str, Any]) -> RunRecord:
    """Make the record of a trained run, with the scores of its chosen weights."""
    plan, family, progress = training.plan, training.family, training.progress
    return RunRecord(
        schema=1,
        task=plan.task,
        size=plan.size,
        method=plan.choice.method,
        seed=plan.seed,
        metric=family.metric.name,
        gradient_evaluations=progress.passes,
        updates=progress.updates,
        seconds=round(progress.seconds, 2),
        best_epoch=progress.best_epoch,
        diverged=progress.diverged,
        epsilon_source=plan.choice.epsilon_source,
        config=plan.config(),
        identity=plan.identity(family.data.hash),
        data=DataOfRun(hash=family.data.hash, encoding=family.data.version, notes=list(family.data.notes)),
        parameters=sum(p.numel() for p in training.plain_model.parameters()),
        machine=provenance.machine(training.accelerator.device),
        versions=provenance.versions(),
        curve=progress.curve,
        worthless=family.worthless("test"),
        **training.code,
        **{"valid": None, "test": None} | dict(scores),
        **family.remarks(),
    )


def judge(training: Training, *splits: Split) -> dict[str, Any]:
    """Load the chosen weights into the model, save them as `model.pt`, and measure the metric with its standard error.

    The result has no scores if there are no weights to choose from, because training diverged.
    """
    weights, begun = chosen_weights(training), time.perf_counter()
    found: dict[str, Any] = {}
    if weights is not None:
        training.plain_model.load_state_dict(weights)
        training.model.eval()
        for split in splits:
            value, error = training.family.measure(training.plain_model, split)
            found |= {split: value, f"{split}_error": None if error is None else finite(error)}
        training.model.train()
    training.checkpoints.save(training.checkpoints.model, weights or {})
    return found | {"evaluation_seconds": round(time.perf_counter() - begun, 2)}
