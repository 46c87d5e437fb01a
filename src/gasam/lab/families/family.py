"""What all families of models share; each family has a file in this folder."""

from __future__ import annotations

import hashlib
import json
import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from accelerate.utils import recursively_apply
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.data.corpus import SPLITS, Corpus, Source, Split
from gasam.lab.data.files import texts
from gasam.lab.errors import InputError, checked
from gasam.lab.record import Metric
from gasam.lab.storage import as_bytes, replaced

Settings = TypeVar("Settings", bound="Recipe")
Layers = Literal["word embeddings", "normalisation layers"]
VERSION = 5
"""The version of the encoding. Increase it if the same source and settings give other tensors. Records hold it."""
FORMAT = 5
"""The version of the cache's files. Increase it if their layout changes."""
UNKNOWN = "<unk>"


class Score(NamedTuple):
    """A metric on a split, and its standard error over the examples of the split; None if that is not known."""

    value: float
    error: float | None


def bootstrapped(metric: Callable[[Tensor], float], count: int, draws: int) -> Score:
    """The metric of examples, given by their numbers below `count`, and the standard error of that many draws."""
    generator = Generator().manual_seed(0)
    samples = [torch.randint(count, (count,), generator=generator) for _ in range(draws if count > 1 else 0)]
    values = torch.tensor([metric(some) for some in samples], dtype=torch.float64)
    return Score(metric(torch.arange(count)), float(values.std()) if samples else None)


STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
Share = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Share, Share], Field(strict=False)]
Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1, strict=False)]


class Recipe(BaseModel):
    """The settings of training that all families share; each family adds the settings of its model."""

    model_config = STRICT

    epochs: PositiveInt
    batch: PositiveInt  # rows, or tokens for translation
    learning_rate: PositiveFloat  # before the schedule
    rows: PositiveInt | None = None  # maximum number of training examples; None for all
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    betas: Betas = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.0
    clip: PositiveFloat | None = None  # maximum norm of the gradient; None for no clipping
    schedule: Literal["constant", "halving", "inverse_sqrt", "linear", "cosine"] = "constant"
    warmup: NonNegativeInt = 0  # updates of warm-up, for "inverse_sqrt", "linear" and "cosine"
    halve_after: NonNegativeInt = 0  # the last epoch at the full learning rate, for "halving"
    average: NonNegativeInt = 0  # last epochs whose weights are averaged; 0 takes the epoch that is best on validation

    encoding: ClassVar[tuple[str, ...]] = ("rows",)
    """The names of the settings that the encoded data depends on."""

    def space(self) -> dict[str, Any]:
        """The ranges of `gasam tune --quantity settings`, around the values of this recipe, as `--space` takes them."""
        rate = self.learning_rate
        return {"learning_rate": f"{rate / 4:.2g}..{4 * rate:.2g},log", "epochs": [self.epochs, 2 * self.epochs]}

    def changed(self, **overrides: Any) -> Self:
        """The settings with some of them replaced; raise `InputError` for a name or a value that is not allowed."""
        for name in overrides:
            if name not in dict(self):
                raise InputError(f"there is no setting {name!r}: there are {', '.join(dict(self))}")
        return checked(type(self), **dict(self) | overrides)


def drawn(count: int, of: int) -> Tensor:
    """`count` of the numbers below `of`, in a fixed random order; all of them if there are fewer."""
    return torch.randperm(of, generator=Generator().manual_seed(0))[:count]


class Sampling(BaseModel):
    """How a language model continues texts: the options of its predictions."""

    model_config = STRICT

    words: NonNegativeInt | None = None  # maximum number of words to add to each text
    temperature: NonNegativeFloat | None = None  # 0 takes the most likely word; at 1 words are drawn
    seed: NonNegativeInt | None = None  # of drawn words; alone it asks for drawn words, at temperature 1


def one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Encoded:
    shared: Mapping[str, Any]  # what was learnt from the training split, such as a vocabulary
    splits: Mapping[Split, Any]  # the examples of each split, in the family's own form
    hash: str  # of the corpus
    notes: tuple[str, ...] = ()  # to show next to results

    def __getitem__(self, split: Split) -> Any:
        return self.splits[split]  # a search must not see the test split, and gets a KeyError

    def without_test(self) -> Encoded:
        """The data without its test split, for searches. `shared` was learnt from the training split only."""
        return replace(self, splits={split: part for split, part in self.splits.items() if split != "test"})

    def as_bytes(self) -> bytes:
        return as_bytes(vars(self))

    @staticmethod
    def load(file: Path | BinaryIO) -> Encoded:
        """Read encoded data. Loading never runs code from the file."""
        return Encoded(**torch.load(file, weights_only=True))


