"""The folder of a finished run: its weights, what its model needs to read inputs, and a description of the run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_model, save_model
from torch import nn

import gasam
from gasam.lab import record as records
from gasam.lab import tasks
from gasam.lab.data.corpus import SPLITS, Split
from gasam.lab.errors import InputError, checked
from gasam.lab.families import encoded as encoding
from gasam.lab.families.encoded import Encoded
from gasam.lab.families.family import Family, PredictionOptions, WholeInput
from gasam.lab.record import Record
from gasam.lab.storage import read_json, replaced, write_json
from gasam.lab.tasks import Origin
from gasam.lab.tasks.own_model import TASK_COPY, code_of

DESCRIPTION = "run.json"


class OwnFile(BaseModel):
    """A file of the user that a run was trained with, and the hash of its bytes."""

    split: Split
    path: Path
    sha256: str

    def changed(self) -> bool:
        return not self.path.is_file() or _sha256(self.path) != self.sha256


class Description(BaseModel):
    """The description of a run in its folder, run.json.

    Args:
        schema_version: The version of the format of the file, `schema` in JSON.
        gasam: The version of gasam that trained it.
        origin: Where the data was, with absolute paths.
        files: The user's own files, if the run was trained on them.
        record: The record of the run.
    """

    model_config = ConfigDict(populate_by_name=True)

    schema_version: Literal[2] = Field(alias="schema")
    gasam: str
    origin: Origin
    files: list[OwnFile]
    task_file: str | None = None
    record: Record


class RunFolder:
    """The files of a finished run. They are all that its use needs, also on another machine.

    - `model.safetensors`: the weights. Weights that are tied are stored once. A run that diverged has none.
    - `encoding.json`: what was learnt from the training split, such as the vocabulary, and the names of the classes.
    - `run.json`: the settings, the record, where the data was, and the version of gasam.
    - `task.py`: a copy of the user's Python file, if it defines the task.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.weights = path / "model.safetensors"
        self.encoding = path / "encoding.json"
        self.description = path / DESCRIPTION
        self.task = path / TASK_COPY

    def write(
        self,
        model: nn.Module | None,
        family: Family[Any],
        record: Record,
        origin: Origin,
        files: Sequence[OwnFile],
        task_file: str | None,
    ) -> None:
        """Write all files, each atomically.

        Args:
            model: The model with its final weights; None if the run diverged.
            family: The family with the run's settings and data.
            record: The record of the run.
            origin: Where the data is.
            files: The user's own files.
            task_file: The Python file that defines the task.
        """
        if model is None:
            self.weights.unlink(missing_ok=True)
        else:
            with replaced(self.weights) as partial:
                try:
                    save_model(model, str(partial))
                except safetensors.SafetensorError as error:
                    raise _system_error(error) from None
        write_json(self.encoding, family.readable(family.data.shared))
        for name, text in family.files().items():
            with replaced(self.path / name) as partial:
                partial.write_text(text, encoding="utf-8")
        described = Description(
            schema=2,
            gasam=gasam.__version__,
            origin=origin.absolute(),
            files=list(files),
            task_file=task_file,
            record=record,
        )
        write_json(self.description, described.model_dump(mode="json", by_alias=True))

    def load_weights(self, model: nn.Module) -> None:
        """Load the weights into a model; raise `InputError` if there are none, or if they are of another model."""
        try:
            load_model(model, self.weights)
        except (RuntimeError, TypeError, safetensors.SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{self.weights} is damaged or does not hold the weights of this run ({reason}): copy it again, "
                "or train again with another --out"
            ) from None


