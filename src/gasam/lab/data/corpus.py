"""What a task reads: the examples of three splits, before any model's encoding of them, and where they come from."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import platform
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
SEED = 20221015
T = TypeVar("T")


@dataclass(frozen=True)
class Corpus:
    """Examples by split: (text, label) for classification, a line of words for language models, (source line, target
    line) for translation, (pixels as bytes, label) for images. Labels are indices into `classes`.

    `vocabularies` are word lists that come with the data. `notes` say how the data differs from the paper's and are
    shown beside every number made on it.
    """

    train: list[Any]
    valid: list[Any]
    test: list[Any]
    classes: tuple[str, ...] = ()
    vocabularies: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def split(self, name: Split) -> list[Any]:
        return {"train": self.train, "valid": self.valid, "test": self.test}[name]

    def digest(self) -> str:
        """A hash of the content: equal for equal examples, wherever they were read from."""
        sha = hashlib.sha256()
        for part in self._parts():
            sha.update(part)
            sha.update(b"\0")
        return sha.hexdigest()

    def _parts(self) -> Iterator[bytes]:
        for name in SPLITS:
            yield f"\1{name}".encode()
            for example in self.split(name):
                for field in example if isinstance(example, tuple) else (example,):
                    yield field if isinstance(field, bytes) else str(field).encode()
        for words in (self.classes, *self.vocabularies):
            yield b"\1words"
            yield from (word.encode() for word in words)


@dataclass(frozen=True)
class Source:
    """`read()` gives the corpus, out of `files` or out of installed `packages`; `options` say how, as text."""

    name: str
    read: Callable[[], Corpus]
    files: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    options: str = ""

    @cached_property
    def key(self) -> str:
        """A hash of what would be read and of the code that reads it: encoded data is cached under it."""
        sha = hashlib.sha256(f"{self.name}\n{self.options}\n".encode())
        with suppress(TypeError, OSError):  # code that is in no file
            sha.update(Path(inspect.getfile(self.read)).read_bytes())
        for file in self.files:
            with file.open("rb") as stream:
                sha.update(hashlib.file_digest(stream, "sha256").digest())
        if self.packages:
            sha.update(platform.python_version().encode())
        for package in self.packages:
            sha.update(f"{package} {importlib.metadata.version(package)}\n".encode())
        return sha.hexdigest()


def permuted(items: Iterable[T]) -> list[T]:
    """The items in an order that depends on their number alone: the same on every machine, whatever a run's seed."""
    order = list(items)
    random.Random(SEED).shuffle(order)
    return order


def cut(items: Sequence[T], *sizes: int) -> list[list[T]]:
    """Consecutive pieces of these sizes; the last piece is whatever remains."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(list(items[start : start + size]))
        start += size
    return [*pieces, list(items[start:])]
