"""Whether a claim of the paper holds here: a verdict for each cell of its tables, from its numbers and from ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gasam.lab.paper.studies import Expected
from gasam.lab.statistics import Difference, Standing, Summary, paired_difference, welch_difference

Word = Literal["reproduced", "not reproduced", "not run"]
RUNS_OF_THE_PAPER = 4
ONE_SEED, UNDECIDED, BASELINE_DIVERGED = "one seed", "undecided", "the baseline diverged"


class Verdict(NamedTuple):
    """`ours` is None where no interval exists; `reason` is what is said in brackets."""

    word: Word
    paper: Standing
    ours: Standing | None = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word

    @property
    def counted_as(self) -> str:
        """One seed, or a baseline that diverged, decides nothing."""
        return UNDECIDED if self.reason in (ONE_SEED, UNDECIDED, BASELINE_DIVERGED) else self.word


def paper_difference(row: Expected, baseline: Expected) -> Difference:
    ours, theirs = (Summary(float(each.mean), float(each.std), RUNS_OF_THE_PAPER) for each in (row, baseline))
    return welch_difference(ours, theirs)


def judge(
    claim: Difference,
    scores: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    higher_is_better: bool,
    diverged: int = 0,
    baselines_diverged: int = 0,
) -> Verdict:
    """The verdict on one cell.

    Args:
        claim: The paper's difference to its baseline.
        scores: Our results by seed.
        baseline: Those of our baseline.
        higher_is_better: The direction of the metric.
        diverged: How many of our runs gave no number.
        baselines_diverged: The same of the baseline, among the seeds of `scores`.
    """
    paper = claim.standing(higher_is_better)
    assert paper is not None  # two summaries always have an interval
    if diverged:
        runs = diverged + len(scores)
        return Verdict("not reproduced", paper, reason="diverged" if not scores else f"{diverged} of {runs} diverged")
    if not scores:
        return Verdict("not run", paper)
    if baselines_diverged:
        return Verdict("not reproduced", paper, reason=BASELINE_DIVERGED)
    found = paired_difference(scores, baseline)
    if found is None:
        return Verdict("not run", paper, reason="no baseline with its seeds" if baseline else "no baseline")
    ours = found.standing(higher_is_better)
    if ours is None:
        return Verdict("not reproduced", paper, reason=ONE_SEED)
    if ours == "no difference" and _blunt(found, claim, paper):
        return Verdict("not reproduced", paper, ours, UNDECIDED)
    return Verdict("reproduced", paper, ours) if ours == paper else Verdict("not reproduced", paper, ours, ours)


def _blunt(found: Difference, claim: Difference, paper: Standing) -> bool:
    """Whether an interval that holds zero is too wide to speak for or against the paper's claim."""
    return found.width > claim.width if paper == "no difference" else found.holds(claim.mean)
