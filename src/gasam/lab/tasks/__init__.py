"""The tasks: a family of models on a source of data, in sizes that differ in numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gasam.lab.data.locations import data_directory
from gasam.lab.data.source import Source
from gasam.lab.errors import InputError
from gasam.lab.families import Family, Recipe
from gasam.lab.families.classification import TextClassification
from gasam.lab.families.images import ImageClassification
from gasam.lab.families.language import LanguageModel
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import digits, docstrings, files, imdb, iwslt, mnist, numerals, ptb, pydoc
from gasam.lab.tasks.sizes import SIZES, for_users


@dataclass(frozen=True)
class Origin:
    """Where the data of a task comes from: a folder in the local layout, or the user's own files."""

    data_dir: Path | None = None
    train: str | None = None
    valid: str | None = None
    test: str | None = None
    text_column: str = "text"
    label_column: str = "label"

    @property
    def folder(self) -> Path:
        return data_directory(self.data_dir)


@dataclass(frozen=True)
class Task:
    """`kind` is what the data is: the paper's own, an embedded twin of one of the paper's tasks, or the user's."""

    name: str
    about: str
    kind: str
    family: type[Family[Any]]
    source: Callable[[Origin], Source]

    @property
    def sizes(self) -> dict[str, Recipe]:
        return SIZES[self.name]

    def settings(self, size: str, **overrides: Any) -> Recipe:
        """The numbers of a size, some of them replaced."""
        if size not in self.sizes:
            known = (for_users(self.name, each) for each in self.sizes)
            raise InputError(f"size must be one of {', '.join(known)}, got {size!r}")
        names = self.family.settings_type.names()
        for name in overrides:
            if name not in names:
                raise InputError(f"{self.name} has no setting {name!r}: it has {', '.join(names)}")
        try:
            return replace(self.sizes[size], **overrides)
        except ValueError as error:
            raise InputError(str(error)) from None

    def check(self, origin: Origin) -> None:
        """Files are for the tasks that take them, and these need at least one."""
        if self.kind != "yours" and any((origin.train, origin.valid, origin.test)):
            raise InputError(
                f"{self.name} brings its own data: --train, --valid, --test are for classify, lm, translate"
            )


def find(name: str) -> Task:
    if name not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "imdb",
            "sentiment of film reviews, TextCNN",
            "paper",
            TextClassification,
            lambda origin: imdb.source(origin.folder),
        ),
        Task(
            "ptb",
            "language model of the Penn TreeBank, LSTM",
            "paper",
            LanguageModel,
            lambda origin: ptb.source(origin.folder),
        ),
        Task(
            "en-vi",
            "English to Vietnamese, IWSLT 2015, Transformer",
            "paper",
            Translation,
            lambda origin: iwslt.en_vi(origin.folder),
        ),
        Task(
            "de-en",
            "German to English, IWSLT 2014, Transformer",
            "paper",
            Translation,
            lambda origin: iwslt.de_en(origin.folder),
        ),
        Task(
            "mnist",
            "handwritten digits, MLP 784-100-100-10",
            "paper",
            ImageClassification,
            lambda origin: mnist.source(origin.folder),
        ),
        Task(
            "docstrings",
            "which library wrote this docstring? TextCNN",
            "twin of imdb",
            TextClassification,
            lambda origin: docstrings.source(),
        ),
        Task(
            "pydoc",
            "language model of Python's language reference, LSTM",
            "twin of ptb",
            LanguageModel,
            lambda origin: pydoc.source(),
        ),
        Task(
            "numerals",
            "number words, English to Vietnamese, Transformer",
            "twin of en-vi",
            Translation,
            lambda origin: numerals.source(),
        ),
        Task(
            "digits",
            "scikit-learn's 8 x 8 digits, MLP",
            "twin of mnist",
            ImageClassification,
            lambda origin: digits.source(),
        ),
        Task(
            "classify",
            "your own texts and labels (CSV, TSV or JSONL), TextCNN",
            "yours",
            TextClassification,
            lambda o: files.classify(o.train, o.valid, o.test, o.text_column, o.label_column),
        ),
        Task(
            "lm",
            "a language model of your own text, LSTM",
            "yours",
            LanguageModel,
            lambda origin: files.lm(origin.train, origin.valid, origin.test),
        ),
        Task(
            "translate",
            "your own two aligned files, Transformer",
            "yours",
            Translation,
            lambda origin: files.translate(origin.train, origin.valid, origin.test),
        ),
    )
}
