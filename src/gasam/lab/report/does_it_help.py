"""Does a walk help? A sentence for each row of a page: at equal epochs and at equal cost, and how certain it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gasam.lab.report.corrected import corrected_standings
from gasam.lab.report.group import Group, GroupKey
from gasam.lab.report.judgement import collapsed, torn
from gasam.lab.report.notes import SAID, contrast, leads
from gasam.lab.statistics import FEW, Standing, counted

HELPS = "does it help?"
"""The title of the column."""

UNCONFIRMED = "but not after the correction"


class Effect(NamedTuple):
    """What can be said about a walk.

    Args:
        unjudged: Why nothing can be said; empty if something can.
        equal_epochs: How it stands to plain training with as many epochs.
        equal_cost: How it stands to longer plain training; empty if there is none.
    """

    unjudged: str
    equal_epochs: str
    equal_cost: str

    def __str__(self) -> str:
        """A sentence. It does not repeat the words about epochs if those about cost are the same."""
        if self.equal_epochs == self.equal_cost:
            told = f"equal epochs and equal cost: {self.equal_cost}"
        else:
            words = {"equal epochs": self.equal_epochs, "equal cost": self.equal_cost}
            told = "; ".join(f"{budget}: {text}" for budget, text in words.items() if text)
        text = self.unjudged or told
        return f"{text[0].upper()}{text[1:]}."


def effects(groups: Sequence[Group]) -> dict[GroupKey, Effect]:
    """The effect of each walk; plain training has none."""
    walking = [group for group in groups if group.method != "baseline" and group.baseline]
    usual = [group for group in walking if group.usual]
    at_equal_epochs = _corrected((group, group.baseline) for group in usual)
    at_equal_cost = _corrected((group, opponent_at_equal_cost(group)) for group in usual)
    return {
        group.key: Effect(
            _unjudged(group),
            _told(group, group.baseline, at_equal_epochs.get(group.key)),
            _told(group, opponent_at_equal_cost(group), at_equal_cost.get(group.key)),
        )
        for group in walking
    }


def ga_sam_minus(groups: Sequence[Group]) -> dict[GroupKey, str]:
    """GA-SAM minus each other method, with its usual walk, and with a tuned one where that is the fair comparison."""
    found: dict[GroupKey, str] = {}
    for lead in leads(groups):
        for other, _ in contrast(groups, lead):
            told = lead.versus(other)
            found[other.key] = f"{found[other.key]}; tuned: {told}" if other.key in found else told
    return found


def opponent_at_equal_cost(group: Group) -> Group | None:
    """Plain training that was longer and cost as much, unless it selected the weights of the shorter one."""
    same = group.longer is group.baseline or group.longer_is_the_same
    return None if same else group.longer


def by_opponent(pairs: Iterable[tuple[Group, Group | None]]) -> list[tuple[Group, list[Group]]]:
    """Each opponent with the groups that are compared with it."""
    found: dict[GroupKey, tuple[Group, list[Group]]] = {}
    for group, opponent in pairs:
        if opponent is not None:
            found.setdefault(opponent.key, (opponent, []))[1].append(group)
    return list(found.values())


def _corrected(pairs: Iterable[tuple[Group, Group | None]]) -> dict[GroupKey, Standing]:
    """How the groups stand to their opponents, corrected for the number of groups that have the same opponent."""
    found: dict[GroupKey, Standing] = {}
    for opponent, some in by_opponent(pairs):
        found |= corrected_standings(some, opponent)
    return found


def _told(group: Group, opponent: Group | None, corrected: Standing | None) -> str:
    """Better, worse, or no clear difference; empty if too few seeds or none can say it."""
    if opponent is None or len(group.scores.keys() & opponent.scores) < FEW:
        return ""
    alone = group.standing(opponent)
    if alone is None:
        return ""
    unsure = "uncorrected" if corrected is None else UNCONFIRMED
    return SAID[alone] if alone in ("no difference", corrected) else f"{SAID[alone]}, {unsure}"


def _unjudged(group: Group) -> str:
    """Why nothing can be said about its differences; empty if something can."""
    plain = group.baseline
    common = len(group.scores.keys() & plain.scores) if plain else 0
    if collapsed(group):
        return "it collapsed"
    if group.lost or (plain and plain.lost):
        return "undecided: seeds diverged"
    if common < FEW:
        return f"undecided: {counted(common, 'common seed')}"
    return "undecided: seeds disagree" if torn(group) else ""
