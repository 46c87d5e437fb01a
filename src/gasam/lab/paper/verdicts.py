"""Whether a claim of the paper holds here: one of four words, with its reason."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

from gasam.lab.output import FEW
from gasam.lab.paper.studies import Expected
from gasam.lab.report.comparison import Difference, Row, Standing

Word = Literal["reproduced", "contradicted", "undecided", "not run"]
WORDS: tuple[Word, ...] = get_args(Word)
RUNS_OF_THE_PAPER = 4


class Verdict(NamedTuple):
    """`paper` is what the paper finds; `ours` is None without an interval."""

    word: Word
    paper: Standing
    ours: Standing | None = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


def paper_difference(row: Expected, baseline: Expected) -> Difference:
    """The paper's difference with Welch's 95% interval, from the printed means and deviations of four runs each."""
    from scipy import stats  # type: ignore[import-untyped]

    mean, count = float(row.mean - baseline.mean), RUNS_OF_THE_PAPER
    ours, theirs = (float(each.std) ** 2 / count for each in (row, baseline))
    freedom = (ours + theirs) ** 2 / (ours**2 + theirs**2) * (count - 1)
    reach = float(stats.t.ppf(0.975, freedom)) * math.sqrt(ours + theirs)
    return Difference(mean, mean - reach, mean + reach, count)


def judge(claim: Difference, row: Row | None, *, higher_is_better: bool) -> Verdict:
    """The verdict on one cell of a table.

    Args:
        claim: The paper's difference to its baseline.
        row: Our runs of the cell; None if there are none.
        higher_is_better: The direction of the metric.
    """
    paper = claim.standing(higher_is_better)
    assert paper is not None, "the paper has four runs"
    if row is None:
        return Verdict("not run", paper)
    if row.lost:
        lost = f"{len(row.lost)} of {len(row.records)} diverged" if row.scores else "diverged"
        return Verdict("contradicted", paper, reason=lost)
    found, plain = row.difference(row.baseline), row.baseline
    if plain is not None and plain.lost & row.scores.keys():
        return Verdict("undecided", paper, reason="the baseline diverged")
    if found is None:
        return Verdict("not run", paper, reason="no baseline" if plain is None else "no baseline with its seeds")
    ours = found.standing(higher_is_better)
    if ours is None or found.pairs < FEW:
        return Verdict("undecided", paper, reason="one seed" if found.pairs == 1 else "two seeds")
    if ours == "no clear difference" and _too_wide(found, claim, paper):
        return Verdict("undecided", paper, ours, "interval too wide")
    if ours == paper:
        return Verdict("reproduced", paper, ours, f"both: {ours}")
    return Verdict("contradicted", paper, ours, f"{ours}; paper: {paper}")


def _too_wide(found: Difference, claim: Difference, paper: Standing) -> bool:
    """Whether an interval that holds zero is too wide to speak for or against the paper's claim."""
    assert found.low is not None, "it has three pairs or more"
    assert found.high is not None, "it has three pairs or more"
    assert claim.low is not None, "the paper has four runs"
    assert claim.high is not None, "the paper has four runs"
    if paper == "no clear difference":
        return found.high - found.low > claim.high - claim.low
    return found.low <= claim.mean <= found.high