@dataclass(frozen=True)
class FinishedRun:
    """A finished run on disk.

    Args:
        name: The name of the run.
        folder: Its folder.
        record: Its record.
        description: What its folder says; None if an earlier version trained it.
    """

    name: str
    folder: RunFolder
    record: Record
    description: Description | None

    @cached_property
    def task(self) -> str:
        """The name of the task, or the file that defines it: the user's, or its copy in the folder if that changed."""
        code = self.record.settings.get("code")
        if code is None:
            return self.record.task
        told = None if self.description is None else self.description.task_file
        for path in (Path(told or self.record.task), self.folder.task):
            if code_of(path) == code:
                return str(path)
        raise InputError(
            f"the task of {self.name} is not known any more: {told} has changed or does not exist, and so has "
            f"{self.folder.task}; copy the whole folder of the run"
        )

    def family(self) -> Family[Any]:
        """The family without the data, for predictions; raise `InputError` if the folder does not have all it needs."""
        if self.description is None or not self.folder.encoding.is_file():
            missing = self.folder.description if self.description is None else self.folder.encoding
            raise InputError(
                f"{self.name} cannot be used without its training data, because {missing} does not exist: copy the "
                "whole folder, or, if an earlier version trained it, train it again with another --out"
            )
        self.check_encoding(encoding.VERSION)
        record, shared = self.record, _read_encoding(self.folder.encoding)
        task = tasks.find(self.task)
        settings = task.settings(record.size, **task.family.settings_type.later | record.settings)
        return task.family(settings, Encoded(shared, {}, record.data.hash, tuple(record.data.notes)))

    def check_encoding(self, version: int) -> None:
        """Raise unless the run's data was encoded by this version."""
        then = self.record.data.encoding
        if then != version:
            raise InputError(
                f"the encoding of {self.record.task} has changed since this run (now version {version}, then {then}): "
                "run it again with another --out, or use the gasam that trained it"
            )

    def check_weights(self) -> None:
        """Raise if there are no weights, before anything expensive is done."""
        if not self.folder.weights.exists():
            reason = "the run diverged" if self.record.test is None else f"{self.folder.weights} does not exist"
            raise InputError(f"{self.name} has no weights: {reason}; run it again with another --out")

    def trained(self, model: nn.Module, *, cpu: bool = False) -> nn.Module:
        """The model with the run's weights, in eval mode, on the accelerator unless `cpu` is asked for."""
        self.folder.load_weights(model)
        device = torch.device("cpu")
        if torch.accelerator.is_available() and not cpu:
            device = torch.accelerator.current_accelerator() or device
        return model.to(device).eval()


def find_run(run: Path) -> FinishedRun:
    """Find a finished run by its record, NAME.json, or by its folder, NAME, which may have been copied alone."""
    if run.name == DESCRIPTION or not run.name:
        run = run.absolute().parent if run.name else run.absolute()
    file = run if run.suffix == ".json" else run.parent / f"{run.name}.json"
    folder = RunFolder(file.with_suffix(""))
    description = None
    if folder.description.is_file():
        description = records.read_as(Description, "the description of a run", folder.description)
    if file.is_file():
        record = records.read(file)
        if description is not None and description.record.name != record.name:
            raise InputError(f"{folder.description} is of another run than {file}: copy the folder of this run")
    elif description is not None:
        record = description.record
    elif run.is_dir():
        raise InputError(f"{run} is not a run: it has no {DESCRIPTION}; name a folder such as runs/NAME")
    else:
        raise InputError(f"{file} does not exist: name the record of a finished run, such as runs/NAME.json")
    return FinishedRun(file.stem, folder, record, description)


def own_files(origin: Origin) -> list[OwnFile]:
    """The user's own files of a run with their hashes."""
    found = ((split, path) for split in SPLITS for path in origin.files(split))
    return [OwnFile(split=split, path=path, sha256=_sha256(path)) for split, path in found]