def encoded(family: type[Family[Any]], source: Source, settings: Recipe, directory: Path) -> Encoded:
    """Read the encoded data from the cache in this folder, or encode it and write it there."""
    if family.task_text is not None:  # a task file reads its own data
        return encode(family, source.read(), settings)
    chosen = {name: value for name, value in settings if name in settings.encoding}
    key = json.dumps([FORMAT, VERSION, family.__name__, source.key, chosen], sort_keys=True)
    file = directory / f"{source.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.pt"
    with suppress(Exception):  # a missing file is made, and a damaged one again; the error depends on the damage
        return Encoded.load(file)
    data = encode(family, source.read(), settings)
    with replaced(file) as partial:
        partial.write_bytes(data.as_bytes())
    return data


def encode(family: type[Family[Any]], corpus: Corpus, settings: Recipe) -> Encoded:
    """Encode a corpus. `family.learn` gets only the training split."""
    chosen = {split: family.select(split, corpus.split(split), settings) for split in SPLITS}
    shared = family.learn(replace(corpus, train=chosen["train"], valid=[], test=[]), settings)
    splits = {split: family.encode(split, examples, shared, settings) for split, examples in chosen.items()}
    notes = [*corpus.notes]
    if settings.rows is not None and settings.rows < len(corpus.train):
        notes.append(f"{settings.rows:,} of the {len(corpus.train):,} training examples are used in this size")
    return Encoded(shared, splits, corpus.digest(), (*notes, *family.notes(corpus, splits, settings)))


class Vocabulary:
    """Numbers the words, `specials` first. Other words become <unk>, which must be one of the words."""

    def __init__(self, words: Iterable[str], specials: Sequence[str] = ()) -> None:
        self.words = list(dict.fromkeys([*specials, *words]))
        self.numbers = {word: number for number, word in enumerate(self.words)}
        self.unknown = self.numbers[UNKNOWN]

    @classmethod
    def most_frequent(cls, texts: Iterable[Sequence[str]], size: int, specials: Sequence[str]) -> Vocabulary:
        """The specials and the most frequent words, `size` in all; equally frequent words are in alphabetical order."""
        counts = Counter(word for words in texts for word in words)
        ranked = sorted(counts.keys() - set(specials), key=lambda word: (-counts[word], word))
        return cls(ranked[: max(0, size - len(specials))], specials)

    def encode(self, words: Iterable[str]) -> list[int]:
        return [self.numbers.get(word, self.unknown) for word in words]


def tensors(batch: Any) -> list[Tensor]:
    """All tensors of a batch, which may be in tuples, lists and dictionaries of any depth."""
    found: list[Tensor] = []
    recursively_apply(found.append, batch)
    return found


def example_count(batch: Any, dim: int = 0) -> int:
    """The number of examples of a batch, from its first tensor that has the dimension `dim`; 0 without one."""
    return next((tensor.shape[dim] for tensor in tensors(batch) if tensor.ndim > dim), 0)


