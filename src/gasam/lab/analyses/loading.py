"""Loading of a finished run for an analysis: its model, its data, its loss and its metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab import records
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.errors import InputError
from gasam.lab.families import Family
from gasam.lab.records import RunRecord
from gasam.lab.tasks import Origin
from gasam.lab.training.checkpoints import Checkpoints, Weights
from gasam.lab.training.plan import make


@dataclass(frozen=True)
class LoadedRun:
    """A finished run with its record, its family of models and its trained model."""

    name: str
    record: RunRecord
    family: Family[Any]
    model: nn.Module

    @property
    def objective(self) -> Objective:
        return self.family.objective()

    def examples(self, split: str, rows: int) -> list[tuple[Tensor, ...]]:
        """Batches with about `rows` examples of a split, always the same ones, on the model's device."""
        device = next(self.model.parameters()).device
        batches = self.family.examples(checked(split), rows)
        return [tuple(part.to(device) for part in batch) for batch in batches]

    def on(self, split: str, rows: int) -> tuple[nn.Module, Objective, list[tuple[Tensor, ...]]]:
        """Model, loss and examples: the first arguments of every measurement in `gasam.analysis`."""
        return self.model, self.objective, self.examples(split, rows)

    def count(self, split: str, rows: int) -> int:
        """The number of examples that `examples` gives."""
        batches = self.family.examples(checked(split), rows)
        return sum(batch[0].shape[self.family.example_dim] for batch in batches)

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
    """Load a finished run with its weights.

    Args:
        run: The record of the run, NAME.json, or its folder, NAME. The weights are in NAME/model.pt.
        origin: Where the run's data is.
        cpu: Use the CPU even if there is a GPU.
    """
    file, record = read_run(run)
    weights = read_weights(file)
    if not weights:
        reason = "the run diverged" if record.test is None else f"{file.with_suffix('')}/model.pt does not exist"
        raise InputError(f"{file.stem} has no weights to analyse: {reason}; run it again with another --out")
    family = _family(record, origin)
    model = family.model()
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError) as error:
        place = file.with_suffix("") / "model.pt"
        raise InputError(f"{place} does not hold the weights of this run ({str(error).splitlines()[0]})") from None
    device = torch.device("cpu")
    if torch.accelerator.is_available() and not cpu:
        device = torch.accelerator.current_accelerator() or device
    return LoadedRun(file.stem, record, family, model.to(device).eval())


def read_run(run: Path) -> tuple[Path, RunRecord]:
    """The file of a run's record, and the record."""
    file = run if run.suffix == ".json" else run.parent / f"{run.name}.json"
    if not file.is_file():
        raise InputError(f"{file} does not exist: name the record of a finished run, such as runs/NAME.json")
    return file, records.read(file)


def read_weights(run: Path) -> Weights | None:
    folder = run.with_suffix("")
    return Checkpoints(folder).load(folder / "model.pt")


def _family(record: RunRecord, origin: Origin) -> Family[Any]:
    """The family with the run's settings and data; raise if the data is not the run's."""
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in record.settings.items()}
    plan = make(record.task, size=record.size, origin=origin, settings=given)
    data = plan.data()
    if data.hash != record.data.hash:
        raise InputError(
            f"the data found for {record.task} is not the data of this run: give the run's data with --data-dir, "
            "or with --train, --valid and --test"
        )
    encoding = record.data.encoding or data.version  # the first records do not hold it
    if data.version != encoding:
        raise InputError(
            f"the encoding of {record.task} has changed since this run (now version {data.version}, "
            f"then {encoding}): run it again with another --out"
        )
    return plan.family(data)
