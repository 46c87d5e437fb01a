"""Training one run from its plan to its record."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from gasam.lab.data.corpus import Split
from gasam.lab.families.family import VERSION, Encoded
from gasam.lab.record import DataOfRun, Record, machine, read, versions, write
from gasam.lab.storage import Checkpoints, replaced, save_weights, write_json
from gasam.lab.tasks.own_model import TASK_COPY
from gasam.lab.training.finished import DESCRIPTION, ENCODING, WEIGHTS, Description
from gasam.lab.training.loop import OnUpdate, Training, Update, finite
from gasam.lab.training.plan import Plan
from gasam.lab.training.tracking import Tracker


def run(
    plan: Plan,
    folder: Path,
    *,
    on_update: OnUpdate = lambda update: None,
    cpu: bool = False,
    gradient_norms: bool = False,
    track: str | None = None,
    test: bool = True,
    data: Encoded | None = None,
) -> Record:
    """Train a plan and return its record. A finished run is only read; an interrupted one resumes from its checkpoint.

    The record is `folder/NAME.json`. `folder/NAME/` has the checkpoints and, before there is a record, the final model.
    If torchrun or accelerate started several processes, they share every batch; all must see the same folder.

    Args:
        plan: What to train.
        folder: The folder for records and checkpoints.
        on_update: Called with an `Update` while the run trains.
        cpu: Use the CPU even if there is a GPU.
        gradient_norms: Add the epoch's mean norms of the gradient before clipping to each row of the curve: of every
            tensor, of the layers and of the whole model.
        track: The name of a tracker that follows the training, with its files in `folder/TRACK/`. If it fails,
            `on_update` gets a note and training continues.
        test: Whether the data has its test split. A trial of a search has none, and gives no test score and no model.
        data: The data of the plan, if this machine cannot read it.
    """
    data = plan.data() if data is None else data
    if not test:
        data = data.without_test()
    name = plan.name(data.hash)
    file, checkpoints = folder / f"{name}.json", Checkpoints(folder / name)
    accelerator = Accelerator(cpu=cpu, log_with=track, project_dir=track and folder / track)
    main = accelerator.is_main_process
    if not file.exists():
        with checkpoints.locked() if main else nullcontext():
            training = Training(plan, data, checkpoints, accelerator, on_update, gradient_norms)
            training.resume()
            tracker = Tracker(track, accelerator, lambda fault: on_update(Update(0, 1, 1, 1, None, fault)))
            training.on_epoch = lambda row: tracker.send(row, row["epoch"])
            try:
                tracker.begin(name, plan.config() | {"seed": plan.seed}, training.progress.curve)
                training.train()
                if main:
                    record = record_of(training, "test" if test else "valid")
                    if test:
                        write_folder(training, record)
                    write(file, record)
                    tracker.send({"final": {"valid": record.valid, "test": record.test}}, len(record.curve))
                accelerator.wait_for_everyone()
            finally:
                tracker.end()
    if main:
        checkpoints.clean()  # also those of a run that was killed just after it wrote its record
    return read(file)


def record_of(training: Training, split: Split) -> Record:
    """Score the chosen weights on validation and on the reported split; there are none if training diverged."""
    plan, family, progress, model = training.plan, training.family, training.progress, training.plain_model
    scores: dict[str, Any] = {"valid": None, "test": None}
    weights = training.chosen_weights()
    if weights is not None:
        model.load_state_dict(weights)
        model.eval()
        for each in dict.fromkeys(("valid", split)):
            value, error = family.measure(model, each)
            scores |= {each: value, f"{each}_error": None if error is None else finite(error)}
    data = family.data
    return Record(
        name=plan.name(data.hash),
        method=plan.walk.method,
        seed=plan.seed,
        **plan.config(),
        data=DataOfRun(hash=data.hash, encoding=VERSION, notes=list(data.notes), files=plan.origin.file_names),
        metric=family.metric,
        **scores,
        worthless=family.worthless(split),
        gradient_evaluations=round(progress.passes, 2),
        updates=progress.updates,
        seconds=round(progress.seconds, 2),
        best_epoch=progress.best_epoch,
        diverged=progress.diverged,
        parameters=sum(p.numel() for p in model.parameters()),
        curve=progress.curve,
        remarks=family.remarks() if split == "test" else {},
        **training.code,
        machine=machine(training.accelerator.device),
        versions=versions(),
    )


def write_folder(training: Training, record: Record) -> None:
    """Write all that the use of the run needs, also on another machine; a run that diverged has no weights."""
    folder, plan, family = training.checkpoints.folder, training.plan, training.family
    if record.test is None:
        (folder / WEIGHTS).unlink(missing_ok=True)
    else:
        save_weights(training.plain_model, folder / WEIGHTS)
    write_json(folder / ENCODING, family.data.shared)
    if family.task_text is not None:
        with replaced(folder / TASK_COPY) as partial:
            partial.write_text(family.task_text, encoding="utf-8")
    task_file = None if family.task_text is None else plan.task
    described = Description(record=record, origin=plan.origin.absolute(), task_file=task_file)
    write_json(folder / DESCRIPTION, described.model_dump(mode="json", by_alias=True))
