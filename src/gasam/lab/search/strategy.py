"""Which size of the walk to try next: the paper's two stages, as a function of what was tried before.

First the order of magnitude, by bisection on the exponent between a walk that does nothing and one at which training
collapses; then the grid {1, 2, 5, 8} within it. Because it only depends on outcomes, a search that was killed continues
where it was, and a search can be replayed on a full grid that was measured before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

NORMS = (math.inf, 2.0)
MANTISSAS = (1, 2, 5, 8)
GRID_ORDER = (5, 2, 8, 1)
"""The middle first, should the trials end here; 1 was mostly tried by the bisection."""

CLEAR = 0.25
"""Up to this share of the tolerance a loss may be chance."""


class Candidate(NamedTuple):
    """A norm, and a budget or an epsilon as mantissa times ten to the exponent.

    `cap` is another cap than that of the search, as the recommended walk has it.
    """

    norm: float
    exponent: int
    mantissa: int = 1
    cap: float | None = None

    @property
    def value(self) -> float:
        return float(f"{self.mantissa}e{self.exponent}")

    def __str__(self) -> str:
        cap = "" if self.cap is None else f", cap {self.cap:g}"
        return f"{in_words(self.norm)} {self.value:g}{cap}"

    def options(self, quantity: str, fixed: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the walk: its size, those that all walks of the search have, and its own cap."""
        own = {} if self.cap is None else {"cap": self.cap}
        return {"norm": self.norm, quantity: self.value} | dict(fixed) | own

    def neighbour(self, step: int) -> Candidate:
        """That many places further in the grid; -1 is the next smaller size."""
        decades, place = divmod(MANTISSAS.index(self.mantissa) + step, len(MANTISSAS))
        return self._replace(exponent=self.exponent + decades, mantissa=MANTISSAS[place])


def in_words(norm: float) -> str:
    return "L-inf" if math.isinf(norm) else f"L{norm:g}"


Gains = Mapping[Candidate, float]
"""Over the baseline in units of the baseline's worth, so that more is better for every metric; -inf where there is no
number, because it diverged or was given up."""


@dataclass(frozen=True)
class TwoStages:
    """A walk that loses more than `tolerance` and `noise` of the baseline's worth has collapsed.

    `noise` is the standard error of a difference on the validation split: a smaller loss is no reason to go elsewhere.
    `always` are tried first.
    """

    norms: tuple[float, ...]
    low: int
    high: int
    tolerance: float
    noise: float = 0.0
    always: tuple[Candidate, ...] = ()

    def propose(self, known: Gains) -> list[Candidate]:
        """All that may be tried now, the norms in turn; nothing when the search is done."""
        searched = {each: gain for each, gain in known.items() if each.cap is None}
        wanted = [self._of_norm(norm, searched) for norm in self.norms]
        in_turn = [each for turn in zip_longest(*wanted) for each in turn if each is not None]
        first = [each for each in self.always if each not in known]
        return first + [each for each in in_turn if each not in first]

    def decade(self, norm: float, known: Gains) -> int | Candidate:
        """The largest order of magnitude that has not collapsed, or what must be tried to know it."""
        fine, collapsed = self.low - 1, self.high + 1
        while collapsed - fine > 1:
            middle = Candidate(norm, (fine + collapsed) // 2)
            if middle not in known:
                return middle
            if self.collapsed(known[middle]):
                collapsed = middle.exponent
            else:
                fine = middle.exponent
        return fine

    def collapsed(self, gain: float) -> bool:
        return gain < -max(self.tolerance, self.noise)

    def _barren(self, grid: Sequence[Candidate], known: Gains) -> bool:
        """Whether what is better lies beneath: the power of ten loses more than noise, or all of its grid loses."""
        gains = {each: known[each] for each in grid if each in known}
        clear = max(CLEAR * self.tolerance, self.noise)
        clear_loss = any(gain < -clear for each, gain in gains.items() if each.mantissa == 1)
        return clear_loss or (len(gains) == len(grid) and max(gains.values()) < -self.noise)

    def _of_norm(self, norm: float, known: Gains) -> list[Candidate]:
        decade = self.decade(norm, known)
        if isinstance(decade, Candidate):
            return [decade]
        if decade < self.low:  # even the smallest collapses
            return []
        grid = _grid(norm, decade)
        while decade > self.low and self._barren(grid, known):
            decade -= 1
            grid = _grid(norm, decade)
        untried = [each for each in grid if each not in known]
        if untried:
            return untried
        best = best_of({each: gain for each, gain in known.items() if each.norm == norm})
        if best is None or known[best] <= 0:
            return []
        beside = [best.neighbour(-1), best.neighbour(1)]  # a better one may lie just outside of what was tried
        return [each for each in beside if self.low <= each.exponent <= self.high and each not in known]


def _grid(norm: float, exponent: int) -> list[Candidate]:
    return [Candidate(norm, exponent, mantissa) for mantissa in GRID_ORDER]


@dataclass(frozen=True)
class FullGrid:
    """Every size of the grid: expensive, and what a search is judged by."""

    norms: tuple[float, ...]
    low: int
    high: int

    def propose(self, known: Gains) -> list[Candidate]:
        every = [
            Candidate(norm, exponent, mantissa)
            for norm in self.norms
            for exponent in range(self.low, self.high + 1)
            for mantissa in MANTISSAS
        ]
        return [each for each in every if each not in known]


def best_of(known: Gains) -> Candidate | None:
    """The one with the largest gain, of equal ones the smallest; None where nothing gave a number."""
    return next(iter(ranked(known)), None)


def ranked(known: Gains) -> list[Candidate]:
    numbers = [each for each, gain in known.items() if gain > -math.inf]
    return sorted(numbers, key=lambda each: (-known[each], each.value))


def finalists(known: Gains, noise: float, most: int = 3) -> list[Candidate]:
    """The best, and those that are within the noise of it."""
    best = ranked(known)[:most]
    return [each for each in best if known[each] >= known[best[0]] - noise]


def replayed(strategy: TwoStages, measured: Gains, budget: int | None = None) -> Sequence[Candidate]:
    """What the search would have tried, in its order, had it been given these outcomes one by one."""
    known: dict[Candidate, float] = {}
    while proposed := strategy.propose(known)[: None if budget is None else budget - len(known)]:
        known |= {each: measured[each] for each in proposed}
    return list(known)
