"""How good a search for epsilon is: replayed on a full grid that was measured before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from gasam.lab.search.finding import Finding, candidate_of
from gasam.lab.search.strategy import NORMS, Candidate, FullGrid, TwoStages, best_of, replayed
from gasam.lab.search.trial import BehindBaseline, Worth
from gasam.lab.tasks import find


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
    grid = {candidate: one for one in finding.tries if (candidate := candidate_of(one)).norm in norms}
    best = best_of(finding.gains(norms))
    if best is None:
        return None
    worth = Worth(find(finding.task).family.followed, finding.baseline["worthless"])
    pruner = BehindBaseline(worth, finding.baseline["curve"], finding.tolerance)
    ends = {candidate: given_up_after(pruner, one) for candidate, one in grid.items()}
    gains = {each: -math.inf if ends[each] else gain for each, gain in finding.gains(norms).items()}
    tried = replayed(TwoStages(norms, *finding.exponents, finding.tolerance), gains, budget)
    chosen = best_of({each: gains[each] for each in tried})
    spent = sum(_spent(grid[candidate], ends[candidate]) for candidate in tried)
    whole = sum(one["gradient_evaluations"] for one in grid.values())
    return Regret(
        chosen,
        best,
        _lost(finding, chosen, grid[best]),
        (finding.baseline["gradient_evaluations"] + spent) / whole,
        len(tried),
        sum(bool(ends[candidate]) for candidate in tried),
        len(grid),
    )


def full_norms(finding: Finding) -> tuple[float, ...]:
    """Norms of which every radius was tried, to its end or until it diverged."""
    ended = {candidate_of(one) for one in finding.tries if one["valid"] is not None or one["diverged"]}
    grids = {norm: FullGrid((norm,), *finding.exponents).propose({}) for norm in NORMS}
    return tuple(norm for norm, grid in grids.items() if ended.issuperset(grid))


def given_up_after(pruner: BehindBaseline, one: Mapping[str, Any]) -> int | None:
    """The epoch after which a try would have been given up; None if it would have been run to its end."""
    epochs = len(pruner.baseline)
    for epoch in range(1, min(len(one["curve"]), epochs - 1) + 1):
        if one["curve"][epoch - 1] is not None and pruner.hopeless(one["curve"][:epoch]):
            return epoch
    return None


def _spent(one: Mapping[str, Any], end: int | None) -> float:
    """A try that was given up spent its share of the epochs."""
    share = 1.0 if end is None else end / len(one["curve"])
    return float(one["gradient_evaluations"]) * share


def _lost(finding: Finding, chosen: Candidate | None, best: Mapping[str, Any]) -> float:
    """Who finds nothing is left with the baseline."""
    valid = finding.baseline["valid"] if chosen is None else finding.one(chosen)["valid"]
    lost = best["valid"] - valid if finding.metric.higher_is_better else valid - best["valid"]
    return max(0.0, float(lost))
