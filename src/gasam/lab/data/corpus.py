"""The examples of a task before their encoding: a corpus with three splits, its source, and the folders of data."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import os
import platform
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import platformdirs

from gasam.lab.errors import InputError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
SEED = 20221015
T = TypeVar("T")


@dataclass(frozen=True)
class Corpus:
    """The examples of each split.

    An example is (text, label) for text classification, (pixels as bytes, label) for images, a line of words for
    language models, and (source line, target line) for translation. Labels are indices into `classes`.
    """

    train: list[Any]
    valid: list[Any]
    test: list[Any]
    classes: tuple[str, ...] = ()
    vocabularies: tuple[tuple[str, ...], ...] = ()  # word lists that come with the data
    notes: tuple[str, ...] = ()  # how the data differs from the paper's, to show next to results

    def split(self, name: Split) -> list[Any]:
        examples: list[Any] = getattr(self, name)
        return examples

    def digest(self) -> str:
        """A hash of the content, which does not depend on where it was read from."""
        sha = hashlib.sha256()
        for name in SPLITS:
            examples = (each if isinstance(each, tuple) else (each,) for each in self.split(name))
            for field in (f"\1{name}", *chain.from_iterable(examples)):
                sha.update((field if isinstance(field, bytes) else str(field).encode()) + b"\0")
        for words in (self.classes, *self.vocabularies):
            for word in ("\1words", *words):
                sha.update(word.encode() + b"\0")
        return sha.hexdigest()


@dataclass(frozen=True)
class Source:
    """Reads a corpus, which depends on the code of `read` and on all that follows it here."""

    name: str
    read: Callable[[], Corpus]
    files: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    options: str = ""

    @cached_property
    def key(self) -> str:
        """A hash of the files, package versions, options and reading code; the cache key of encoded data."""
        sha = hashlib.sha256(f"{self.name}\n{self.options}\n{platform.python_version()}\n".encode())
        sha.update(Path(inspect.getfile(self.read)).read_bytes())
        for file in self.files:
            with file.open("rb") as stream:
                sha.update(hashlib.file_digest(stream, "sha256").digest())
        for package in self.packages:
            sha.update(f"{package} {importlib.metadata.version(package)}\n".encode())
        return sha.hexdigest()


def permuted(items: Iterable[T]) -> list[T]:
    """The items in a fixed random order. It depends only on their number, not on the machine or a run's seed."""
    order = list(items)
    random.Random(SEED).shuffle(order)
    return order


def cut(items: Iterable[T], *sizes: int) -> list[list[T]]:
    """Consecutive pieces of these sizes, and the rest as the last piece."""
    rest = iter(items)
    return [*(list(islice(rest, size)) for size in sizes), list(rest)]


def data_directory(given: Path | None = None) -> Path:
    """The folder of the paper's data: `given` (--data-dir), else GASAM_DATA, else the user's data folder."""
    named = given or os.environ.get("GASAM_DATA")
    return Path(named).expanduser() if named else platformdirs.user_data_path("gasam", appauthor=False)


def cache_directory() -> Path:
    """The cache of encoded corpora: GASAM_CACHE, else the user's cache folder. It can be deleted at any time."""
    named = os.environ.get("GASAM_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("gasam", appauthor=False)


def required(task: str, directory: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """The paths of a task's files in the data folder; raise if one is missing."""
    for name in names:
        if not (directory / name).is_file():
            raise InputError(
                f"{task} needs {name}, which is not in {directory}: run `gasam data --get {task}`, "
                "or set --data-dir or GASAM_DATA to a folder that has it"
            )
    return tuple(directory / name for name in names)
