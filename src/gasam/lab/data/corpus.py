"""What every source of data gives: the examples of three splits, before any model's encoding of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


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
            for example in getattr(self, name):
                for field in example if isinstance(example, tuple) else (example,):
                    yield field if isinstance(field, bytes) else str(field).encode()
        for words in (self.classes, *self.vocabularies):
            yield b"\1words"
            yield from (word.encode() for word in words)
