"""Whether a claim of the paper holds here: one of four words, with its reason."""

from __future__ import annotations

from typing import Literal, NamedTuple

from gasam.lab.report.comparison import Difference, Row


class Verdict(NamedTuple):
    word: Literal["reproduced", "contradicted", "undecided", "not run"]
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word} ({self.reason})" if self.reason else self.word


def judge(claim: Difference, row: Row | None) -> Verdict:
    """The verdict on one cell of a table: the paper's difference to its baseline, and our runs if there are some."""
    if row is None:
        return Verdict("not run")
    if row.lost:
        return Verdict("contradicted", f"{len(row.lost)} of {len(row.records)} diverged" if row.scores else "diverged")
    found, plain = row.difference(row.baseline), row.baseline
    if plain is not None and plain.lost & row.scores.keys():
        return Verdict("undecided", "the baseline diverged")
    if found is None:
        return Verdict("not run", "no baseline" if plain is None else "no baseline with its seeds")
    paper, ours = (each.standing(row.metric.higher_is_better) for each in (claim, found))
    if ours == "too few seeds":
        return Verdict("undecided", "one seed" if found.pairs == 1 else "two seeds")
    # An interval that holds zero decides nothing if it is wider than the paper's, or holds the paper's difference too.
    widest = claim.width if paper == "no clear difference" else 2 * abs(found.mean - claim.mean)
    if ours == "no clear difference" and found.width >= widest:
        return Verdict("undecided", "interval too wide")
    if ours == paper:
        return Verdict("reproduced", f"both: {ours}")
    return Verdict("contradicted", f"paper: {paper}")
