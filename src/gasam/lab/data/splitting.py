"""How examples are divided: by one fixed permutation, so that a split is the same on every machine and in every run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")

SEED = 20221015


def permuted(items: Iterable[T]) -> list[T]:
    """The items in an order that depends on their number alone; torch's and the run's seeds play no part."""
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
