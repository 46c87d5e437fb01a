"""The task numerals: number words from one language to another, the embedded twin of the translation tasks."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from typing import Literal

from gasam.lab.data.corpus import SEED, Corpus, Source, cut, permuted
from gasam.lab.data.locations import installed
from gasam.lab.errors import InputError
from gasam.lab.families.translation import Translation
from gasam.lab.tasks import en_vi
from gasam.lab.tasks.task import Task, linf, sizes

Direction = Literal["en-vi", "de-en"]

SMALL = en_vi.SMALL_MODEL.changed(
    rows=None, vocabularies=(200, 200), warmup=100, width=64, feedforward=128, judged=None
)
TRAIN, VALID, TEST = 4_000, 500, 500
DIGITS = 6


def source(direction: Direction = "en-vi") -> Source:
    """Distinct numbers below a million as words, by num2words; the number of digits is drawn uniformly.

    A number is in one split only. German compounds are cut into their words, so that the vocabularies stay small.
    """
    if direction not in ("en-vi", "de-en"):
        raise InputError(f"direction must be 'en-vi' or 'de-en', got {direction!r}")
    installed("numerals", "num2words")
    first, second = (LANGUAGES[language] for language in direction.split("-"))

    def read() -> Corpus:
        train, valid, test = cut([(first(number), second(number)) for number in _numbers()], TRAIN, VALID)
        return Corpus(train, valid, test)

    return Source("numerals", read, packages=("num2words",), options=direction)


def _numbers() -> list[int]:
    generator = random.Random(SEED)
    numbers: dict[int, None] = {}
    while len(numbers) < TRAIN + VALID + TEST:
        numbers[generator.randrange(10 ** generator.randint(1, DIGITS))] = None
    return permuted(numbers)


def _english(number: int) -> str:
    return " ".join(re.findall(r"\w+", _spelled(number, "en")))


def _vietnamese(number: int) -> str:
    return _spelled(number, "vi")


def _german(number: int) -> str:
    return " ".join(_german_words().findall(_spelled(number, "de")))


@cache
def _german_words() -> re.Pattern[str]:
    """A pattern of all words in compounds, the longest first, so that none matches only the start of another."""
    simple = [*range(21), *range(30, 100, 10)]
    words = {"ein", "und", "hundert", "tausend", *(_spelled(number, "de") for number in simple)}
    return re.compile("|".join(sorted(words, key=lambda word: (-len(word), word))))


def _spelled(number: int, language: str) -> str:
    from num2words import num2words  # type: ignore[import-untyped]

    return str(num2words(number, lang=language)).lower()


LANGUAGES: dict[str, Callable[[int], str]] = {"en": _english, "vi": _vietnamese, "de": _german}


TASKS = (
    Task(
        name="numerals",
        about="number words, English to Vietnamese, Transformer",
        kind="twin of en-vi",
        family=Translation,
        source=lambda origin: source(),
        sizes=sizes(paper=en_vi.PAPER, small=SMALL, tiny=en_vi.TINY),
        chosen_radii={"sam": linf(1e-4), "ga-sam": linf(2e-5, 2)},
        start_epoch=en_vi.TASKS[0].start_epoch,
        borrows_from=("en-vi",),
    ),
)
