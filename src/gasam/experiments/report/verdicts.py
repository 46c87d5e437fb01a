"""Whether a claim of the paper holds here: a verdict for each cell of its tables, from its numbers and from ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gasam.experiments.report.statistics import Difference, Summary, paired_difference, welch_difference
from gasam.experiments.studies import Expected

Standing = Literal["better", "worse", "no difference"]
Word = Literal["reproduced", "not reproduced", "not run"]
WORDS: tuple[Word, ...] = ("reproduced", "not reproduced", "not run")
RUNS_OF_THE_PAPER = 4
ONE_SEED, UNDECIDED = "one seed", "undecided"
DEFINITION = (
    "The paper's claim for a cell is that it is better than its baseline, worse, or no different, by Welch's 95% "
    f"interval of the printed means and standard deviations over {RUNS_OF_THE_PAPER} runs; ours is the same by "
    "Student's 95% interval of the differences, paired by seed, to the baseline with as many epochs. The same claim is "
    "`reproduced`, another one is `not reproduced` with ours in brackets, or with the reason why we have none. An "
    "interval that holds zero is no difference however wide it is, so few seeds make that claim cheap; one that holds "
    f"the paper's difference as well speaks against neither, and is `{UNDECIDED}` where the paper claims a difference. "
    "Intervals are not corrected for the number of methods; a run that stands in several tables counts in each."
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
    if found is None or found.low is None or found.high is None:
        return None
    if found.low <= 0 <= found.high:
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
) -> Verdict:
    """`claim` is the paper's; `scores` and `baseline` are ours by seed; `diverged` counts runs that gave no number."""
    paper = standing(claim, higher_is_better)
    assert paper is not None  # two summaries always have an interval
    if diverged:
        runs = diverged + len(scores)
        return Verdict("not reproduced", paper, reason="diverged" if not scores else f"{diverged} of {runs} diverged")
    if not scores:
        return Verdict("not run", paper)
    found = paired_difference(scores, baseline)
    if found is None:
        return Verdict("not run", paper, reason="no baseline with its seeds" if baseline else "no baseline")
    ours = standing(found, higher_is_better)
    if ours is None or found.low is None or found.high is None:
        return Verdict("not reproduced", paper, reason=ONE_SEED)
    if ours == paper:
        return Verdict("reproduced", paper, ours)
    undecided = ours == "no difference" and found.low <= claim.mean <= found.high
    return Verdict("not reproduced", paper, ours, UNDECIDED if undecided else ours)


def _summary(printed: Expected) -> Summary:
    return Summary(float(printed.mean), float(printed.std), RUNS_OF_THE_PAPER)
