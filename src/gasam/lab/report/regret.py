"""How good a search for epsilon is: replayed on a full grid that was measured before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gasam.lab.records import RunRecord
from gasam.lab.report.tuning import title
from gasam.lab.search.finding import Finding
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.strategy import NORMS, Candidate, FullGrid, TwoStages, best_of, replayed
from gasam.lab.search.worth import BehindBaseline
from gasam.lab.statistics import Summary, summary
from gasam.lab.tables import Table, of_texts

SHORT = 4
"""A number of trials that two cores can afford for every method of a table."""


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


def regret_table(findings: Sequence[Finding], records: Sequence[RunRecord]) -> Table | None:
    """The whole search and one cut short, on each grid that is full; None where no grid is."""
    rows, notes = [], []
    for finding in findings:
        for limit in (None, SHORT):
            if found := regret(finding, limit):
                rows.append(_row(limit, found))
                notes.append(_about(finding, found, baseline_spread(finding, records)))
    return of_texts("Regret of the search", rows, dict.fromkeys(notes)) if rows else None


def _row(limit: int | None, found: Regret) -> dict[str, str]:
    return {
        "search": "whole" if limit is None else f"at most {limit} trials",
        "trials": str(found.tries),
        "given up": str(found.given_up),
        "chosen": "no radius" if found.chosen is None else str(found.chosen),
        "regret": f"{found.lost:.2f}",
        "of the grid's gradient evaluations": f"{found.share:.0%}",
    }


def _about(finding: Finding, found: Regret, spread: Summary | None) -> str:
    low, high = finding.exponents
    told = f"{title(finding)}: {found.grid} radii, exponents {low} to {high}. The best is {found.best}"
    told += f" with {finding.one(found.best).valid:.2f} on validation."
    if spread and spread.std:
        told += f" The baseline's standard deviation on validation is {spread.std:.2f} ({spread.seeds} seeds)."
    return told


def regret(finding: Finding, limit: int | None = None) -> Regret | None:
    """Of the norms whose grid is full, searched together; None without such a norm, or where all of it diverged."""
    norms = full_norms(finding)
    grid = {one.candidate: one for one in finding.tries if one.norm in norms}
    best = best_of(finding.gains(norms))
    if best is None:
        return None
    pruner = finding.pruner(finding.tolerance)
    ends = {candidate: given_up_after(pruner, one.curve) for candidate, one in grid.items()}
    gains = {each: -math.inf if ends[each] else gain for each, gain in finding.gains(norms).items()}
    tried = replayed(TwoStages(norms, *finding.exponents, finding.tolerance), gains, limit)
    chosen = best_of({each: gains[each] for each in tried})
    spent = sum(_spent(grid[candidate], ends[candidate]) for candidate in tried)
    share = (finding.baseline.gradient_evaluations + spent) / sum(_spent(one, None) for one in grid.values())
    given_up = sum(bool(ends[candidate]) for candidate in tried)
    return Regret(chosen, best, _lost(finding, chosen, best), share, len(tried), given_up, len(grid))


def _lost(finding: Finding, chosen: Candidate | None, best: Candidate) -> float:
    """A search that finds nothing is left with the baseline."""
    ours = finding.baseline_score if chosen is None else finding.one(chosen).valid
    grids = finding.one(best).valid
    assert ours is not None
    assert grids is not None
    return max(0.0, grids - ours if finding.metric.higher_is_better else ours - grids)


def full_norms(finding: Finding) -> tuple[float, ...]:
    """Norms of which every radius was tried, to its end or until it diverged."""
    ended = {one.candidate for one in finding.tries if one.valid is not None or one.diverged}
    return tuple(norm for norm in NORMS if ended.issuperset(FullGrid((norm,), *finding.exponents).propose({})))


def given_up_after(pruner: BehindBaseline, curve: Sequence[float | None]) -> int | None:
    """The epoch after which a try would have been given up; None if it would have been run to its end."""
    epochs = len(pruner.baseline)
    for epoch in range(1, min(len(curve), epochs - 1) + 1):
        if pruner.hopeless(curve[:epoch], epochs):
            return epoch
    return None


def baseline_spread(finding: Finding, records: Sequence[RunRecord]) -> Summary | None:
    """Of the baseline's validation over seeds, with the settings and data of the search."""
    wanted = finding.task, finding.size, "baseline", finding.settings, finding.data
    by_seed = {
        record.seed: record.valid
        for record in records
        if (record.task, record.size, record.method, record.settings, record.data.hash) == wanted
        and record.valid is not None
    }
    return summary(by_seed.values())


def _spent(one: Outcome, end: int | None) -> float:
    """A try that was given up spent its share of the epochs."""
    share = 1.0 if end is None else end / len(one.curve)
    return one.gradient_evaluations * share
