"""The tasks: a family of models on a source of data, in sizes that differ in numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gasam.experiments.errors import InputError
from gasam.experiments.families import Family, Recipe
from gasam.experiments.families.classification import TextClassification, TextCNNSettings
from gasam.experiments.families.images import ImageClassification, MLPSettings
from gasam.experiments.families.language import LanguageModel, LSTMSettings
from gasam.experiments.families.translation import TransformerSettings, Translation
from gasam.experiments.locations import data_directory
from gasam.experiments.sources import Source, digits, docstrings, files, imdb, iwslt, mnist, numerals, ptb, pydoc

SIZES = ("paper", "small", "tiny")


@dataclass(frozen=True)
class Origin:
    """Where the data of a task comes from: a folder in the local layout, or the user's own files."""

    data_dir: Path | None = None
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    text_column: str = "text"
    label_column: str = "label"


@dataclass(frozen=True)
class Task:
    """`kind` is what the data is: the paper's own, an embedded twin of one of the paper's tasks, or the user's."""

    name: str
    about: str
    kind: str
    family: type[Family[Any]]
    source: Callable[[Origin], Source]
    sizes: dict[str, Recipe]

    def settings(self, size: str, **overrides: Any) -> Recipe:
        if size not in self.sizes:
            raise InputError(f"size must be one of {', '.join(self.sizes)}, got {size!r}")
        given = {name: value for name, value in overrides.items() if value is not None}
        unknown = given.keys() - set(self.family.settings_type.names())
        if unknown:
            raise InputError(
                f"{self.name} has no setting {min(unknown)!r}: it has {', '.join(self.sizes[size].names())}"
            )
        try:
            return replace(self.sizes[size], **given)
        except ValueError as error:
            raise InputError(str(error)) from None


def find(name: str) -> Task:
    if name not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]


IMDB = TextCNNSettings(
    epochs=10, batch=64, learning_rate=1e-3, dropout=0.5, vocabulary=30_000, length=200, embedding=500, maps=500
)
PTB = LSTMSettings(
    epochs=20,
    batch=20,
    optimizer="sgd",
    learning_rate=50.0,
    clip=0.25,
    schedule="halving",
    halve_after=10,
    dropout=0.5,
    vocabulary=10_000,
    length=70,
    hidden=500,
)
EN_VI = TransformerSettings(
    epochs=52,
    batch=4096,
    optimizer="adamw",
    learning_rate=5e-4,
    betas=(0.9, 0.98),
    weight_decay=1e-4,
    schedule="inverse_sqrt",
    warmup=4000,
    dropout=0.3,
    average=10,
    vocabularies=(17_192, 7_710),
    units="words",
)
DE_EN = replace(EN_VI, epochs=70, vocabularies=(8_848, 6_632), units="bpe")
MNIST = MLPSettings(epochs=20, batch=64, learning_rate=1e-3, dropout=0.0)

TINY_CNN = replace(IMDB, rows=200, epochs=2, vocabulary=500, length=20, embedding=16, maps=8, batch=32)
TINY_LSTM = replace(PTB, rows=200, epochs=2, halve_after=1, vocabulary=200, length=10, hidden=16, batch=8, dropout=0.1)
TINY_TRANSFORMER = replace(
    EN_VI, rows=100, epochs=2, batch=512, vocabularies=(300, 300), width=16, layers=1, heads=2, feedforward=32
)
TINY_TRANSFORMER = replace(TINY_TRANSFORMER, warmup=10, average=2, length=40, judged=10)

SMALL_CNN = replace(IMDB, dropout=0.2, embedding=50, maps=50)
SMALL_LSTM = replace(
    PTB, rows=5_000, epochs=15, halve_after=8, batch=10, length=35, hidden=128, dropout=0.2, learning_rate=20.0
)
SMALL_TRANSFORMER = replace(
    EN_VI, epochs=12, batch=1024, width=128, layers=2, heads=4, feedforward=256, warmup=400, learning_rate=2e-3
)
SMALL_TRANSFORMER = replace(SMALL_TRANSFORMER, rows=20_000, length=50, average=4, dropout=0.1, judged=1000)