def _system_error(error: safetensors.SafetensorError) -> Exception:
    """The `OSError` that safetensors reports as text, such as that of a full disk; else the error itself."""
    found = re.search(r"os error (\d+)", str(error))
    return error if found is None else OSError(int(found[1]), os.strerror(int(found[1])))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_encoding(file: Path) -> dict[str, Any]:
    """Read what was learnt from the training split, and check the parts whose form all families share."""
    found = _read_json(file)
    for name in ("classes", "words"):
        texts = found.get(name, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(f"{file} is damaged ({name} must be a list of texts): copy it again")
    for name in ("pixels", "brightest"):
        if name in found and (type(found[name]) is not int or found[name] < 1):
            raise InputError(f"{file} is damaged ({name} must be a whole number >= 1): copy it again")
    return found


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = read_json(file)
        if isinstance(value, dict):
            return value
        fault = "it must be an object"
    except (ValueError, RecursionError) as error:
        fault = str(error)
    raise InputError(f"{file} is damaged ({fault}): copy it again, or train again with another --out")


Answer = tuple[int, dict[str, Any] | None]
"""The line number of an input and its prediction; None for a blank input."""


@dataclass(frozen=True)
class TrainedRun:
    """A trained model with its record; `load` reads it from disk.

    Args:
        name: The name of the run.
        record: The record of the run, with its settings and scores.
        family: The family of the model, without the training data.
        model: The trained model, a torch module in eval mode.
        text_column: The column of the texts that it was trained on, if it was trained on a table.
    """

    name: str
    record: Record
    family: Family[Any]
    model: nn.Module
    text_column: str = "text"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the model and its training."""
        return self.record.settings

    def predict(
        self,
        inputs: Sequence[Any],
        *,
        words: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        batch: int | None = None,
    ) -> list[dict[str, Any]]:
        """What the model says about each input, as `gasam predict --json` prints it.

        A dictionary has the names `class` and `probabilities`, `translation`, or `perplexity`, `words` and
        `continuation`; for an own model those of its task file.

        Args:
            inputs: Texts; for images their pixels, whole numbers from 0 to 255, as lists, bytes or arrays.
            words: Maximum number of words that a language model adds to each text; by default 10.
            temperature: Draw these words, at 1 with their probabilities, below 1 with a preference for likely words.
                By default, or at 0, the most likely word is taken each time.
            seed: Seed of drawn words, by default 0. A seed without a temperature draws at temperature 1.
            batch: Number of inputs that the model reads at once; by default as many as in evaluation.
        """
        if isinstance(inputs, str | bytes):
            raise InputError(f"inputs must be a list, such as [{inputs[:20]!r}], got one {type(inputs).__name__}")
        for number, each in enumerate(inputs, start=1):
            if isinstance(each, str) and not each.strip():
                raise InputError(f"input {number} of {len(inputs)} is blank: leave it out")
        options = self.checked(checked(PredictionOptions, batch=batch, words=words, temperature=temperature, seed=seed))
        return self.family.predict(self.model, inputs, options) if len(inputs) else []

    def checked(self, options: PredictionOptions) -> PredictionOptions:
        """The options; raise if they are not for this model."""
        if options.continues and not self.family.continues_text:
            raise InputError(f"words, temperature and seed are for language models, but {self.name} is none")
        return options

    def answers(
        self,
        numbered: Iterable[tuple[int, Any]],
        options: PredictionOptions,
        *,
        whole: WholeInput | None = None,
        at_once: int | None = None,
    ) -> Iterator[Answer]:
        """Predict inputs one after another, with only a few batches of them in memory.

        Args:
            numbered: The inputs with their line numbers, such as `family.read_inputs` gives them.
            options: The options of the prediction.
            whole: Collects what is said about all inputs together.
            at_once: Number of inputs that are read before the first is predicted; by default what the family needs.
        """
        count = at_once or (options.batch or self.family.prediction_batch) * self.family.batches_at_once
        source = iter(numbered)
        while chunk := list(islice(source, count)):
            inputs = [value for _, value in chunk if value is not None]
            found = iter(self.family.predict(self.model, inputs, options) if inputs else [])
            if whole is not None:
                whole.add(inputs)
            for line, value in chunk:
                yield line, None if value is None else next(found)


def load(run: str | Path, *, cpu: bool = False) -> TrainedRun:
    """Load a trained model. Its folder is enough: neither its training data nor its record beside it is needed.

    Args:
        run: The record of a finished run, "runs/NAME.json", or its folder, "runs/NAME".
        cpu: Use the CPU even if there is a GPU.
    """
    found = find_run(Path(run))
    found.check_weights()
    family = found.family()
    try:
        model = found.trained(family.model(), cpu=cpu)
    except KeyError as error:
        raise InputError(f"{found.folder.encoding} is damaged (it lacks {error}): copy it again") from None
    column = found.description.origin.text_column if found.description is not None else "text"
    return TrainedRun(found.name, found.record, family, model, column)
