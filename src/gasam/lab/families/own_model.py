"""The family of the user's own model: its model, loss, data and metric are functions of a Python file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy
import torch
from torch import Generator, Tensor, nn

from gasam.analysis.objective import Objective
from gasam.family.sam_on import normalisation
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.data.inputs import InputFile
from gasam.lab.errors import InputError
from gasam.lab.families.batches import example_count, on_tensors
from gasam.lab.families.encoded import Encoded
from gasam.lab.families.family import Family, Score, drawn
from gasam.lab.families.own_data import Examples, content_hash
from gasam.lab.families.own_settings import OwnSettings
from gasam.lab.families.prediction import OwnPrediction, Prediction, PredictionOptions

TASK_COPY = "task.py"
"""The name of the copy of a task file in the folder of a run."""
DRAWS = 200
"""The number of bootstrap samples for the standard error of a metric that is not a plain mean."""


@dataclass(frozen=True)
class Functions:
    """The functions of a task file. See docs/own-model.md for what each of them gets and returns."""

    model: Callable[..., nn.Module]
    loss: Callable[[nn.Module, Any], Any]
    data: Callable[[], Sequence[Any]]
    metric: Callable[[nn.Module, Any], Tensor]
    summary: Callable[[Tensor], float] | None = None
    losses: Callable[[nn.Module, Any], Tensor] | None = None
    optimizer: Callable[[nn.Module, float], torch.optim.Optimizer] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    predict: Callable[[nn.Module, Sequence[Any]], Sequence[Any]] | None = None


def batched(inputs: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (inputs[start : start + size] for start in range(0, len(inputs), size))


@dataclass(frozen=True)
class OwnCorpus(Corpus):
    """The three splits of a task file, as `Examples`."""

    def digest(self) -> str:
        splits: list[Any] = [self.train, self.valid, self.test]
        return content_hash(splits)


class OwnModel(Family[OwnSettings]):
    """The family of one task file. A subclass for each file has its `functions` and its `metric`."""

    functions: ClassVar[Functions]
    text: ClassVar[str]
    """The text of the file, which is stored with every trained model."""
    settings_type = OwnSettings
    cached = False

    @staticmethod
    def select(split: Split, examples: Any, settings: Any) -> Any:
        if split != "train" or settings.rows is None or settings.rows >= len(examples):
            return examples
        return examples.only(drawn(settings.rows, len(examples)).tolist())

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def encode(split: Split, examples: Any, shared: dict[str, Any], settings: Any) -> Any:
        return examples

    def __init__(self, settings: OwnSettings, data: Encoded) -> None:
        super().__init__(settings, data)
        self.worthless = cache(self.worthless)  # type: ignore[method-assign]  # it evaluates a whole split

    def model(self) -> nn.Module:
        made = self.functions.model(**self.settings.arguments)
        if not isinstance(made, nn.Module):
            raise InputError(f"model() must return a torch.nn.Module, got {type(made).__name__}")
        return made

    @classmethod
    def has_embeddings(cls) -> bool:
        return any(isinstance(module, nn.Embedding) for module in cls._layers())

    @classmethod
    def has_normalisation(cls) -> bool:
        return any(map(normalisation, cls._layers()))

    @classmethod
    @cache
    def _layers(cls) -> list[nn.Module]:
        """The modules of the model. Tensors on the device "meta" need no memory, but not every model allows it."""
        with torch.random.fork_rng():
            try:
                with torch.device("meta"):
                    return list(cls.functions.model().modules())
            except Exception:
                return list(cls.functions.model().modules())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        make = self.functions.optimizer
        return None if make is None else make(model, self.settings.learning_rate)

    def batches(self, order: Generator) -> Sequence[Tensor]:
        return torch.split(torch.randperm(len(self.data["train"]), generator=order), self.settings.batch)

    def batch(self, chosen: Tensor) -> Any:
        """Read the examples. The seed of the step also decides random changes that the dataset makes to them."""
        seed = torch.initial_seed() % 2**32
        random.seed(seed)
        numpy.random.seed(seed)
        return self._read("train", chosen)

    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        found = self.functions.loss(model, batch)
        loss = getattr(found, "loss", found)  # the models of transformers return an object that holds it
        if not isinstance(loss, Tensor) or loss.ndim:
            shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(f"loss(model, batch) must return the mean loss, a tensor without dimensions, got {shape}")
        return loss, None

    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        values = self._values(model, split, rows)
        if self.functions.summary is None:
            error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None
            return Score(float(values.mean()), error)
        return Score(float(self.functions.summary(values)), self._bootstrap_error(values))

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The metric of the model before training, with seed 0."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.measure(self.model().eval(), split, rows).value

    def objective(self) -> Objective:
        """The loss of each example: from `losses`, or else from `loss` on batches of one example."""
        alone = self.functions.losses
        if alone is not None:
            return Objective(lambda model, batch: alone(model, batch), lambda found, batch: found)
        return Objective(self._losses_alone, lambda found, batch: found)

    def examples(self, split: Split, rows: int) -> list[Any]:
        chosen = drawn(rows, len(self.data[split]))
        return [self._read(split, some) for some in torch.split(chosen, self.settings.batch)]

    @classmethod
    def task_text(cls) -> str:
        return cls.text

    def files(self) -> dict[str, str]:
        return {TASK_COPY: self.text}

    def read_inputs(self, file: InputFile) -> Iterator[tuple[int, Any]]:
        return file.values()

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: PredictionOptions) -> list[Prediction]:
        if self.functions.predict is None:
            raise InputError("the task file has no predictions: define predict(model, inputs) in it and train again")
        batches = batched(inputs, options.batch or self.prediction_batch)
        return [
            OwnPrediction(value) for some in batches for value in self._predicted(self.functions.predict, model, some)
        ]

    @staticmethod
    @torch.no_grad()
    def _predicted(predict: Callable[..., Any], model: nn.Module, inputs: Sequence[Any]) -> list[Any]:
        try:
            values = list(predict(model, inputs))
        except Exception as error:  # the file's own code may raise anything, for example for an input of another form
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"predict(model, inputs) of the task file failed ({reason}): check the inputs") from error
        if len(values) != len(inputs):
            raise InputError(
                f"predict(model, inputs) must return {len(inputs)} results, one for each input, got {len(values)}"
            )
        return values

    def _read(self, split: Split, chosen: Tensor) -> Any:
        examples: Examples = self.data[split]
        return examples.batch(chosen, self.functions.collate)

    def _losses_alone(self, model: nn.Module, batch: Any) -> Tensor:
        def alone(row: int) -> Tensor:
            return self.loss(model, on_tensors(lambda part: part[row : row + 1], batch), None)[0]

        return torch.stack([alone(row) for row in range(example_count(batch))])

    @torch.no_grad()
    def _values(self, model: nn.Module, split: Split, rows: int | None) -> Tensor:
        """What `metric` returns for all examples of the split, or for the first `rows`, in double precision."""
        device = next(model.parameters()).device
        every = torch.arange(len(self.data[split]))[:rows]
        found = []
        for chosen in torch.split(every, self.settings.batch):
            batch = on_tensors(lambda part: part.to(device), self._read(split, chosen))
            found.append(self._checked(self.functions.metric(model, batch), len(chosen)))
        return torch.cat(found)

    @staticmethod
    def _checked(values: Any, rows: int) -> Tensor:
        if not isinstance(values, Tensor) or not values.ndim or len(values) != rows:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise InputError(
                f"metric(model, batch) must return a tensor with one value for each of the {rows} examples, got {got}"
            )
        return values.detach().double().cpu()

    def _bootstrap_error(self, values: Tensor) -> float | None:
        if len(values) < 2:
            return None
        return float(torch.tensor(list(self._resampled(values)), dtype=torch.float64).std())

    def _resampled(self, values: Tensor) -> Iterator[float]:
        assert self.functions.summary is not None
        generator = Generator().manual_seed(0)
        for _ in range(DRAWS):
            yield float(self.functions.summary(values[torch.randint(len(values), (len(values),), generator=generator)]))
