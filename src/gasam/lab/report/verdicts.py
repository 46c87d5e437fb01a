"""Whether a claim of the paper holds here: a verdict for each cell of its tables, from its numbers and from ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gasam.lab.paper.studies import Expected
from gasam.lab.report.statistics import Difference, Summary, paired_difference, welch_difference

Standing = Literal["better", "worse", "no difference"]
Word = Literal["reproduced", "not reproduced", "not run"]
WORDS: tuple[Word, ...] = ("reproduced", "not reproduced", "not run")
RUNS_OF_THE_PAPER = 4
ONE_SEED, UNDECIDED, BASELINE_DIVERGED = "one seed", "undecided", "the baseline diverged"
DEFINITION = (
    "The paper's claim for a cell is that it is better than its baseline, worse, or no different, by Welch's 95% "
    f"interval of the printed means and standard deviations over {RUNS_OF_THE_PAPER} runs; ours is the same by "
    "Student's 95% interval of the differences, paired by seed, to the baseline with as many epochs. The same claim is "
    "`reproduced`, another one is `not reproduced` with ours in brackets, or with the reason why we have none. An "
    f"interval that holds zero and the paper's difference speaks against neither and is `{UNDECIDED}` where the paper "
    "claims a difference; where it claims none, one that is wider than the paper's: few seeds must not make that claim "
    "cheap; and where the baseline diverged. Differences are absolute, also where our level is another than the "
    "paper's, as on ptb. Intervals are not corrected for the number of methods; a run that stands in several rows or "
    "tables counts in each."
)


class Verdict(NamedTuple):
    """`ours` is None where no interval exists; `reason` is what is said in brackets."""

    word: Word
    paper: Standing
    ours: Standing | None = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


def standing(found: Difference | None, higher_is_better: bool) -> Standing | None:
    """What an interval of differences to the baseline carries; nothing without an interval."""
    if found is None or found.low is None:
        return None
    if found.holds(0):
        return "no difference"
    return "better" if (found.low > 0) == higher_is_better else "worse"


def paper_difference(row: Expected, baseline: Expected) -> Difference:
    return welch_difference(_summary(row), _summary(baseline))


def judge(
    claim: Difference,
    scores: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    higher_is_better: bool,
    diverged: int = 0,
    baselines_diverged: int = 0,
) -> Verdict:
    """`claim` is the paper's; `scores` and `baseline` are ours by seed; `diverged` counts runs that gave no number."""
    paper = standing(claim, higher_is_better)
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
    ours = standing(found, higher_is_better)
    if ours is None:
        return Verdict("not reproduced", paper, reason=ONE_SEED)
    if ours == "no difference" and _blunt(found, claim, paper):
        return Verdict("not reproduced", paper, ours, UNDECIDED)
    return Verdict("reproduced", paper, ours) if ours == paper else Verdict("not reproduced", paper, ours, ours)


def _blunt(found: Difference, claim: Difference, paper: Standing) -> bool:
    """Whether an interval that holds zero is too wide to speak for or against the paper's claim."""
    return found.width > claim.width if paper == "no difference" else found.holds(claim.mean)


def _summary(printed: Expected) -> Summary:
    return Summary(float(printed.mean), float(printed.std), RUNS_OF_THE_PAPER)
