"""How good a search for epsilon is: replayed on a full grid that was measured before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gasam.lab.search.finding import Finding
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.strategy import NORMS, Candidate, FullGrid, TwoStages, best_of, replayed
from gasam.lab.search.worth import BehindBaseline


class Regret(NamedTuple):
    """`lost` is how much worse the search's choice is than the grid's best, in the metric, never negative; `share` is
    what the search spends, its baseline's run included, of what the grid's tries spent."""

    chosen: Candidate | None
    best: Candidate
    lost: float
    share: float
    tries: int
    given_up: int
    grid: int


def regret(finding: Finding, budget: int | None = None) -> Regret | None:
    """Of the norms whose grid is full, searched together; None without such a norm, or where all of it diverged."""
    norms = full_norms(finding)
    grid = {one.candidate: one for one in finding.tries if one.norm in norms}
    best = best_of(finding.gains(norms))
    if best is None:
        return None
    pruner = finding.pruner(finding.tolerance)
    ends = {candidate: given_up_after(pruner, one.curve) for candidate, one in grid.items()}
    gains = {each: -math.inf if ends[each] else gain for each, gain in finding.gains(norms).items()}
    tried = replayed(TwoStages(norms, *finding.exponents, finding.tolerance), gains, budget)
    chosen = best_of({each: gains[each] for each in tried})
    spent = sum(_spent(grid[candidate], ends[candidate]) for candidate in tried)
    whole = sum(one.gradient_evaluations for one in grid.values())
    return Regret(
        chosen,
        best,
        _lost(finding, chosen, best),
        (finding.baseline.gradient_evaluations + spent) / whole,
        len(tried),
        sum(bool(ends[candidate]) for candidate in tried),
        len(grid),
    )


def full_norms(finding: Finding) -> tuple[float, ...]:
    """Norms of which every radius was tried, to its end or until it diverged."""
    ended = {one.candidate for one in finding.tries if one.valid is not None or one.diverged}
    grids = {norm: FullGrid((norm,), *finding.exponents).propose({}) for norm in NORMS}
    return tuple(norm for norm, grid in grids.items() if ended.issuperset(grid))


def given_up_after(pruner: BehindBaseline, curve: Sequence[float | None]) -> int | None:
    """The epoch after which a try would have been given up; None if it would have been run to its end."""
    epochs = len(pruner.baseline)
    for epoch in range(1, min(len(curve), epochs - 1) + 1):
        if pruner.hopeless(curve[:epoch]):
            return epoch
    return None


def _spent(one: Outcome, end: int | None) -> float:
    """A try that was given up spent its share of the epochs."""
    share = 1.0 if end is None else end / len(one.curve)
    return one.gradient_evaluations * share


def _lost(finding: Finding, chosen: Candidate | None, best: Candidate) -> float:
    """A search that finds nothing is left with the baseline."""
    ours = finding.baseline_score if chosen is None else finding.one(chosen).valid
    grids = finding.one(best).valid
    assert ours is not None
    assert grids is not None
    return max(0.0, grids - ours if finding.metric.higher_is_better else ours - grids)