class Family(ABC, Generic[Settings]):
    """A model with its loss and its metric, for one encoded corpus and one size.

    `model` and `predict` use only the settings and what was learnt, `data.shared`: a stored run has no splits.
    """

    metric: ClassVar[Metric]
    followed: ClassVar[Metric]
    """The metric that `validate` returns, which may be another one."""
    settings_type: ClassVar[type[Recipe]]
    task_text: ClassVar[str | None] = None
    """The text of the user's Python file that defines the task; None for a built-in family."""
    layers: ClassVar[tuple[Layers, ...]] = ("word embeddings",)
    """The layers of the model that some methods move."""
    example_dim: ClassVar[int] = 0
    """The dimension of batches and of embeddings' outputs that indexes examples."""
    continues_text: ClassVar[bool] = False
    """Whether predictions have the options of continuations, and all inputs together are one text."""

    def __init__(self, settings: Settings, data: Encoded) -> None:
        self.settings = settings
        self.data = data

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words that `learn` found, for families that read words."""
        return Vocabulary(self.data.shared["words"])

    @staticmethod
    def select(split: Split, examples: list[Any], settings: Any) -> list[Any]:
        """The examples of a split to use. Of the training split these are `rows`, the same in every run."""
        if split != "train" or settings.rows is None or settings.rows >= len(examples):
            return examples
        return random.Random(0).sample(examples, settings.rows)

    @staticmethod
    def learn(training: Corpus, settings: Any) -> dict[str, Any]:
        """Learn what the encoding of all splits needs, such as a vocabulary, from the training split only.

        These are JSON values, which are stored with every trained model.
        """
        return {}

    @staticmethod
    def encode(split: Split, examples: Any, shared: dict[str, Any], settings: Any) -> Any:
        return examples

    @staticmethod
    def notes(corpus: Corpus, splits: Mapping[Split, Any], settings: Any) -> list[str]:
        return []

    @abstractmethod
    def model(self) -> nn.Module: ...

    @classmethod
    def has(cls, layers: Layers) -> bool:
        return layers in cls.layers

    def count(self, split: Split) -> int:
        raise NotImplementedError

    def read(self, split: Split, rows: Tensor) -> Any:
        """Examples as tensors, usually in a tuple; any nested structure is allowed."""
        raise NotImplementedError

    def batches(self, order: Generator) -> Sequence[Any]:
        """The training batches of one epoch, in random order; `batch` turns each into tensors."""
        return torch.split(torch.randperm(self.count("train"), generator=order), self.settings.batch)

    def batch(self, chosen: Any) -> Any:
        return self.read("train", chosen)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """The optimizer; None for the one that the settings name."""
        return None

    def part(self, whole: Any, count: int, fraction: float) -> tuple[Any, float]:
        """The first examples of a batch and of its carried state, and their share; a fraction of one is rounded up."""
        dim, first = self.example_dim, math.ceil(fraction * count)

        def cut(leaf: Any) -> Any:
            if leaf is None:
                return None
            if not isinstance(leaf, Tensor) or leaf.ndim <= dim or leaf.shape[dim] != count:
                got = f"the shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
                raise InputError(
                    f"--ascent-fraction needs batches of tensors with {count} examples in dimension {dim}, got {got}: "
                    "leave it out"
                )
            return leaf.narrow(dim, 0, first).contiguous()

        return recursively_apply(cut, whole, test_type=lambda leaf: True), first / count

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, carried: Any) -> tuple[Tensor, Any]:
        """The mean loss, and the state to carry to the next batch. Every pass of a step starts from the same state."""

    @abstractmethod
    def measure(self, model: nn.Module, split: Split, rows: int | None = None) -> Score:
        """The reported metric on a split, or on its first `rows` examples."""

    def worthless(self, split: Split, rows: int | None = None) -> float:
        """The metric of guessing without reading the input."""
        return 0.0

    def validate(self, model: nn.Module) -> float:
        return self.measure(model, "valid").value

    @abstractmethod
    def objective(self) -> Objective:
        """The training loss of each example, for analyses."""

    def examples(self, split: Split, rows: int) -> list[Any]:
        """About `rows` examples of a split, always the same ones, in batches for the objective."""
        return [self.read(split, some) for some in torch.split(drawn(rows, self.count(split)), self.settings.batch)]

    def embeddings(self, model: nn.Module) -> list[nn.Embedding]:
        """The word embeddings, to whose outputs FreeLB adds its noise."""
        return [module for module in model.modules() if isinstance(module, nn.Embedding)]

    def remarks(self) -> dict[str, Any]:
        return {}

    @property
    def inputs_at_once(self) -> int:
        """How many inputs `predict` gets in one call for a file."""
        return self.settings.batch

    def read_inputs(self, path: Path | None, column: str) -> Iterator[tuple[int, Any]]:
        """The inputs of a file, or of standard input, with their line numbers; None for a blank one."""
        return texts(path, column)

    @abstractmethod
    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Sampling) -> list[dict[str, Any]]:
        """What the model, in eval mode, says about each input, as JSON values, in the order of the inputs."""

    def line(self, prediction: Mapping[str, Any]) -> str:
        return json.dumps(prediction, ensure_ascii=False)

    def whole_input(self, model: nn.Module, inputs: Sequence[Any]) -> dict[str, Any]:
        """What the model says about all inputs as one text, if it continues texts."""
        raise NotImplementedError
