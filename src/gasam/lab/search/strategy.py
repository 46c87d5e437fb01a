"""The search strategy: which sizes of the walk to try next, given the outcomes so far.

It has the paper's two stages. The first finds the order of magnitude, by bisection on the exponent for the largest one
at which training does not collapse. The second tries the grid {1, 2, 5, 8} within it. Because the strategy depends only
on outcomes, a search that was killed can continue, and a search can be replayed on a measured full grid.
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
"""The middle comes first, in case the number of trials is limited; the bisection has usually tried 1 already."""

FINALISTS = 3
"""The largest number of candidates that are repeated with more seeds."""
CLEAR = 0.25
"""A loss up to this share of the tolerance may be chance."""


class Candidate(NamedTuple):
    """A norm, and a budget or an epsilon as mantissa times ten to the exponent.

    `cap` is None for the cap of the search; the recommended walk has its own.
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
        """The options of the walk: its size, the options that all trials share, and its own cap."""
        own = {} if self.cap is None else {"cap": self.cap}
        return {"norm": self.norm, quantity: self.value} | dict(fixed) | own

    def neighbour(self, step: int) -> Candidate:
        """The candidate `step` places further in the grid; -1 gives the next smaller size."""
        decades, place = divmod(MANTISSAS.index(self.mantissa) + step, len(MANTISSAS))
        return self._replace(exponent=self.exponent + decades, mantissa=MANTISSAS[place])


def in_words(norm: float) -> str:
    return "L-inf" if math.isinf(norm) else f"L{norm:g}"


Gains = Mapping[Candidate, float]
"""Gains over the baseline as a share of the baseline's worth, so that more is better for every metric; -inf if the
trial diverged or was stopped early."""


@dataclass(frozen=True)
class TwoStages:
    """Bisection on the exponent, then a grid.

    Args:
        norms: The norms to search.
        low: The smallest power of ten.
        high: The largest power of ten.
        tolerance: A trial has collapsed if it loses more than this share of the baseline's worth and more than `noise`.
        noise: The standard error of a difference on the validation split, as a share of the baseline's worth.
        always: Candidates that are tried first in any case.
    """

    norms: tuple[float, ...]
    low: int
    high: int
    tolerance: float
    noise: float = 0.0
    always: tuple[Candidate, ...] = ()

    def propose(self, known: Gains) -> list[Candidate]:
        """The candidates to try now, alternating between norms; empty if the search is finished."""
        searched = {each: gain for each, gain in known.items() if each.cap is None}
        wanted = [self._of_norm(norm, searched) for norm in self.norms]
        in_turn = [each for turn in zip_longest(*wanted) for each in turn if each is not None]
        first = [each for each in self.always if each not in known]
        return first + [each for each in in_turn if each not in first]

    def decade(self, norm: float, known: Gains) -> int | Candidate:
        """The largest exponent that has not collapsed, or the candidate to try next in the bisection."""
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
        """Whether to search the next lower decade: this power of ten is clearly worse than the baseline, or all of the
        grid is."""
        gains = {each: known[each] for each in grid if each in known}
        clear = max(CLEAR * self.tolerance, self.noise)
        clear_loss = any(gain < -clear for each, gain in gains.items() if each.mantissa == 1)
        return clear_loss or (len(gains) == len(grid) and max(gains.values()) < -self.noise)

    def _of_norm(self, norm: float, known: Gains) -> list[Candidate]:
        decade = self.decade(norm, known)
        if isinstance(decade, Candidate):
            return [decade]
        if decade < self.low:  # even the smallest size collapses
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
        beside = [best.neighbour(-1), best.neighbour(1)]  # the best may be at the edge of what was tried
        return [each for each in beside if self.low <= each.exponent <= self.high and each not in known]


def _grid(norm: float, exponent: int) -> list[Candidate]:
    return [Candidate(norm, exponent, mantissa) for mantissa in GRID_ORDER]


@dataclass(frozen=True)
class FullGrid:
    """Every size of the grid (expensive); searches are compared with it."""

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
    """The candidate with the largest gain, and the smallest of equal ones; None if all diverged or were stopped."""
    return next(iter(ranked(known)), None)


def ranked(known: Gains) -> list[Candidate]:
    numbers = [each for each, gain in known.items() if gain > -math.inf]
    return sorted(numbers, key=lambda each: (-known[each], each.value))


def finalists(known: Gains, noise: float, most: int = FINALISTS) -> list[Candidate]:
    """The best candidates: at most `most`, all within the noise of the first."""
    best = ranked(known)[:most]
    return [each for each in best if known[each] >= known[best[0]] - noise]


def replayed(strategy: TwoStages, measured: Gains, budget: int | None = None) -> Sequence[Candidate]:
    """The candidates that a search would try, in its order, if its trials had the measured gains.

    Args:
        strategy: The search.
        measured: The gains of all candidates, from a full grid.
        budget: Maximum number of trials; None for no limit.
    """
    known: dict[Candidate, float] = {}
    while proposed := strategy.propose(known)[: None if budget is None else budget - len(known)]:
        known |= {each: measured[each] for each in proposed}
    return list(known)
