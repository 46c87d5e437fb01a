"""Predictions: what a family says about an input, and the options of a prediction."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gasam.lab.errors import InputError

SHOWN_CLASSES = 3


class Prediction(ABC):
    """What a model says about one input. `str` gives it as one line of text."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """All of it as JSON values."""

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class ClassPrediction(Prediction):
    """The most likely class of an input, and the probabilities of all classes by name."""

    label: str
    probabilities: Mapping[str, float]

    def as_json(self) -> dict[str, Any]:
        return {"class": self.label, "probabilities": dict(self.probabilities)}

    def __str__(self) -> str:
        """The class, a tab, and the most likely classes with their probabilities."""
        ranked = sorted(self.probabilities.items(), key=lambda item: -item[1])[:SHOWN_CLASSES]
        return f"{_one_line(self.label)}\t{', '.join(f'{_one_line(name)} {share:.4f}' for name, share in ranked)}"


@dataclass(frozen=True)
class TranslatedText(Prediction):
    """The translation of a text."""

    translation: str

    def as_json(self) -> dict[str, Any]:
        return {"translation": self.translation}

    def __str__(self) -> str:
        return _one_line(self.translation)


@dataclass(frozen=True)
class TextPerplexity(Prediction):
    """What a language model says about a text.

    Args:
        perplexity: The perplexity of the text.
        words: The number of predicted words, over which the perplexity is taken; the end of a line is a word.
        continuation: The words that follow according to the model; None if it was not asked for.
    """

    perplexity: float
    words: int
    continuation: str | None = None

    def as_json(self) -> dict[str, Any]:
        found = {"perplexity": self.perplexity, "words": self.words}
        return found if self.continuation is None else found | {"continuation": self.continuation}

    def __str__(self) -> str:
        """The perplexity, and after a tab the continuation, if there is one."""
        return f"{self.perplexity:.2f}" + ("" if self.continuation is None else f"\t{self.continuation}")


@dataclass(frozen=True)
class OwnPrediction(Prediction):
    """What the `predict` function of a task file returned: a value that JSON can hold, such as a dictionary."""

    value: Any

    def as_json(self) -> dict[str, Any]:
        return dict(self.value) if isinstance(self.value, Mapping) else {"prediction": self.value}

    def __str__(self) -> str:
        return self.value if isinstance(self.value, str) else json.dumps(self.value, ensure_ascii=False)


class WholeInput(Protocol):
    """Collects what a family says about all inputs together, in their order."""

    def add(self, inputs: Sequence[Any]) -> None: ...

    def result(self) -> Prediction | None: ...


def ignore_count(done: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class PredictionOptions:
    """The options of a prediction.

    Args:
        batch: Number of inputs that the model reads at once; by default as many as in evaluation.
        words: Maximum number of words that a language model adds to each text; by default 10.
        temperature: 0 takes the most likely word each time; above 0 words are drawn, at 1 with their probabilities.
        seed: Seed of drawn words.
        watch: Called with the number of inputs of the call that are done.
    """

    batch: int | None = None
    words: int | None = None
    temperature: float | None = None
    seed: int | None = None
    watch: Callable[[int], None] = ignore_count

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("words", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InputError(f"{name} must be a whole number >= {least}, got {value!r}")
        if self.temperature is not None and not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature must be a finite number >= 0, got {self.temperature!r}")

    @property
    def continues(self) -> bool:
        """Whether an option of continuations is given."""
        return any(value is not None for value in (self.words, self.temperature, self.seed))

    @property
    def drawing_temperature(self) -> float:
        """The temperature; a seed alone asks for drawn words, at temperature 1."""
        if self.temperature is None:
            return 0.0 if self.seed is None else 1.0
        return self.temperature


def _one_line(text: str) -> str:
    return " ".join(text.split())
