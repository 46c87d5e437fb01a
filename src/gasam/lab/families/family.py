"""What all families of models share; each family has a file in this folder."""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.data.corpus import Corpus, Split
from gasam.lab.data.files import InputFile
from gasam.lab.errors import InputError, checked
from gasam.lab.families.encoded import Encoded
from gasam.lab.record import Metric

Settings = TypeVar("Settings", bound="Recipe")
T = TypeVar("T")


class Score(NamedTuple):
    """A metric on a split, and its standard error over the examples of the split; None if that is not known."""

    value: float
    error: float | None


STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
Share = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1, strict=False)]


class Recipe(BaseModel):
    """The settings of training that all families share; each family adds the settings of its model.

    Args:
        epochs: Number of epochs.
        batch: Batch size in rows, or in tokens for translation.
        learning_rate: The learning rate, before the schedule.
        rows: Maximum number of training examples; None for all.
        optimizer: The name of the optimizer.
        betas: The betas of Adam and AdamW.
        weight_decay: The weight decay.
        clip: Maximum norm of the gradient; None for no clipping.
        schedule: The learning-rate schedule, see `training.loop.rate_factor`.
        warmup: Number of warm-up updates of "inverse_sqrt", "linear" and "cosine".
        halve_after: The last epoch at the full learning rate of "halving".
        average: Number of last epochs whose weights are averaged; 0 takes the epoch that is best on validation.
    """

    model_config = STRICT

    epochs: PositiveInt
    batch: PositiveInt
    learning_rate: PositiveFloat
    rows: PositiveInt | None = None
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    betas: Betas = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.0
    clip: PositiveFloat | None = None
    schedule: Literal["constant", "halving", "inverse_sqrt", "linear", "cosine"] = "constant"
    warmup: NonNegativeInt = 0
    halve_after: NonNegativeInt = 0
    average: NonNegativeInt = 0

    encoding: ClassVar[tuple[str, ...]] = ("rows",)
    """The names of the settings that the encoded data depends on."""

    def space(self) -> dict[str, Any]:
        """The ranges of `gasam tune --quantity settings`, around the values of this recipe, as `--space` takes them."""
        return {"learning_rate": around(self.learning_rate, 5), "epochs": [self.epochs, 2 * self.epochs]}

    def changed(self, **overrides: Any) -> Self:
        """The settings with some of them replaced; raise `InputError` for a name or a value that is not allowed."""
        for name in overrides:
            if name not in type(self).model_fields:
                raise InputError(f"there is no setting {name!r}: there are {', '.join(type(self).model_fields)}")
        return checked(type(self), **dict(self) | overrides)


def around(value: float, factor: float) -> str:
    """The range from the value divided by the factor to the value times the factor."""
    return f"{value / factor:.2g}..{value * factor:.2g},log"


def drawn(count: int, of: int) -> Tensor:
    """`count` of the numbers below `of`, in a fixed random order; all of them if there are fewer."""
    return torch.randperm(of, generator=Generator().manual_seed(0))[:count]


def ignore_count(done: int) -> None:
    """Ignore progress."""


class PredictionOptions(BaseModel):
    """The options of a prediction.

    Args:
        batch: Number of inputs that the model reads at once; a language model reads one line at a time.
        words: Maximum number of words that a language model adds to each text; by default 10.
        temperature: 0 takes the most likely word each time; above 0 words are drawn, at 1 with their probabilities.
        seed: Seed of drawn words.
        watch: Called with the number of inputs of the call that are done.
    """

    model_config = STRICT

    batch: PositiveInt | None = None
    words: NonNegativeInt | None = None
    temperature: NonNegativeFloat | None = None
    seed: NonNegativeInt | None = None
    watch: Callable[[int], None] = ignore_count

    @property
    def continues(self) -> bool:
        """Whether an option of continuations is given."""
        return any(value is not None for value in (self.words, self.temperature, self.seed))

    @property
    def drawing_temperature(self) -> float:
        """The temperature; a seed alone asks for drawn words, at temperature 1."""
        return float(self.seed is not None) if self.temperature is None else self.temperature


class WholeInput(Protocol):
    """Collects what a family says about all inputs together, in their order."""

    def add(self, inputs: Sequence[Any]) -> None: ...

    def result(self) -> dict[str, Any] | None: ...


def one_line(text: str) -> str:
    return " ".join(text.split())