TWIN_CNN = replace(SMALL_CNN, epochs=12, learning_rate=2e-3, dropout=0.1, length=64, vocabulary=10_000)
TWIN_LSTM = replace(SMALL_LSTM, rows=None, epochs=12, halve_after=8, vocabulary=4_000, hidden=96)
TWIN_TRANSFORMER = replace(
    SMALL_TRANSFORMER, rows=None, vocabularies=(200, 200), width=64, heads=4, layers=2, feedforward=128, warmup=100
)

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "imdb",
            "sentiment of film reviews, TextCNN",
            "paper",
            TextClassification,
            lambda origin: imdb.source(data_directory(origin.data_dir)),
            {"paper": IMDB, "small": SMALL_CNN, "tiny": TINY_CNN},
        ),
        Task(
            "ptb",
            "language model of the Penn TreeBank, LSTM",
            "paper",
            LanguageModel,
            lambda origin: ptb.source(data_directory(origin.data_dir)),
            {"paper": PTB, "small": SMALL_LSTM, "tiny": TINY_LSTM},
        ),
        Task(
            "en-vi",
            "English to Vietnamese, IWSLT 2015, Transformer",
            "paper",
            Translation,
            lambda origin: iwslt.en_vi(data_directory(origin.data_dir)),
            {
                "paper": EN_VI,
                "small": replace(SMALL_TRANSFORMER, vocabularies=(8_000, 4_000)),
                "tiny": TINY_TRANSFORMER,
            },
        ),
        Task(
            "de-en",
            "German to English, IWSLT 2014, Transformer",
            "paper",
            Translation,
            lambda origin: iwslt.de_en(data_directory(origin.data_dir)),
            {
                "paper": DE_EN,
                "small": replace(SMALL_TRANSFORMER, vocabularies=(5_000, 4_000), units="bpe"),
                "tiny": replace(TINY_TRANSFORMER, units="bpe"),
            },
        ),
        Task(
            "mnist",
            "handwritten digits, MLP 784-100-100-10",
            "paper",
            ImageClassification,
            lambda origin: mnist.source(data_directory(origin.data_dir)),
            {"paper": MNIST, "small": replace(MNIST, rows=10_000), "tiny": replace(MNIST, rows=200, epochs=2)},
        ),
        Task(
            "docstrings",
            "which library wrote this docstring? TextCNN",
            "twin of imdb",
            TextClassification,
            lambda origin: docstrings.source(),
            {"paper": IMDB, "small": TWIN_CNN, "tiny": TINY_CNN},
        ),
        Task(
            "pydoc",
            "language model of Python's language reference, LSTM",
            "twin of ptb",
            LanguageModel,
            lambda origin: pydoc.source(),
            {"paper": PTB, "small": TWIN_LSTM, "tiny": TINY_LSTM},
        ),
        Task(
            "numerals",
            "number words, English to Vietnamese, Transformer",
            "twin of en-vi",
            Translation,
            lambda origin: numerals.source(),
            {"paper": EN_VI, "small": TWIN_TRANSFORMER, "tiny": TINY_TRANSFORMER},
        ),
        Task(
            "digits",
            "scikit-learn's 8 x 8 digits, MLP",
            "twin of mnist",
            ImageClassification,
            lambda origin: digits.source(),
            {"paper": MNIST, "small": MNIST, "tiny": replace(MNIST, rows=200, epochs=2)},
        ),
        Task(
            "classify",
            "your own texts and labels (CSV, TSV or JSONL), TextCNN",
            "yours",
            TextClassification,
            lambda origin: files.classify(
                origin.train, origin.valid, origin.test, origin.text_column, origin.label_column
            ),
            {"paper": IMDB, "small": TWIN_CNN, "tiny": TINY_CNN},
        ),
        Task(
            "lm",
            "a language model of your own text, LSTM",
            "yours",
            LanguageModel,
            lambda origin: files.lm(origin.train, origin.valid, origin.test),
            {"paper": PTB, "small": TWIN_LSTM, "tiny": TINY_LSTM},
        ),
        Task(
            "translate",
            "your own two aligned files, Transformer",
            "yours",
            Translation,
            lambda origin: files.translate(origin.train, origin.valid, origin.test),
            {
                "paper": DE_EN,
                "small": replace(SMALL_TRANSFORMER, vocabularies=(5_000, 4_000), units="bpe"),
                "tiny": replace(TINY_TRANSFORMER, units="bpe"),
            },
        ),
    )
}
