"""Loading of a finished run for an analysis: its model, its data, its loss and its metric."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from gasam.analysis.objective import Objective
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.errors import InputError
from gasam.lab.families.encoded import Encoded, example_count, on_tensors
from gasam.lab.families.family import Family
from gasam.lab.record import Record
from gasam.lab.storage import Weights
from gasam.lab.tasks import Origin
from gasam.lab.training.finished import FinishedRun, OwnFile, find_run
from gasam.lab.training.plan import Plan, make


@dataclass(frozen=True)
class LoadedRun:
    """A finished run with its record, its family of models and its trained model."""

    name: str
    record: Record
    family: Family[Any]
    model: nn.Module

    @property
    def objective(self) -> Objective:
        return self.family.objective()

    def examples(self, split: str, rows: int) -> list[Any]:
        """Batches with about `rows` examples of a split, always the same ones, on the model's device."""
        device = next(self.model.parameters()).device
        batches = self.family.examples(checked(split), rows)
        return [on_tensors(lambda part: part.to(device), batch) for batch in batches]

    def on(self, split: str, rows: int) -> tuple[nn.Module, Objective, list[Any]]:
        """Model, loss and examples: the first arguments of every measurement in `gasam.analysis`."""
        return self.model, self.objective, self.examples(split, rows)

    def count(self, split: str, rows: int) -> int:
        """The number of examples that `examples` gives."""
        batches = self.family.examples(checked(split), rows)
        return sum(example_count(batch, self.family.example_dim) for batch in batches)

    def score(self, model: nn.Module, split: str, rows: int | None = None) -> float:
        """The task's metric on the first `rows` examples; the worst possible value if it is not finite."""
        value = self.family.score(model, checked(split), rows)
        if math.isfinite(value):
            return value
        return 0.0 if self.family.metric.higher_is_better else math.inf


def checked(split: str) -> Split:
    for known in SPLITS:
        if split == known:
            return known
    raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def load(run: Path, origin: Origin, *, cpu: bool = False) -> LoadedRun:
    """Load a finished run with its weights and its data.

    Args:
        run: The record of the run, NAME.json, or its folder, NAME.
        origin: Where the run's data is. What it does not say is taken from the run's folder.
        cpu: Use the CPU even if there is a GPU.
    """
    found = find_run(run)
    found.check_weights()
    family = _family(found, origin)
    return LoadedRun(found.name, found.record, family, found.trained(family.model(), cpu=cpu))


def weights_like(model: nn.Module, run: Path) -> Weights:
    """The weights of another run with the same model, by name."""
    found, other = find_run(run), copy.deepcopy(model)
    found.check_weights()
    found.folder.load_weights(other)
    return dict(other.state_dict())


def _family(run: FinishedRun, given: Origin) -> Family[Any]:
    plan, data = planned(run, given)
    return plan.family(data)


def planned(run: FinishedRun, given: Origin) -> tuple[Plan, Encoded]:
    """A plan with the settings of a run, and the run's data; raise if the data that is found is not the run's.

    Args:
        run: The finished run.
        given: Where its data is. What it does not say is taken from the run's folder.
    """
    record, plan = run.record, plan_of(run, given)
    try:
        data = plan.data()
    except InputError:
        _refuse_changes(run, given)
        raise
    if data.hash != record.data.hash:
        _refuse_changes(run, given)
        raise InputError(
            f"the data found for {record.task} is not the data of this run: give the run's data with --data-dir, "
            "or with --train, --valid and --test"
        )
    run.check_encoding(data.version)
    return plan, data


def plan_of(run: FinishedRun, given: Origin) -> Plan:
    """A plan with the settings of a run, and its data where it was, unless `given` says otherwise."""
    origin = given
    if run.description is not None:
        stored = run.description.origin
        if stored.data_dir is not None and not stored.data_dir.is_dir():
            stored = replace(stored, data_dir=None)
        origin = given.or_else(stored)
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in run.record.settings.items()}
    return make(run.task, size=run.record.size, origin=origin, settings=settings)


def _refuse_changes(run: FinishedRun, given: Origin) -> None:
    """Raise if a file of the user's that the run was trained with is missing or has changed."""
    files = [] if run.description is None else run.description.files
    for file in (file for file in files if getattr(given, file.split) is None):
        if not file.path.is_file():
            raise InputError(f"{file.path}, the {file.split} file of {run.name}, does not exist: {_cure(file)}")
        if file.changed():
            raise InputError(
                f"{file.path}, the {file.split} file of {run.name}, has changed since it was trained: {_cure(file)}"
            )


def _cure(file: OwnFile) -> str:
    return f"give the file that it was trained with by --{file.split}"
