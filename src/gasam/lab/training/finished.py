"""Finished runs on disk: found by their record or folder, with their data for analyses, without it for predictions."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_model
from torch import nn

from gasam.analysis.objective import Objective
from gasam.lab import record as records
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.errors import InputError, checked
from gasam.lab.families.family import VERSION, Encoded, Family, PredictionOptions, example_count, to_device
from gasam.lab.record import Record
from gasam.lab.storage import read_json
from gasam.lab.tasks import Origin
from gasam.lab.tasks.own_model import TASK_COPY, code_of
from gasam.lab.training.plan import Plan, make

__all__ = ["FinishedRun", "load"]

WEIGHTS, ENCODING, DESCRIPTION = "model.safetensors", "encoding.json", "run.json"
"""Files in the folder of a run. `training.run.write_folder` writes them."""
Answer = tuple[int, dict[str, Any] | None]
"""The line number of an input and its prediction; None for a blank input."""


class OwnFile(BaseModel):
    """A file of the user that a run was trained with, and the hash of its bytes."""

    split: Split
    path: Path
    sha256: str

    @property
    def fault(self) -> str | None:
        if not self.path.is_file():
            return "does not exist"
        return None if sha256(self.path) == self.sha256 else "has changed since it was trained"


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Description(BaseModel):
    """The description of a run in its folder, run.json: its record, and where its data and its task were.

    `schema` is the version of the format and `gasam` that of the program. `files` are the user's own files, and
    `task_file` is the Python file that defines the task.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[2] = Field(alias="schema")
    gasam: str
    origin: Origin
    files: list[OwnFile]
    task_file: str | None = None
    record: Record


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; `load` finds one. Its model and its family are read when they are first used.

    Args:
        name: The name of the run.
        folder: Its folder, with its weights, what was learnt from the training split, and its description.
        record: The record of the run, with its settings and scores.
        description: What the folder says; None if only the record is there.
        data: Where the training data is; what it does not say, the description does. None uses the run without data.
        cpu: Use the CPU even if there is a GPU.
    """

    name: str
    folder: Path
    record: Record
    description: Description | None
    data: Origin | None = None
    cpu: bool = False

    @cached_property
    def model(self) -> nn.Module:
        """The trained model, a torch module in eval mode."""
        try:
            model = self.family.model()
        except KeyError as error:
            raise InputError(f"{self.folder / ENCODING} is damaged (it lacks {error}): copy it again") from None
        self._load_weights(model)
        device = torch.device("cpu")
        if torch.accelerator.is_available() and not self.cpu:
            device = torch.accelerator.current_accelerator() or device
        return model.to(device).eval()

    @cached_property
    def family(self) -> Family[Any]:
        """The family of the model, with the run's data if `data` is given."""
        if self.data is not None:
            return self.plan.family(self.read_data())
        if missing := [name for name in (DESCRIPTION, ENCODING) if not (self.folder / name).is_file()]:
            raise InputError(
                f"{self.name} cannot be used without its training data, because {self.folder / missing[0]} does not "
                "exist: copy the whole folder"
            )
        self._check_encoding()
        data = self.record.data
        return self.plan.family(Encoded(_read_encoding(self.folder / ENCODING), {}, data.hash, tuple(data.notes)))

    @property
    def origin(self) -> Origin:
        """Where the training data was, if that is known."""
        return self.description.origin if self.description is not None else Origin()

    @cached_property
    def plan(self) -> Plan:
        """A plan with the run's settings, without its walk. Its data is where `data` says, or else where it was."""
        origin = Origin()
        if self.data is not None:
            folder = self.origin.data_dir
            moved = folder is not None and not folder.is_dir()
            origin = self.data.or_else(replace(self.origin, data_dir=None if moved else folder))
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in self.record.settings.items()}
        return make(self._task, size=self.record.size, origin=origin, settings=settings)

    @property
    def _task(self) -> str:
        """The name of the task, or the file that defines it: the user's, or its copy in the folder if that changed."""
        code = self.record.settings.get("code")
        if code is None:
            return self.record.task
        named = (self.description and self.description.task_file) or self.record.task
        for path in (Path(named), self.folder / TASK_COPY):
            if code_of(path) == code:
                return str(path)
        raise InputError(
            f"the task of {self.name} is not known any more: {named} has changed or does not exist, and so has "
            f"{self.folder / TASK_COPY}; copy the whole folder of the run"
        )

    def read_data(self) -> Encoded:
        """The run's data; raise if the data that is found is not the run's, and name the file that has changed."""
        fault: InputError | None = None
        try:
            data = self.plan.data()
        except InputError as error:
            fault = error
        if fault is None and data.hash == self.record.data.hash:
            self._check_encoding()
            return data
        for file in self.description.files if self.description else ():
            if getattr(self.data, file.split) is None and file.fault:
                raise InputError(
                    f"{file.path}, the {file.split} file of {self.name}, {file.fault}: "
                    f"give the file that it was trained with by --{file.split}"
                )
        raise fault or InputError(
            f"the data found for {self.record.task} is not the data of this run: give the run's data with --data-dir, "
            "or with --train, --valid and --test"
        )

    def _check_encoding(self) -> None:
        then = self.record.data.encoding
        if then != VERSION:
            raise InputError(
                f"the encoding of {self.record.task} has changed since this run (now version {VERSION}, then {then}): "
                "run it again with another --out, or use the gasam that trained it"
            )

    def _load_weights(self, model: nn.Module) -> None:
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

    @property
    def objective(self) -> Objective:
        return self.family.objective()

    def examples(self, split: str, rows: int) -> list[Any]:
        """Batches with about `rows` examples of a split, always the same ones, on the model's device."""
        device = next(self.model.parameters()).device
        return [to_device(batch, device) for batch in self.family.examples(_split(split), rows)]

    def on(self, split: str, rows: int) -> tuple[nn.Module, Objective, list[Any]]:
        """Model, loss and examples: the first arguments of every measurement in `gasam.analysis`."""
        return self.model, self.objective, self.examples(split, rows)

    def count(self, split: str, rows: int) -> int:
        """The number of examples that `examples` gives."""
        batches = self.family.examples(_split(split), rows)
        return sum(example_count(batch, self.family.example_dim) for batch in batches)

    def score(self, model: nn.Module, split: str, rows: int | None = None) -> float:
        """The task's metric on the first `rows` examples; the worst possible value if it is not finite."""
        value = self.family.score(model, _split(split), rows)
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
                `temperature`, to draw these words instead of taking the most likely ones; and `seed`, that of drawn
                words.
        """
        if isinstance(inputs, str | bytes):
            raise InputError(f"inputs must be a list, such as [{inputs[:20]!r}], got one {type(inputs).__name__}")
        for number, each in enumerate(inputs, start=1):
            if isinstance(each, str) and not each.strip():
                raise InputError(f"input {number} of {len(inputs)} is blank: leave it out")
        made = self.prediction_options(**options)
        return self.family.predict(self.model, inputs, made) if len(inputs) else []

    def prediction_options(self, **given: Any) -> PredictionOptions:
        """The options of predictions; raise if one is wrong, or is not for this model."""
        options = checked(PredictionOptions, **given)
        if options != PredictionOptions() and not self.family.continues_text:
            raise InputError(f"words, temperature and seed are for language models, but {self.name} is none")
        return options

    def answers(
        self,
        numbered: Iterable[tuple[int, Any]],
        options: PredictionOptions,
        *,
        whole: Any = None,
        at_once: int | None = None,
    ) -> Iterator[Answer]:
        """Predict inputs one after another, with only a few batches of them in memory.

        Args:
            numbered: The inputs with their line numbers, such as `family.read_inputs` gives them.
            options: The options of the prediction.
            whole: What `family.whole_input` gives; it gets all inputs.
            at_once: Number of inputs that are read before the first is predicted; by default what the family needs.
        """
        count = at_once or self.family.inputs_at_once
        source = iter(numbered)
        while chunk := list(islice(source, count)):
            inputs = [value for _, value in chunk if value is not None]
            found = iter(self.family.predict(self.model, inputs, options) if inputs else [])
            if whole is not None:
                whole.add(inputs)
            for line, value in chunk:
                yield line, None if value is None else next(found)


def load(run: str | Path, data: Origin | None = None, *, cpu: bool = False) -> FinishedRun:
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
    if run.name == DESCRIPTION or not run.name:
        run = run.absolute().parent if run.name else run.absolute()
    file = run if run.suffix == ".json" else run.parent / f"{run.name}.json"
    folder, description = file.with_suffix(""), None
    if (folder / DESCRIPTION).is_file():
        description = records.read_as(Description, "the description of a run", folder / DESCRIPTION)
    if file.is_file():
        record = records.read(file)
        if description is not None and description.record.name != record.name:
            raise InputError(f"{folder / DESCRIPTION} is of another run than {file}: copy the folder of this run")
    elif description is not None:
        record = description.record
    elif run.is_dir():
        raise InputError(f"{run} is not a run: it has no {DESCRIPTION}; name a folder such as runs/NAME")
    else:
        raise InputError(f"{file} does not exist: name the record of a finished run, such as runs/NAME.json")
    return FinishedRun(file.stem, folder, record, description)


def _split(name: str) -> Split:
    if name not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
    return name


def _read_encoding(file: Path) -> dict[str, Any]:
    """Read what was learnt from the training split, and check the parts whose form all families share."""
    try:
        found = dict(read_json(file))
        for name in ("classes", "words"):
            if not all(isinstance(text, str) for text in found.get(name, [])):
                raise TypeError(f"{name} must be a list of texts")
        for name in ("pixels", "brightest"):
            if type(found.get(name, 1)) is not int or found.get(name, 1) < 1:
                raise TypeError(f"{name} must be a whole number >= 1")
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file} is damaged ({error}): copy it again, or train again with another --out") from None
    return found
