"""The folder of a finished run: its weights, what its model needs to read inputs, and a description of the run."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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
from gasam.lab.errors import InputError
from gasam.lab.families import encoded as encoding
from gasam.lab.families.encoded import Encoded
from gasam.lab.families.family import Family
from gasam.lab.record import Record
from gasam.lab.storage import Checkpoints, read_json, replaced, write_json
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
        self.old_weights = path / "model.pt"
        """The weights of a run of an earlier version, which stored nothing else."""

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
        old = not self.weights.exists() and self.old_weights.exists()
        file = self.old_weights if old else self.weights
        try:
            if old:
                model.load_state_dict(Checkpoints(self.path).load(file) or {})
            else:
                load_model(model, file)
        except (RuntimeError, TypeError, safetensors.SafetensorError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{file} is damaged or does not hold the weights of this run ({reason}): copy it again, "
                "or train again with another --out"
            ) from None

    @property
    def has_weights(self) -> bool:
        if self.weights.exists():
            return True
        return self.old_weights.exists() and bool(Checkpoints(self.path).load(self.old_weights))


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
        """Raise unless the run's data was encoded by this version; the first records do not hold the version."""
        then = self.record.data.encoding
        if then not in (None, version):
            raise InputError(
                f"the encoding of {self.record.task} has changed since this run (now version {version}, then {then}): "
                "run it again with another --out, or use the gasam that trained it"
            )

    def check_weights(self) -> None:
        """Raise if there are no weights, before anything expensive is done."""
        if not self.folder.has_weights:
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
