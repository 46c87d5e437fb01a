"""IMDB movie reviews, positive or negative: aclImdb v1 as two JSONL files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gasam.lab.data.corpus import Corpus
from gasam.lab.data.reading import fault_at, required, rows
from gasam.lab.data.source import Source
from gasam.lab.data.splitting import cut, permuted

CLASSES = ("negative", "positive")
FILES = ("imdb/train.jsonl.gz", "imdb/test.jsonl.gz")
NOTES = (
    "IMDB has 2 classes and 25,000 + 25,000 labelled reviews; the paper's 3 classes and 25,000/25,000/50,000 split "
    "do not exist in it",
    "valid and test are the two halves of the test file after one fixed permutation",
)


def source(directory: Path) -> Source:
    """All of the training file trains; the test file gives valid (first half of a fixed permutation) and test.

    Rows are sorted before they are permuted: published copies differ in their order, and must not in their splits.
    """
    train, test = required("imdb", directory, FILES)

    def read() -> Corpus:
        held_out = permuted(sorted(_reviews(test)))
        valid, rest = cut(held_out, len(held_out) // 2)
        return Corpus(permuted(sorted(_reviews(train))), valid, rest, classes=CLASSES, notes=NOTES)

    return Source("imdb", read, files=(train, test))


def _reviews(path: Path) -> Iterator[tuple[str, int]]:
    for line, (text, label) in rows(path, ("text", "label")):
        if label not in range(len(CLASSES)):
            raise fault_at(path, line, f"label {label!r}, but must be 0 (negative) or 1 (positive)")
        yield text, int(label)
