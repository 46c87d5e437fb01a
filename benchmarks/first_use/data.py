"""Reads the corpora and turns text into tensors. The only file here that knows where gasam keeps its data sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor

from gasam.lab.data.corpus import Corpus
from gasam.lab.errors import InputError
from gasam.lab.tasks import Origin, find

PADDING, UNKNOWN, START, END = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
WORD = re.compile(r"\w+(?:'\w+)?|[!?]")
LINE_BREAK = re.compile(r"<br\s*/?>")

Labelled = tuple[Tensor, Tensor]


class MissingDataError(Exception):
    """The data of a set-up is not on this machine; the text is one sentence that says what is missing."""


@cache
def corpus(name: str) -> Corpus:
    """A corpus with fixed splits, read once for each process."""
    try:
        return find(name).source(Origin()).read()
    except InputError as error:
        raise MissingDataError(str(error)) from error


def images(examples: Sequence[tuple[bytes, int]], shape: tuple[int, ...] = (-1,)) -> Labelled:
    """Pixels from 0 to 1, each image in this shape, and the labels."""
    pixels = numpy.frombuffer(b"".join(image for image, _ in examples), dtype=numpy.uint8)
    return torch.from_numpy(pixels / numpy.float32(255)).view(len(examples), *shape), labels(examples)


def labels(examples: Sequence[tuple[Any, int]]) -> Tensor:
    return torch.tensor([label for _, label in examples])


def words(text: str) -> list[str]:
    """Lower-case words, exclamation marks and question marks of a text."""
    return WORD.findall(LINE_BREAK.sub(" ", text).lower())


class Vocabulary:
    """The most frequent words of a training text, after four special ones; all other words are <unk>."""

    def __init__(self, texts: Iterable[Sequence[str]], size: int) -> None:
        counts = Counter(word for text in texts for word in text)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        kept = [word for word in ranked if word not in SPECIALS][: size - len(SPECIALS)]
        self.words = [*SPECIALS, *kept]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def rows(self, texts: Sequence[Sequence[str]], length: int, start: bool = False, end: bool = False) -> Tensor:
        """One row for each text, cut to `length` words and padded.

        Args:
            texts: Texts as lists of words.
            length: Words of a row, without the special ones.
            start: Whether a row begins with <s>.
            end: Whether its text is followed by </s>.
        """
        rows = torch.full((len(texts), length + start + end), PADDING)
        for row, text in enumerate(texts):
            numbers = [START] * start + self.encode(text[:length]) + [END] * end
            rows[row, : len(numbers)] = torch.tensor(numbers)
        return rows

    def encode(self, text: Iterable[str]) -> list[int]:
        return [self.numbers.get(word, UNKNOWN) for word in text]

    def stream(self, texts: Iterable[Sequence[str]]) -> Tensor:
        """All texts one after the other, each followed by </s>."""
        return torch.tensor([number for text in texts for number in [*self.encode(text), END]])