class Family(ABC, Generic[Settings]):
    """A model with its loss and its metric, for one encoded corpus and one size.

    `model` and `predict` use only the settings and what was learnt, `data.shared`: a stored run has no splits.
    """

    metric: ClassVar[Metric]
    settings_type: ClassVar[type[Recipe]]
    followed: ClassVar[Metric]
    """The metric that `validate` returns; by default the same as `metric`."""
    task_text: ClassVar[str | None] = None
    """The text of the user's Python file that defines the task; None for a built-in family."""
    example_dim: ClassVar[int] = 0
    """The dimension of batches and of embeddings' outputs that indexes examples."""
    continues_text: ClassVar[bool] = False
    """Whether predictions have the options of continuations."""
    batches_at_once: ClassVar[int] = 1
    """How many batches of inputs `predict` gets in one call, so that it can sort them by length."""

    def __init_subclass__(cls) -> None:
        if "metric" in cls.__dict__ and "followed" not in cls.__dict__:
            cls.followed = cls.metric

    def __init__(self, settings: Settings, data: Encoded) -> None:
        self.settings = settings
        self.data = data

    @staticmethod
    def select(split: Split, examples: list[Any], settings: Any) -> list[Any]:
        """The examples of a split to use. Of the training split these are `rows`, the same in every run."""
        if split != "train" or settings.rows is None or settings.rows >= len(examples):
            return examples
        return random.Random(0).sample(examples, settings.rows)

    @staticmethod
    @abstractmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        """Learn what the encoding of all splits needs, such as a vocabulary, from the training split only.

        These are JSON values, which are stored with every trained model.
        """

    @staticmethod
    @abstractmethod
    def encode(split: Split, examples: list[Any], shared: dict[str, Any], settings: Any) -> Any:
        """The examples of a split as tensors."""

    @staticmethod
    def notes(corpus: Corpus, splits: Mapping[Split, Any], settings: Any) -> list[str]:
        """Notes about the encoding, to show next to results."""
        return []

    @abstractmethod
    def model(self) -> nn.Module: ...

    @classmethod
    def has_embeddings(cls) -> bool:
        """Whether the model has word embeddings, which FreeLB moves."""
        return True

    @classmethod
    def has_normalisation(cls) -> bool:
        """Whether the model has normalisation layers, which SAM-ON moves."""
        return False

    @abstractmethod
    def batches(self, order: Generator) -> Sequence[Any]:
        """The training batches of one epoch, in random order; `batch` turns each into tensors."""

    @abstractmethod
    def batch(self, chosen: Any) -> Any:
        """The tensors of a batch: usually a tuple, but a dictionary or a nested structure is allowed."""

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """The optimizer; None for the one that the settings name."""
        return None

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        """The mean loss, and the state to carry to the next batch. Every pass of a step starts from the same state."""

    @abstractmethod
    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        """The reported metric on a split, or on its first `rows` examples."""

    def score(self, model: nn.Module, split: Split, rows: int | None = None) -> float:
        return self.measure(model, split, rows).value

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The metric of guessing without reading the input."""
        return 0.0

    def validate(self, model: nn.Module) -> float:
        """The validation score after an epoch."""
        return self.score(model, "valid")

    @abstractmethod
    def objective(self) -> Objective:
        """The training loss of each example, for analyses."""

    @abstractmethod
    def examples(self, split: Split, rows: int) -> list[Any]:
        """About `rows` examples of a split, always the same ones, in batches for the objective."""

    def embeddings(self, model: nn.Module) -> list[nn.Embedding]:
        """The word embeddings, to whose outputs FreeLB adds its noise."""
        return [module for module in model.modules() if isinstance(module, nn.Embedding)]

    def remarks(self) -> dict[str, Any]:
        """Further entries for the record of a run."""
        return {}

    @property
    def prediction_batch(self) -> int:
        """How many inputs the model reads at once when it predicts."""
        return self.settings.batch

    def read_inputs(self, file: InputFile) -> Iterator[tuple[int, Any]]:
        """The inputs of a file with their line numbers; None for a blank one, which gets no prediction."""
        return ((line, text or None) for line, text in file.texts())

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: PredictionOptions) -> list[dict[str, Any]]:
        """What the model, in eval mode, says about each input, as JSON values, in the order of the inputs."""
        raise InputError(f"{type(self).__name__} has no predictions: its models can be trained and analysed only")

    def line(self, prediction: Mapping[str, Any]) -> str:
        """A prediction as one line of text."""
        return json.dumps(prediction, ensure_ascii=False)

    def whole_input(self, model: nn.Module) -> WholeInput | None:
        """Collects what is said about all inputs together; None if there is nothing to say."""
        return None
