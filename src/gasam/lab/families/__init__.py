"""Families of models: what one is, and the numbers of how it is trained; one file each."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Generator, Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.families.encoded import Encoded
from gasam.lab.families.values import check

Settings = TypeVar("Settings", bound="Recipe")
T = TypeVar("T")


@dataclass(frozen=True)
class Metric:
    name: str
    higher_is_better: bool
    unit: str = ""

    def better(self, new: float, old: float | None) -> bool:
        return old is None or (new > old if self.higher_is_better else new < old)

    def best(self, items: Iterable[T], score: Callable[[T], float]) -> T:
        """The item with the best score."""
        return max(items, key=score) if self.higher_is_better else min(items, key=score)


class Score(NamedTuple):
    """A metric on a split, and its standard error from the choice of the split's examples; None if that is unknown."""

    value: float
    error: float | None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained, whatever it is; a family's settings add what the model is.

    `batch` counts rows, for translation tokens. `rows` limits the training examples. `average` is the number of last
    epochs whose weights are averaged; 0 takes the epoch that is best on validation.
    """

    epochs: int
    batch: int
    learning_rate: float
    dropout: float
    rows: int | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Literal["constant", "halving", "inverse_sqrt"] = "constant"
    warmup: int = 0
    halve_after: int = 0
    average: int = 0

    encoding: ClassVar[tuple[str, ...]] = ("rows",)
    """The settings that encoded data depends on."""
    later: ClassVar[dict[str, Any]] = {}
    """Settings that came after the first records, with the values that these were made with."""

    def __post_init__(self) -> None:
        check(
            self,
            zero=("weight_decay", "warmup", "halve_after", "average"),
            below_one=("dropout", "betas", "smoothing"),
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def recorded(self) -> dict[str, Any]:
        """The settings as JSON holds them, without later ones at their old values: old records keep their identity."""
        values = {name: getattr(self, name) for name in self.names()}
        kept = {name: v for name, v in values.items() if name not in self.later or v != self.later[name]}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in kept.items()}


def drawn(count: int, of: int) -> Tensor:
    """That many of the first `of` numbers, the same every time; all of them where there are no more."""
    return torch.randperm(of, generator=Generator().manual_seed(0))[:count]


class Family(ABC, Generic[Settings]):
    """A model, its loss and its metric, on one encoded corpus in one size."""

    metric: ClassVar[Metric]
    settings_type: ClassVar[type[Recipe]]
    followed: ClassVar[Metric]
    """What `validate` gives; the metric itself unless a family says otherwise."""
    has_embeddings: ClassVar[bool] = True
    example_dim: ClassVar[int] = 0
    """The dimension of an embedding's output that counts examples."""

    def __init_subclass__(cls) -> None:
        if "followed" not in cls.__dict__:
            cls.followed = cls.metric

    def __init__(self, settings: Settings, data: Encoded) -> None:
        self.settings = settings
        self.data = data

    @staticmethod
    def select(split: Split, examples: list[Any], settings: Any) -> list[Any]:
        """The examples of a split that are used: `rows` of the training split, drawn once and for all."""
        if split != "train" or settings.rows is None or settings.rows >= len(examples):
            return examples
        return random.Random(0).sample(examples, settings.rows)

    @staticmethod
    @abstractmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        """What the encoding of all splits needs, such as a vocabulary. The corpus has its training split alone."""

    @staticmethod
    @abstractmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> Any:
        """The examples of a split as tensors."""

    @staticmethod
    def notes(corpus: Corpus, splits: Mapping[Split, Any], settings: Any) -> list[str]:
        """What should be said of the encoding."""
        return []

    @abstractmethod
    def model(self) -> nn.Module: ...

    @abstractmethod
    def batches(self, order: Generator) -> Sequence[Any]:
        """One epoch's training batches, in the order that `order` draws, as what `batch` makes tensors of."""

    @abstractmethod
    def batch(self, chosen: Any) -> tuple[Tensor, ...]: ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: tuple[Tensor, ...], carried: Any) -> tuple[Tensor, Any]:
        """The mean loss, and what is carried to the next batch: every pass of a step starts from the same."""

    @abstractmethod
    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        """The metric that is reported; of the first `rows` examples only, where that is enough."""

    def score(self, model: nn.Module, split: Split, rows: int | None = None) -> float:
        return self.measure(model, split, rows).value

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The metric at guessing level: without reading the input."""
        return 0.0

    def validate(self, model: nn.Module) -> float:
        """The number that follows training, once an epoch."""
        return self.score(model, "valid")

    @abstractmethod
    def objective(self) -> Objective:
        """The training loss, one an example, as analyses want it."""

    @abstractmethod
    def examples(self, split: Split, rows: int) -> list[tuple[Tensor, ...]]:
        """About that many examples of a split, always the same, in batches for the objective."""

    def embeddings(self, model: nn.Module) -> list[nn.Embedding]:
        """Those of words: FreeLB's noise goes on their outputs."""
        return [module for module in model.modules() if isinstance(module, nn.Embedding)]

    def remarks(self) -> dict[str, Any]:
        """What a record should say of this family besides."""
        return {}
