"""Finished runs on disk: found by their record or folder, with their data for analyses, without it for predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import safetensors
import torch
from accelerate.utils import send_to_device
from pydantic import BaseModel
from safetensors.torch import load_model
from torch import nn

from gasam.analysis.objective import Objective
from gasam.lab import record as records
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.errors import InputError, checked
from gasam.lab.families.family import VERSION, Encoded, Family, Sampling, example_count
from gasam.lab.record import Record
from gasam.lab.storage import read_json
from gasam.lab.tasks import Origin
from gasam.lab.tasks.own_model import TASK_COPY, hashed
from gasam.lab.training.plan import Plan, make

__all__ = ["FinishedRun", "load"]

WEIGHTS, ENCODING, DESCRIPTION = "model.safetensors", "encoding.json", "run.json"
"""Files in the folder of a run: the weights, what was learnt from the training split, and a `Description`."""


class Description(BaseModel):
    """The description of a run in its folder: its record, where its data was, and its task file."""

    record: Record
    origin: Origin
    task_file: str | None


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; `load` finds one. Its model and its family are read when they are first used.

    Args:
        folder: Its folder, with its weights, what was learnt from the training split, and its description.
        description: The record of the run, with its settings and scores, and where its data was.
        data: The data, or where it is; what that does not say, the description does. None uses the run without data.
        cpu: Use the CPU even if there is a GPU.
    """

    folder: Path
    description: Description
    data: Origin | Encoded | None = None
    cpu: bool = False

    @property
    def name(self) -> str:
        """The name of the run, which is that of its folder."""
        return self.folder.name

    @property
    def record(self) -> Record:
        return self.description.record

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, a torch module in eval mode."""
        try:
            model = self.family.model()
        except KeyError as error:
            raise InputError(f"{self.folder / ENCODING} is damaged (it lacks {error}): copy it again") from None
        file = self.folder / WEIGHTS
        if not file.exists():
            reason = "the run diverged" if self.record.test is None else f"{file} does not exist"
            raise InputError(f"{self.name} has no weights: {reason}; run it again with another --out")
        try:
            load_model(model, file)
        except (RuntimeError, TypeError, safetensors.SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{file} is damaged or does not hold the weights of this run ({reason}): copy it again, "
                "or train again with another --out"
            ) from None
        device = None if self.cpu else torch.accelerator.current_accelerator(check_available=True)
        return model.to(device or "cpu").eval()

    @cached_property
    def family(self) -> Family[Any]:
        """The family of the model, with the run's data if `data` is given."""
        if self.data is not None:
            return self.plan.family(self.data if isinstance(self.data, Encoded) else self.read_data())
        self._check_encoding()
        file, data = self.folder / ENCODING, self.record.data
        try:
            shared = dict(read_json(file))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{file} is missing or damaged ({error}): copy the whole folder of the run again"
            ) from None
        return self.plan.family(Encoded(shared, {}, data.hash, tuple(data.notes)))

    @cached_property
    def plan(self) -> Plan:
        """A plan with the run's settings, without its walk. Its data is where `data` says, or else where it was."""
        origin = Origin()
        if isinstance(self.data, Origin):
            known = self.description.origin
            moved = known.data_dir is not None and not known.data_dir.is_dir()
            origin = self.data.or_else(replace(known, data_dir=None) if moved else known)
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in self.record.settings.items()}
        return make(self._task, size=self.record.size, origin=origin, settings=settings)

    @property
    def _task(self) -> str:
        """The name of the task, or the file that defines it: the user's, or its copy in the folder if that changed."""
        named = self.description.task_file
        if named is None:
            return self.record.task
        for path in (Path(named), self.folder / TASK_COPY):
            with suppress(OSError, UnicodeDecodeError):
                if hashed(path.read_text(encoding="utf-8")) == self.record.settings["code"]:
                    return str(path)
        raise InputError(
            f"the task of {self.name} is not known any more: {named} has changed or does not exist, and so has "
            f"{self.folder / TASK_COPY}; copy the whole folder of the run"
        )

    def read_data(self) -> Encoded:
        """The run's data; raise if the data that is found is not the run's."""
        data = self.plan.data()
        if data.hash != self.record.data.hash:
            raise InputError(
                f"the data found for {self.record.task} is not the data of this run: give the run's data with "
                "--data-dir, or with --train, --valid and --test"
            )
        self._check_encoding()
        return data

    def _check_encoding(self) -> None:
        then = self.record.data.encoding
        if then != VERSION:
            raise InputError(
                f"the encoding of {self.record.task} has changed since this run (now version {VERSION}, then {then}): "
                "run it again with another --out, or use the gasam that trained it"
            )

    @property
    def objective(self) -> Objective:
        return self.family.objective()

    def examples(self, split: str, rows: int) -> list[Any]:
        """Batches with about `rows` examples of a split, always the same ones, on the model's device."""
        device = next(self.model.parameters()).device
        return [send_to_device(batch, device) for batch in self.family.examples(_split(split), rows)]

    def on(self, split: str, rows: int) -> tuple[nn.Module, Objective, list[Any]]:
        """Model, loss and examples: the first arguments of every measurement in `gasam.analysis`."""
        return self.model, self.objective, self.examples(split, rows)

    def count(self, split: str, rows: int) -> int:
        """The number of examples that `examples` gives."""
        return sum(example_count(batch, self.family.example_dim) for batch in self.examples(split, rows))

    def score(self, model: nn.Module, split: str, rows: int | None = None) -> float:
        """The task's metric on the first `rows` examples; the worst possible value if it is not finite."""
        value = self.family.measure(model, _split(split), rows).value
        if math.isfinite(value):
            return value
        return 0.0 if self.family.metric.higher_is_better else math.inf

    def predict(self, inputs: Sequence[Any], **options: Any) -> list[dict[str, Any]]:
        """What the model says about each input, as `gasam predict --json` prints it.

        A dictionary has the names `class` and `probabilities`, `translation`, or `perplexity`, `words` and
        `continuation`; for an own model those of its task file.

        Args:
            inputs: Texts; for images their pixels, whole numbers from 0 to 255, as lists, bytes or arrays.
            options: For language models: `words`, the largest number of words to add to each text, by default 10;
                `temperature`, to draw these words; and `seed`, that of drawn words.
        """
        if isinstance(inputs, str | bytes):
            raise InputError(f"inputs must be a list, such as [{inputs[:20]!r}], got one {type(inputs).__name__}")
        for number, each in enumerate(inputs, start=1):
            if isinstance(each, str) and not each.strip():
                raise InputError(f"input {number} of {len(inputs)} is blank: leave it out")
        made = self.prediction_options(**options)
        return self.family.predict(self.model, inputs, made) if len(inputs) else []

    def prediction_options(self, **given: Any) -> Sampling:
        """The options of predictions; raise if one is wrong, or is not for this model."""
        options = checked(Sampling, **given)
        if options != Sampling() and not self.family.continues_text:
            raise InputError(f"words, temperature and seed are for language models, but {self.name} is none")
        return options

    def answers(
        self, numbered: Iterable[tuple[int, Any]], options: Sampling, at_once: int | None = None
    ) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Predict inputs with their line numbers, `at_once` of them in memory; None for a blank one."""
        count = at_once or self.family.inputs_at_once
        source = iter(numbered)
        while chunk := list(islice(source, count)):
            inputs = [value for _, value in chunk if value is not None]
            found = iter(self.family.predict(self.model, inputs, options) if inputs else [])
            for line, value in chunk:
                yield line, None if value is None else next(found)


def load(run: str | Path, data: Origin | Encoded | None = None, *, cpu: bool = False) -> FinishedRun:
    """Load a trained model. Its folder is enough: neither its training data nor its record beside it is needed.

    Args:
        run: The record of a finished run, "runs/NAME.json", or its folder, "runs/NAME".
        data: Load the run's data as well, for analyses: `Origin()` looks where it was, `Origin(...)` says where it is.
        cpu: Use the CPU even if there is a GPU.
    """
    found = replace(find(Path(run)), data=data, cpu=cpu)
    _ = found.model  # all faults are found here
    return found


def find(run: Path) -> FinishedRun:
    """Find a finished run by its record, NAME.json, or by its folder, NAME, which may have been copied alone."""
    folder = run.absolute().parent if run.name == DESCRIPTION else run.absolute()
    if folder.suffix == ".json":
        folder = folder.with_suffix("")
    file = folder / DESCRIPTION
    if not file.is_file():
        raise InputError(f"{run} is not a finished run: {file} does not exist; name its record or folder, runs/NAME")
    found = records.read_as(Description, "the description of a run", file)
    return FinishedRun(
        folder, found.model_copy(update={"record": found.record.model_copy(update={"name": folder.name})})
    )


def _split(name: str) -> Split:
    if name not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
    return name
