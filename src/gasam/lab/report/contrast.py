"""One group of runs beside others, seed by seed: which of them it beats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gasam.lab.report import cells
from gasam.lab.report.groups import Group
from gasam.lab.report.statistics import paired_difference
from gasam.lab.report.verdicts import Standing, standing
from gasam.lab.tasks import find

SAID: dict[Standing, str] = {"better": "better", "worse": "worse", "no difference": "no clear difference"}


def contrast(name: str, lead: Group, others: Iterable[tuple[str, Group]]) -> str:
    """What the intervals of `lead` minus each of the others say.

    Groups with less than two common seeds are left out, and so are those in which a run diverged: the remaining seeds
    would be the lucky ones.
    """
    higher = find(lead.task).family.metric.higher_is_better
    said: dict[Standing, list[str]] = {}
    for other, group in others:
        found = standing(paired_difference(lead.scores, group.scores), higher)
        if found is not None and group.data == lead.data and not lead.silent + group.silent:
            said.setdefault(found, []).append(f"{other}: {cells.difference(lead, group).text}")
    return f"{name} minus each other method, paired by seed: {listed(said, SAID)}." if said else ""


def listed(said: Mapping[Standing, Sequence[str]], words: Mapping[Standing, str]) -> str:
    return "; ".join(f"{word} ({', '.join(said[key])})" for key, word in words.items() if key in said)
