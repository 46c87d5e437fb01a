"""Several groups against one, corrected for their number: Dunnett's test.

The test pools the variance over seeds of all groups. Three or four seeds say little about the variance of one group, so
an interval from them alone may be far too narrow, and with Bonferroni's correction it is too wide to find anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from statistics import fmean, median, stdev

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from gasam.lab.report.group import Group, GroupKey
from gasam.lab.report.judgement import collapsed
from gasam.lab.statistics import FEW, Standing

LEVEL = 0.05
UNLIKE = 10.0
"""A group whose standard deviation is this many times the median one has seeds that failed. It can't be pooled."""


def corrected_standings(groups: Sequence[Group], control: Group) -> dict[GroupKey, Standing]:
    """How each group stands to the control; those are left out that can't be compared.

    A group needs three seeds, of which none diverged, and about the variance of the others. So a method that collapsed,
    or that failed with some seeds, is left out.
    """
    able = [group for group in groups if group.data == control.data and _is_able(group) and not collapsed(group)]
    if not able or not _is_able(control):
        return {}
    deviations = {group.key: stdev(_scores(group)) for group in (*able, control)}
    usual = median([deviation for deviation in deviations.values() if deviation] or [0.0])
    judged = [group for group in able if deviations[group.key] <= UNLIKE * usual]
    if not judged or not usual:
        return {}
    return {group.key: _standing(group, control, chance) for group, chance in _chances(judged, control)}


def _standing(group: Group, control: Group, chance: float) -> Standing:
    if chance >= LEVEL:
        return "no difference"
    is_higher = fmean(_scores(group)) > fmean(_scores(control))
    return "better" if is_higher == control.metric.higher_is_better else "worse"


def _chances(groups: Sequence[Group], control: Group) -> Iterator[tuple[Group, float]]:
    """The p-value of each group. The random numbers of the integration are fixed, so that a page stays the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal scores of one group do no harm: the variance is pooled
        found = stats.dunnett(*map(_scores, groups), control=_scores(control), rng=np.random.default_rng(0))
    return zip(groups, map(float, found.pvalue), strict=True)


def _is_able(group: Group) -> bool:
    return len(group.scores) >= FEW and not group.lost


def _scores(group: Group) -> list[float]:
    return list(group.scores.values())
