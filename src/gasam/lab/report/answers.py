"""The answer in words that a section of the HTML report begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gasam.lab.report.group import Group
from gasam.lab.report.labels import label
from gasam.lab.report.notes import conclusion
from gasam.lab.statistics import FEW, counted, number

STANDINGS = {
    "better": "better",
    "worse": "worse",
    "no clear difference": "without a clear difference",
    "too few seeds": "with too few seeds",
    "without a comparison": "without common seeds",
    "without another method": "without another method",
}
"""What a comparison can end with, and the words for it in a sentence."""


class Answer(NamedTuple):
    """`standing` is one of STANDINGS."""

    sentence: str
    standing: str


def answer_of(groups: Sequence[Group]) -> Answer:
    """What the runs of one task and size say about GA-SAM, or else about their first method."""
    walking = [group for group in groups if group.method != "baseline"]
    if not walking:
        return Answer(f"Only plain training was run. {_scored(groups)}.", "without another method")
    lead = min(walking, key=lambda group: (not group.scores, group.method != "ga-sam"))  # as in `conclusion`
    found = lead.difference(lead.baseline)
    if found is None or lead.baseline is None:
        missing = "diverged with every seed" if not lead.scores else "has no baseline with a common seed"
        return Answer(f"{lead.title} {missing}. {_scored([lead])}.", "without a comparison")
    told = " ".join(f"{sentence[0].upper()}{sentence[1:]}" for sentence in conclusion(groups))
    if found.pairs < FEW:
        return Answer(f"{_scored([lead, lead.baseline])}. {told}", "too few seeds")
    standing = found.standing(lead.metric.higher_is_better)
    return Answer(
        f"{told}{_price(lead)}", "no clear difference" if standing in (None, "no difference") else str(standing)
    )


def _price(group: Group) -> str:
    if group.relative_cost is None:
        return ""
    return f" It took {group.relative_cost:.2f} times as many gradient evaluations."


def headline(answers: Sequence[Answer]) -> str:
    """How many answers there are of each kind, the decided ones first."""
    counts = Counter(answer.standing for answer in answers)
    told = [f"{counts[standing]} {words}" for standing, words in STANDINGS.items() if counts[standing]]
    return f"Of {len(answers)} comparisons with the baseline: {', '.join(told)}."


def _scored(groups: Sequence[Group]) -> str:
    """The test scores in words, with their unit."""
    metric = groups[0].metric
    unit = f", {metric.unit}" if metric.unit else ""
    return f"Test {metric.name}{unit}: {', '.join(f'{label(group)} {_score(group)}' for group in groups)}"


def _score(group: Group) -> str:
    if group.summary is None:
        return "diverged"
    few = group.summary.seeds < FEW
    decimals = group.metric.decimals
    seeds = " and ".join(number(score, decimals) for score in group.scores.values())
    told = seeds if few else group.summary.text(decimals)
    return told if group.summary.seeds == 1 else f"{told} over {counted(group.summary.seeds, 'seed')}"
