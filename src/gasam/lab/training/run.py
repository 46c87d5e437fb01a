"""Training one run from its plan to its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate import Accelerator

import gasam
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.families.family import VERSION
from gasam.lab.record import DataOfRun, Record, machine, read, versions, write
from gasam.lab.storage import Checkpoints, replaced, save_weights, write_json
from gasam.lab.tasks.own_model import TASK_COPY, is_file
from gasam.lab.training.finished import DESCRIPTION, ENCODING, WEIGHTS, Description, OwnFile, sha256
from gasam.lab.training.loop import OnUpdate, Training, Update, finite, ignore_update, without_norms
from gasam.lab.training.plan import Plan
from gasam.lab.training.tracking import Tracker


def run(
    plan: Plan,
    folder: Path,
    *,
    on_update: OnUpdate = ignore_update,
    cpu: bool = False,
    gradient_norms: bool = False,
    track: str | None = None,
    test: bool = True,
) -> Record:
    """Train a plan and return its record. A finished run is only read; an interrupted one resumes from its checkpoint.

    The record is `folder/NAME.json`. The folder `folder/NAME/` holds the checkpoints and, at the end, the final model
    with everything that its use needs, see `write_folder`. It is complete before the record is written.
    If torchrun or accelerate started several processes, they share every batch; all must see the same folder.

    Args:
        plan: What to train; `plan.make` creates it.
        folder: The folder for records and checkpoints.
        on_update: Called with an `Update` while the run trains.
        cpu: Use the CPU even if there is a GPU.
        gradient_norms: Add the epoch's mean norm of the gradient that the optimizer receives, before clipping, to each
            row of the curve: of every tensor, of the layers and of the whole model.
        track: The name of a tracker that follows the training, with its files in `folder/TRACK/`. If it fails,
            `on_update` gets a note and training continues.
        test: Whether the data has its test split. A trial of a search is without: it has no test score and no model.
    """
    data = plan.data() if test else plan.data().without_test()
    name = plan.name(data.hash)
    file, checkpoints = folder / f"{name}.json", Checkpoints(folder / name)
    accelerator = Accelerator(cpu=cpu, log_with=track, project_dir=track and folder / track)
    if not file.exists():
        with checkpoints.locked() if accelerator.is_main_process else nullcontext():
            files = [
                OwnFile(split=split, path=path, sha256=sha256(path))
                for split in SPLITS
                for path in (plan.origin.files(split) if accelerator.is_main_process else ())
            ]
            training = Training(plan, plan.family(data), checkpoints, on_update, accelerator)
            training.resume(gradient_norms)
            with _tracked(training, track, name) as tracker:
                training.train()
                if accelerator.is_main_process:
                    done = _finish(training, file, files, test)
                    if tracker is not None:
                        tracker.log({"final": {"valid": done.valid, "test": done.test}}, step=len(done.curve))
                accelerator.wait_for_everyone()
    elif accelerator.is_main_process:
        checkpoints.clean()  # the run may have been killed just after it wrote its record
    record = read(file)
    if gradient_norms and not all("gradient_norms" in row for row in record.curve):
        raise without_norms(file)
    return record


def _finish(training: Training, file: Path, files: Sequence[OwnFile], test: bool) -> Record:
    """Score the chosen weights. Write the run's folder, then its record; then delete the checkpoints."""
    scores = judge(training, "valid", "test") if test else judge(training, "valid")
    record = record_of(training, scores, "test" if test else "valid")
    if test:
        write_folder(training, record, files)
    write(file, record)
    training.checkpoints.clean()
    return record


def write_folder(training: Training, record: Record, files: Sequence[OwnFile]) -> None:
    """Write all that the use of the run needs, also on another machine.

    - `model.safetensors`: the weights. Weights that are tied are stored once. A run that diverged has none.
    - `encoding.json`: what was learnt from the training split, such as the vocabulary, and the names of the classes.
    - `run.json`: the record, where the data was, and the version of gasam.
    - `task.py`: a copy of the user's Python file, if it defines the task.
    """
    folder, plan, family = training.checkpoints.folder, training.plan, training.family
    if record.test is None:
        (folder / WEIGHTS).unlink(missing_ok=True)
    else:
        save_weights(training.plain_model, folder / WEIGHTS)
    write_json(folder / ENCODING, family.data.shared)
    if family.task_text is not None:
        with replaced(folder / TASK_COPY) as partial:
            partial.write_text(family.task_text, encoding="utf-8")
    described = Description(
        schema=2,
        gasam=gasam.__version__,
        origin=plan.origin.absolute(),
        files=list(files),
        task_file=plan.task if is_file(plan.task) else None,
        record=record,
    )
    write_json(folder / DESCRIPTION, described.model_dump(mode="json", by_alias=True))


@contextmanager
def _tracked(training: Training, track: str | None, name: str) -> Iterator[Tracker | None]:
    """Send the run to the tracker, if there is one."""
    if track is None:
        yield None
        return
    on_update = training.on_update
    tracker = Tracker(track, name, training.accelerator, lambda fault: on_update(Update(0, 1, 1, 1, None, fault)))
    tracker.begin(training.plan.config() | {"seed": training.plan.seed}, training.progress.curve)
    training.on_epoch = tracker.send
    try:
        yield tracker
    finally:
        tracker.close()


def record_of(training: Training, scores: Mapping[str, Any], split: Split) -> Record:
    """Make the record of a trained run, with the scores of its chosen weights; `split` is the one that is reported."""
    plan, family, progress = training.plan, training.family, training.progress
    data = DataOfRun(
        hash=family.data.hash,
        encoding=VERSION,
        notes=list(family.data.notes),
        files=plan.origin.file_names,
    )
    return Record(
        name=plan.name(family.data.hash),
        method=plan.walk.method,
        seed=plan.seed,
        **plan.config(),
        data=data,
        metric=family.metric,
        **{"valid": None, "test": None} | dict(scores),
        worthless=family.worthless(split),
        gradient_evaluations=progress.passes,
        updates=progress.updates,
        seconds=round(progress.seconds, 2),
        best_epoch=progress.best_epoch,
        diverged=progress.diverged,
        parameters=sum(p.numel() for p in training.plain_model.parameters()),
        curve=progress.curve,
        remarks=family.remarks() if split == "test" else {},
        **training.code,
        machine=machine(training.accelerator.device),
        versions=versions(),
    )


def judge(training: Training, *splits: Split) -> dict[str, Any]:
    """Load the chosen weights into the model, and measure the metric with its standard error.

    The result has no scores if there are no weights to choose from, because training diverged.
    """
    weights = training.chosen_weights()
    found: dict[str, Any] = {}
    if weights is not None:
        try:
            training.plain_model.load_state_dict(weights)
        except (RuntimeError, TypeError):  # weights of another model
            raise training.checkpoints.damaged(training.checkpoints.best) from None
        training.model.eval()
        for split in splits:
            value, error = training.family.measure(training.plain_model, split)
            found |= {split: value, f"{split}_error": None if error is None else finite(error)}
        training.model.train()
    return found
