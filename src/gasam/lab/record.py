"""What a run or an analysis was and what it gave, whole: nothing has to be looked up or parsed to show a record."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

import gasam
from gasam.lab.errors import InputError
from gasam.lab.storage import read_json, write_json

T = TypeVar("T")
Kind = TypeVar("Kind")
LIBRARIES = ("torch", "accelerate", "transformers", "tokenizers", "sacrebleu", "scikit-learn", "num2words")


@dataclass(frozen=True)
class Metric:
    """The name of a metric, whether higher is better, its unit, and the number of decimals to show."""

    name: str
    higher_is_better: bool
    unit: str = ""
    decimals: int = 2

    def shown(self, value: float) -> str:
        return f"{value:.{self.decimals}f}{self.unit}"

    def difference(self, value: float) -> str:
        return f"{round(value, self.decimals) + 0.0:+.{self.decimals}f}" if abs(value) < 1000 else f"{value:+,.0f}"

    @property
    def unit_of_differences(self) -> str:
        """What a difference of two scores is counted in."""
        return "points" if self.unit == "%" else self.name

    def gain(self, new: float, old: float) -> float:
        """How much better the new score is."""
        return new - old if self.higher_is_better else old - new

    def best(self, items: Iterable[T], score: Callable[[T], float]) -> T:
        return max(items, key=score) if self.higher_is_better else min(items, key=score)


class Provenance(BaseModel):
    """Which code wrote a record, on which hardware, with which versions of Python and of the libraries."""

    model_config = ConfigDict(strict=True, extra="forbid")

    schema_version: Literal[2] = Field(alias="schema", default=2)
    commit: str | None = None
    dirty: bool | None = None
    machine: dict[str, Any] = {}
    versions: dict[str, str] = {}


class DataOfRun(BaseModel):
    """The hash of the examples, the version of their encoding, notes for readers, and the names of the user's files."""

    hash: str
    encoding: int
    notes: list[str] = []
    files: list[str] = []


class Summary(BaseModel):
    """A run with its configuration and scores; the record of an analysis holds this part of its run."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    task: str
    size: str
    method: str
    seed: int
    settings: dict[str, Any]
    walk: dict[str, Any]
    data: DataOfRun
    metric: Annotated[Metric, BeforeValidator(TypeAdapter(Metric).validate_python)]  # strict models take no dictionary
    valid: FiniteFloat | None  # None if training diverged before it gave usable weights
    test: FiniteFloat | None  # None in the same case, and for the trial of a search
    gradient_evaluations: int | float = Field(gt=0)  # forward and backward passes of a whole batch

    @property
    def key(self) -> str:
        """The same for all seeds of a configuration: groups and rows of tables meet by it."""
        return key_of(self.task, self.settings, self.walk, self.data.hash, self.data.encoding)


class Record(Summary, Provenance):
    """The record of a finished run. Read one with `record.read(Path("runs/NAME.json"))`."""

    valid_error: float | None = None  # the standard error of `valid`
    test_error: float | None = None
    worthless: float | None = None  # the metric of guessing without reading the input, on the test split
    best_epoch: int | None = None  # on validation, counted from 1
    diverged: bool = False  # whether the loss became infinite or NaN
    updates: int  # steps of the optimizer
    seconds: float  # of training
    parameters: int  # weights of the model
    curve: list[dict[str, Any]]  # a row for each epoch; `walk` has means over its walks
    remarks: dict[str, Any] = {}  # of the family of models, such as the signature of BLEU


class AnalysisRecord(Provenance):
    """The record of an analysis of one run: `options` determine the numbers, `found` holds them."""

    kind: str
    options: dict[str, Any]
    run: Summary
    found: dict[str, Any]
    examples: int | None = None
    seconds: float = 0.0


def key_of(
    task: str, settings: Mapping[str, Any], walk: Mapping[str, Any], data_hash: str, encoding: int, *more: object
) -> str:
    """A hash of the whole configuration. The source of the walk's size is not in it; `more` is, such as the seed."""
    walk = {name: value for name, value in walk.items() if name != "source"}
    text = json.dumps([task, settings, walk, data_hash, encoding, *more], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read(file: Path) -> Record:
    return read_as(Record, "a record", file)


def read_analysis(file: Path) -> AnalysisRecord:
    return read_as(AnalysisRecord, "the record of an analysis", file)


def read_as(kind: type[Kind], what: str, file: Path) -> Kind:
    """Read a JSON file as an object of a class; raise `InputError` if it is not one, with `what` for the class."""
    try:
        return TypeAdapter(kind).validate_python(read_json(file))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}"
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}): check what it is, and its permissions") from None
    except (ValueError, RecursionError) as error:
        fault = str(error)
    raise InputError(f"{file} is not {what}: {fault}; delete it and run again")


def write(file: Path, record: Record | AnalysisRecord) -> None:
    write_json(file, as_json(record))


def as_json(record: Record | AnalysisRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", by_alias=True)


def versions() -> dict[str, str]:
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"python": platform.python_version(), "gasam": gasam.__version__} | libraries


def code() -> dict[str, Any]:
    """The commit that gasam runs from; None if it was installed without its git history."""
    package = Path(gasam.__file__).parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "gasam" != package:
        return {"commit": None, "dirty": None}
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", "--", str(package))
    return {"commit": _git(package, "rev-parse", "HEAD"), "dirty": bool(changed)}


def machine(device: torch.device) -> dict[str, Any]:
    """The hardware of this process. Training is bit-identical only on machines with the same instruction set."""
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "device": str(device),
        "processes": torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1,
        "threads": torch.get_num_threads(),
        "platform": platform.machine(),
        "cpu": named[1] if named else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
