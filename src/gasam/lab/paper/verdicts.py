"""Whether a claim of the paper holds here: one of four words, with its reason, for tables, flatness and figures."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

from gasam.lab.paper.studies import Expected
from gasam.lab.statistics import FEW, Difference, Standing, Summary, paired_difference, welch_difference

Word = Literal["reproduced", "contradicted", "undecided", "not run"]
WORDS: tuple[Word, ...] = get_args(Word)
RUNS_OF_THE_PAPER = 4
WIDE, BASELINE_DIVERGED = "interval too wide", "the baseline diverged"
FIGURE_CLAIMS = {
    "figure4": "gradient norms are much larger early in training",
    "figure5": "higher layers of encoder and decoder have larger gradients",
}
"""What the paper says of its figures about gradient norms, by the name of the study."""


class Verdict(NamedTuple):
    """`ours` is None where no interval exists; `reason` says why, where the word alone does not."""

    word: Word
    paper: Standing
    ours: Standing | None = None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


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
    """The verdict on one cell of a table.

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
        return Verdict("contradicted", paper, reason="diverged" if not scores else f"{diverged} of {runs} diverged")
    if not scores:
        return Verdict("not run", paper)
    if baselines_diverged:
        return Verdict("undecided", paper, reason=BASELINE_DIVERGED)
    found = paired_difference(scores, baseline)
    if found is None:
        return Verdict("not run", paper, reason="no baseline with its seeds" if baseline else "no baseline")
    ours = found.standing(higher_is_better)
    if ours is None or found.pairs < FEW:
        return Verdict("undecided", paper, reason=_few(found))
    if ours == "no difference" and _blunt(found, claim, paper):
        return Verdict("undecided", paper, ours, WIDE)
    if ours == paper:
        return Verdict("reproduced", paper, ours, f"both: {ours}")
    return Verdict("contradicted", paper, ours, f"{ours}; paper: {paper}")


def judge_flatness(found: Difference, *, more_is_flatter: bool) -> Verdict:
    """The verdict on the claim that GA-SAM is flatter, from its difference to the baseline in one measure."""
    ours = found.standing(more_is_flatter)
    if ours is None or found.pairs < FEW:
        flatter = (found.mean > 0) == more_is_flatter
        return Verdict("undecided", "better", reason=f"{_few(found)}, {'flatter' if flatter else 'sharper'}")
    if ours == "no difference":
        return Verdict("undecided", "better", ours, WIDE)
    return (
        Verdict("reproduced", "better", ours)
        if ours == "better"
        else Verdict("contradicted", "better", ours, "sharper")
    )


def judge_figure(name: str, norms: Mapping[str, Any]) -> Verdict | None:
    """The verdict on Figure 4 or 5, from gradient norms by epoch, of runs or of the layers of each side.

    Figure 4: whether every run's norms are larger in the first epoch than in the last. Figure 5: whether the mean norms
    of one run rise from layer to layer on every side. Fewer than three runs decide nothing. Other figures have no
    verdict.
    """
    if name == "figure4":
        against = [f"{run}: they grow" for run, curve in norms.items() if curve[0] <= curve[-1]]
        runs = len(norms)
    elif name == "figure5":
        means = {side: [fmean(values) for values in layers.values()] for side, layers in norms.items()}
        against = [f"{side}: {_order(each)}" for side, each in means.items() if each != sorted(each)]
        runs = 1
    else:
        return None
    found = "; ".join(against)
    if runs < FEW:
        few = "one run" if runs == 1 else "two runs"
        return Verdict("undecided", "better", reason=f"{few}; {found or 'as in the paper'}")
    return Verdict("contradicted" if against else "reproduced", "better", reason=found)


def _few(found: Difference) -> str:
    return "one seed" if found.pairs == 1 else "two seeds"


def _order(means: list[float]) -> str:
    return "the order is reversed" if means == sorted(means, reverse=True) else "no such order"


def _blunt(found: Difference, claim: Difference, paper: Standing) -> bool:
    """Whether an interval that holds zero is too wide to speak for or against the paper's claim."""
    return found.width > claim.width if paper == "no difference" else found.holds(claim.mean)
