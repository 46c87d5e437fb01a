"""Several groups against one, corrected for their number: Dunnett's test, and the paired interval has to agree.

The test pools the variance over seeds of all groups and does not pair by seed. Three or four seeds say little about the
variance of one group, so with Bonferroni's correction its interval is too wide to find anything. On the other hand a
group that varies more than the others is called different too often. So its own interval must exclude zero as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from statistics import median, stdev

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from gasam.lab.report.group import Group, GroupKey
from gasam.lab.report.judgement import collapsed
from gasam.lab.statistics import FEW, Standing

LEVEL = 0.05
UNLIKE = 10.0
"""A group whose standard deviation is more than this many times the median one can't be pooled with the others."""


def corrected_standings(groups: Sequence[Group], control: Group) -> dict[GroupKey, Standing]:
    """How each group stands to the control; those are left out that can't be compared.

    A group needs three seeds in common with the control, no seed that diverged, and about the variance of the others.
    A group that collapsed is left out too.
    """
    able = [group for group in groups if _is_able(group, control) and not collapsed(group)]
    if not able or control.lost:
        return {}
    deviations = {group.key: stdev(_scores(group)) for group in (*able, control)}
    usual = median([deviation for deviation in deviations.values() if deviation] or [0.0])
    alike = {key for key, deviation in deviations.items() if deviation <= UNLIKE * usual}
    judged = [group for group in able if group.key in alike]
    if not judged or control.key not in alike or not usual:
        return {}
    return {group.key: _standing(group, control, chance) for group, chance in _chances(judged, control)}


def _standing(group: Group, control: Group, chance: float) -> Standing:
    alone = group.standing(control) if chance < LEVEL else None
    return alone or "no difference"


def _chances(groups: Sequence[Group], control: Group) -> Iterator[tuple[Group, float]]:
    """The p-value of each group. The random numbers of the integration are fixed, so that a page stays the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal scores of one group do no harm: the variance is pooled
        found = stats.dunnett(*map(_scores, groups), control=_scores(control), rng=np.random.default_rng(0))
    return zip(groups, map(float, found.pvalue), strict=True)


def _is_able(group: Group, control: Group) -> bool:
    return group.data == control.data and not group.lost and len(group.scores.keys() & control.scores) >= FEW


def _scores(group: Group) -> list[float]:
    return list(group.scores.values())
