"""A finished run, loaded to be analysed: its model, its data, its loss and its metric."""

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
    name: str
    record: RunRecord
    family: Family[Any]
    model: nn.Module

    @property
    def objective(self) -> Objective:
        return self.family.objective()

    def examples(self, split: str, rows: int) -> list[tuple[Tensor, ...]]:
        """Batches of examples, always the same, on the model's device."""
        device = next(self.model.parameters()).device
        batches = self.family.examples(checked(split), rows)
        return [tuple(part.to(device) for part in batch) for batch in batches]

    def on(self, split: str, rows: int) -> tuple[nn.Module, Objective, list[tuple[Tensor, ...]]]:
        """Model, loss and examples: what every measurement of `gasam.analysis` takes first."""
        return self.model, self.objective, self.examples(split, rows)

    def count(self, split: str, rows: int) -> int:
        """How many examples those are."""
        batches = self.family.examples(checked(split), rows)
        return sum(batch[0].shape[self.family.example_dim] for batch in batches)

    def score(self, model: nn.Module, split: str, rows: int | None = None) -> float:
        """The task's metric on the first rows; the worst value there is if the model's outputs are not finite."""
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
    """The run whose record is `run`, NAME.json, or whose folder is NAME; its weights are in NAME/model.pt."""
    file, record = read_run(run)
    weights = read_weights(file)
    if not weights:
        reason = "the run diverged" if record.test is None else f"{file.with_suffix('')}/model.pt is not there"
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
        raise InputError(f"{file} is not there: name the record of a finished run, such as runs/NAME.json")
    return file, records.read(file)


def read_weights(run: Path) -> Weights | None:
    folder = run.with_suffix("")
    return Checkpoints(folder).load(folder / "model.pt")


def _family(record: RunRecord, origin: Origin) -> Family[Any]:
    """The family with the run's settings and data; refused if the data is not the run's."""
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in record.settings.items()}
    plan = make(record.task, size=record.size, origin=origin, settings=given)
    data = plan.data()
    if data.hash != record.data.hash:
        raise InputError(
            f"the data found for {record.task} is not the data of this run: name the run's own with --data-dir, "
            "or with --train, --valid and --test"
        )
    encoding = record.data.encoding or data.version  # the first records do not say
    if data.version != encoding:
        raise InputError(
            f"the data of {record.task} is encoded otherwise since this run was made (version {data.version}, "
            f"not {encoding}): run it again with another --out"
        )
    return plan.family(data)
