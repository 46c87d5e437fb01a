"""Tasks of the user's own: a Python file with functions for the model, the loss, the data and the metric."""

from __future__ import annotations

import hashlib
import inspect
import math
import pickle
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Self

import numpy
import torch
from accelerate.utils import recursively_apply, send_to_device
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Subset, default_collate

from gasam.analysis.objective import Objective
from gasam.family.sam_on import normalisation
from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split
from gasam.lab.data.files import values
from gasam.lab.errors import InputError, checked
from gasam.lab.families.family import STRICT, Family, Layers, Recipe, Sampling, Score, bootstrapped, drawn, tensors
from gasam.lab.record import Metric
from gasam.lab.tasks.task import Task

TASK_COPY = "task.py"
"""The name of the copy of a task file in the folder of a run."""
DRAWS = 200
"""The number of bootstrap samples for the standard error of a metric that is not a plain mean."""
SAMPLED = 256
"""The number of examples of a dataset that are hashed. Tensors are hashed as a whole."""
_LOADED: dict[tuple[Path, str], Task] = {}
"""The tasks that this process has loaded, by path and hash."""


def is_file(reference: str) -> bool:
    return reference.endswith(".py")


def absolute(reference: str) -> Path:
    return Path(reference).expanduser().resolve()


def hashed(text: str) -> str:
    """The hash of a task file, as in the settings of its runs."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_task(reference: str, code: str | None = None) -> Task:
    """Load the task of a Python file, in the version `code`, which a process that has loaded it keeps after an edit."""
    path = absolute(reference)
    if code is not None and (path, code) in _LOADED:
        return _LOADED[path, code]
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{reference} cannot be read ({reason}): name a Python file that defines a task") from None
    if code not in (None, hashed(text)):
        raise InputError(f"{reference} has changed since this command was started: run the command again")
    return load_text(reference, text)


def load_text(reference: str, text: str) -> Task:
    """Load the task of this text, once in a process. The node of a cluster has only the text."""
    path, code = absolute(reference), hashed(text)
    if (path, code) not in _LOADED:
        try:
            _LOADED[path, code] = _task(path, text)
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from None
    return _LOADED[path, code]


class TaskFile(BaseModel):
    """What a task file defines. See docs/experiments.md for what each function gets and returns."""

    model_config = STRICT

    model: Callable[..., nn.Module]
    loss: Callable[[nn.Module, Any], Any]
    data: Callable[[], Sequence[Any]]
    metric: Callable[[nn.Module, Any], Tensor]
    higher_is_better: bool
    metric_name: str = "metric"
    metric_unit: str = ""
    metric_decimals: Annotated[int, Field(ge=0, le=12)] = 2
    settings: dict[str, Any] = {}
    summary: Callable[[Tensor], float] | None = None
    losses: Callable[[nn.Module, Any], Tensor] | None = None
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    predict: Callable[[nn.Module, Sequence[Any]], Sequence[Any]] | None = None

    def read(self) -> OwnCorpus:
        given = self.data()
        if not isinstance(given, tuple | list) or len(given) != len(SPLITS):
            raise InputError("data() must return three sets of examples: train, valid and test")
        return OwnCorpus(*map(Examples, given, SPLITS))  # type: ignore[arg-type]


def _task(path: Path, text: str) -> Task:
    module = _run(path, text)
    file = checked(TaskFile, **{name: getattr(module, name) for name in TaskFile.model_fields if hasattr(module, name)})
    metric = Metric(file.metric_name, file.higher_is_better, file.metric_unit, file.metric_decimals)
    arguments = {name: each.default for name, each in inspect.signature(file.model).parameters.items()}
    for name, value in arguments.items():
        if name in OwnSettings.model_fields or hasattr(OwnSettings, name) or name.startswith("_"):
            raise InputError(f"{name!r} is a name of the settings, so rename this argument of model()")
        if value is inspect.Parameter.empty or not isinstance(value, int | float | str | tuple | None):
            raise InputError(
                f"the argument {name!r} of model() must have a default value that is a number, text, "
                "True, False, None or a tuple of these"
            )
    return Task(
        name=path.stem,
        about="your own model",
        kind="file",
        family=type("OwnModel", (OwnModel,), {"file": file, "metric": metric, "followed": metric, "task_text": text}),
        source=lambda origin: Source(path.stem, file.read),
        sizes={"own": OwnSettings(code=hashed(text), **arguments).changed(**file.settings)},
    )


def _run(path: Path, text: str) -> ModuleType:
    """Run the file as a module. Its folder is on the path of imports, as for a script."""
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = ModuleType(f"gasam_task_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # classes of the file can then be pickled
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)] or [getattr(error, "lineno", None)]
        raise InputError(f"line {lines[-1]}: {type(error).__name__}: {error}") from None
    return module


class OwnSettings(Recipe):
    """The settings of a task file, with the arguments of its `model`, which have the types of their default values."""

    model_config = ConfigDict(extra="allow")

    epochs: PositiveInt = 10
    batch: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3
    code: str = ""  # a hash of the file, so that a changed file gives other runs

    @property
    def arguments(self) -> dict[str, Any]:
        return self.model_extra or {}

    def changed(self, **overrides: Any) -> Self:
        for name in overrides.keys() & self.arguments.keys():
            wanted, value = type(self.arguments[name]), overrides[name]
            if (wanted, type(value)) in ((float, int), (tuple, list)):
                overrides[name] = wanted(value)
            elif type(value) is not wanted and self.arguments[name] is not None:
                raise InputError(f"{name} must have the type of its default value, {wanted.__name__}, got {value!r}")
        return super().changed(**overrides)


class Examples:
    """The examples of a split: tensors in a tuple or dictionary, with a row for each example, or a sequence of them."""

    def __init__(self, given: Any, split: str) -> None:
        self.given, self.split, self.in_tensors = given, split, isinstance(given, tuple | Mapping)
        if self.in_tensors:
            lengths = {tensor.shape[0] if tensor.ndim else -1 for tensor in tensors(given)}
            if len(lengths) != 1 or -1 in lengths:
                found = ", ".join(map(str, sorted(lengths))) or "no tensors"
                raise InputError(f"the tensors of data() for {split} must have the same number of rows, got {found}")
        elif isinstance(given, IterableDataset) or not hasattr(given, "__getitem__"):
            raise InputError(
                f"data() must give a dataset with numbered examples, a list or a tuple of tensors for {split}, "
                f"got {type(given).__name__}"
            )
        self.count = lengths.pop() if self.in_tensors else len(given)
        if not self.count:
            raise InputError(f"data() must give at least one example for {split}, got none")

    def __len__(self) -> int:
        return self.count

    def only(self, chosen: Tensor) -> Examples:
        given = self.batch(chosen) if self.in_tensors else Subset(self.given, chosen.tolist())
        return Examples(given, self.split)

    def batch(self, chosen: Tensor, collate: Callable[[list[Any]], Any] | None = None) -> Any:
        """The chosen examples as one batch, which `collate` makes of a list; by default torch's `default_collate`."""
        if self.in_tensors:
            return recursively_apply(lambda tensor: tensor[chosen], self.given)
        return (collate or default_collate)([self.given[number] for number in chosen.tolist()])

    def parts(self) -> Iterator[bytes]:
        """The content as bytes, for the hash: all rows of tensors, and a sample of the examples of a dataset."""
        yield str(len(self)).encode()
        if self.in_tensors:
            yield from _bytes_of(self.given)
            return
        for number in range(0, len(self), max(1, len(self) // SAMPLED)):
            yield from _bytes_of(self.given[number])


def _bytes_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping | tuple | list):
        for part in sorted(value.items()) if isinstance(value, Mapping) else value:
            yield from _bytes_of(part)
    else:
        yield pickle.dumps(value, protocol=5)


@dataclass(frozen=True)
class OwnCorpus(Corpus):
    """The three splits of a task file, as `Examples`."""

    def digest(self) -> str:
        """A hash of the examples. Random changes that a dataset makes to them are drawn with a fixed seed."""
        sha = hashlib.sha256()
        states = random.getstate(), numpy.random.get_state()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            _seed_others(0)  # which random changes of examples may use, too
            for split in SPLITS:
                examples: Any = self.split(split)
                sha.update(f"\1{split}".encode())
                for part in examples.parts():
                    sha.update(part)
                    sha.update(b"\0")
        random.setstate(states[0])
        numpy.random.set_state(states[1])
        return sha.hexdigest()


def _seed_others(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)


class OwnModel(Family[OwnSettings]):
    """The family of one task file. A subclass for each file has its `file`, its `metric` and its `task_text`."""

    file: ClassVar[TaskFile]
    settings_type = OwnSettings

    @staticmethod
    def select(split: Split, examples: Any, settings: Any) -> Any:
        if split != "train" or settings.rows is None or settings.rows >= len(examples):
            return examples
        return examples.only(drawn(settings.rows, len(examples)))

    def model(self) -> nn.Module:
        made = self.file.model(**self.settings.arguments)
        if not isinstance(made, nn.Module):
            raise InputError(f"model() must return a torch.nn.Module, got {type(made).__name__}")
        return made

    @classmethod
    @cache
    def has(cls, layers: Layers) -> bool:
        with torch.random.fork_rng():
            modules = cls.file.model().modules()
        if layers == "word embeddings":
            return any(isinstance(module, nn.Embedding) for module in modules)
        return any(map(normalisation, modules))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        return None if self.file.optimizer is None else self.file.optimizer(model, self.settings.learning_rate)

    def count(self, split: Split) -> int:
        return len(self.data[split])

    def read(self, split: Split, rows: Tensor) -> Any:
        examples: Examples = self.data[split]
        return examples.batch(rows, self.file.collate)

    def batch(self, chosen: Tensor) -> Any:
        """Read the examples. The seed of the step also decides random changes that the dataset makes to them."""
        _seed_others(torch.initial_seed() % 2**32)
        return self.read("train", chosen)

    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        found = self.file.loss(model, batch)
        loss = getattr(found, "loss", found)  # the models of transformers return an object that holds it
        if not isinstance(loss, Tensor) or loss.ndim:
            wanted = "the mean loss, a tensor without dimensions"
            raise InputError(f"loss(model, batch) must return {wanted}, got {_form(loss)}")
        return loss, None

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        values, summary = self._values(model, split, rows), self.file.summary
        if summary is not None:
            return bootstrapped(lambda some: float(summary(values[some])), len(values), DRAWS)
        error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
        return Score(float(values.mean()), error)

    @torch.no_grad()
    def _values(self, model: nn.Module, split: Split, rows: int | None) -> Tensor:
        """What `metric` returns for all examples of the split, or for the first `rows`, in double precision."""
        device = next(model.parameters()).device
        found = []
        for chosen in torch.split(torch.arange(len(self.data[split]))[:rows], self.settings.batch):
            batch = send_to_device(self.read(split, chosen), device)
            values = self.file.metric(model, batch)
            if not isinstance(values, Tensor) or not values.ndim or len(values) != len(chosen):
                wanted = f"a tensor with one value for each of the {len(chosen)} examples"
                raise InputError(f"metric(model, batch) must return {wanted}, got {_form(values)}")
            found.append(values.detach().double().cpu())
        return torch.cat(found)

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The metric of the model before training, with seed 0."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.measure(self.model().eval(), split, rows).value

    def objective(self) -> Objective:
        """The loss of each example: from `losses`, or else from `loss` on batches of one example."""
        return Objective(self.file.losses or self._losses_alone, lambda found, batch: found)

    def _losses_alone(self, model: nn.Module, batch: Any) -> Tensor:
        rows = torch.split(torch.arange(len(tensors(batch)[0])), 1)
        return torch.stack([self.loss(model, recursively_apply(itemgetter(row), batch), None)[0] for row in rows])

    def read_inputs(self, path: Path | None, column: str) -> Iterator[tuple[int, Any]]:
        return values(path)

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Sampling) -> list[dict[str, Any]]:
        """What the file's `predict` returns: a dictionary for each input, or a value under the name `prediction`."""
        if self.file.predict is None:
            raise InputError("the task file has no predictions: define predict(model, inputs) in it and train again")
        try:
            found = list(self.file.predict(model, inputs))
        except Exception as error:  # the file's own code may raise anything
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"predict(model, inputs) of the task file failed ({reason}): check the inputs") from error
        if len(found) != len(inputs):
            raise InputError(f"predict(model, inputs) must return {len(inputs)} results, got {len(found)}")
        return [dict(each) if isinstance(each, Mapping) else {"prediction": each} for each in found]

    def line(self, prediction: Mapping[str, Any]) -> str:
        """A text as it is, another value as JSON."""
        value = prediction["prediction"] if prediction.keys() == {"prediction"} else prediction
        return value if isinstance(value, str) else super().line(value)


def _form(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
