"""A finished run as a subject of analyses: its model, its data, its loss and its metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab import records, tasks
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.errors import InputError
from gasam.lab.families import Family
from gasam.lab.records import RunRecord
from gasam.lab.tasks import Origin
from gasam.lab.training.checkpoints import Checkpoints
from gasam.lab.training.plan import encoded_data


@dataclass(frozen=True)
class Subject:
    name: str
    record: RunRecord
    family: Family[Any]
    model: nn.Module

    @property
    def objective(self) -> Objective:
        return self.family.objective()

    def examples(self, split: str, rows: int) -> list[tuple[Tensor, ...]]:
        device = next(self.model.parameters()).device
        found = self.family.examples(checked(split), rows)
        return [tuple(part.to(device) for part in batch) for batch in found]

    def count(self, split: str, rows: int) -> int:
        """How many examples those are."""
        batches = self.family.examples(checked(split), rows)
        return sum(batch[0].shape[self.family.example_dim] for batch in batches)

    def score(self, model: nn.Module, split: str, rows: int | None = None) -> float:
        """The task's metric, of the first rows; the worst there is where the model gives no number."""
        value = self.family.score(model, checked(split), rows)
        return value if math.isfinite(value) else (0.0 if self.family.metric.higher_is_better else math.inf)


def checked(split: str) -> Split:
    for known in SPLITS:
        if split == known:
            return known
    raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def load(run: Path, origin: Origin, *, cpu: bool = False) -> Subject:
    """The run whose record is `run`, NAME.json, or whose folder is NAME; its weights lie in NAME/model.pt."""
    file, record = read_run(run)
    weights = Checkpoints(file.with_suffix("")).load(file.with_suffix("") / "model.pt")
    if not weights:
        reason = "the run diverged" if record.test is None else f"{file.with_suffix('')}/model.pt is not there"
        raise InputError(f"{file.stem} has no weights to analyse: {reason}; run it again with another --out")
    family = family_of(record, origin)
    model = family.model()
    model.load_state_dict(weights)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() and not cpu else None
    return Subject(file.stem, record, family, model.to(accelerator or torch.device("cpu")).eval())


def read_run(run: Path) -> tuple[Path, RunRecord]:
    """The file of a run's record, and the record."""
    file = run if run.suffix == ".json" else run.with_name(f"{run.name}.json")
    if not file.exists():
        raise InputError(f"{file} is not there: name the record of a finished run, such as runs/NAME.json")
    return file, records.read(file)


def family_of(record: RunRecord, origin: Origin) -> Family[Any]:
    """The family with the run's settings and data; refused where the data is not the run's."""
    task, config = tasks.find(record.task), record.config
    task.check(origin)
    given = {name: tuple(v) if isinstance(v, list) else v for name, v in config["settings"].items()}
    settings = task.settings(config["size"], **given)
    data = encoded_data(task, origin, settings)
    if data.hash != record.data.hash:
        raise InputError(
            f"the data found for {record.task} is not the data of this run: name the run's own with --data-dir, "
            "or with --train, --valid and --test"
        )
    then = record.data.encoding or data.version  # the first records do not say
    if data.version != then:
        raise InputError(
            f"the data of {record.task} is encoded otherwise since this run was made (version {data.version}, "
            f"not {then}): run it again with another --out"
        )
    return task.family(settings, data)
