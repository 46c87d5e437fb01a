"""Which rows of the paper's tables a group of runs belongs to, and what the paper found there."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence

from gasam.lab.paper import studies
from gasam.lab.paper.studies import Expected, Row, Study
from gasam.lab.report.group import RADIUS, Group

CIRCUMSTANCES = {"start_epoch", "same_noise"}
"""Options that are ignored when walks are compared: one follows the number of epochs, one is set for all methods."""
Radii = Mapping[tuple[str, float, str], float]
"""The tuned radius by method, norm and settings."""


def tuned_radii(groups: Sequence[Group]) -> Radii:
    """From runs with a tuned radius and with multiples of it; of two the first counts."""
    return {_ladder(group): group.walk["epsilon"] for group in reversed(groups) if group.found_on_validation}


def rows_of(group: Group, study: Study, tuned: Radii) -> list[Row]:
    """The rows of a table that a group belongs to.

    1. A radius that was found on validation stands for the paper's, whatever its number.
    2. Otherwise the rows with the group's own walk,
    3. and those with the same multiple of the `tuned` radius: no run is made twice.
    4. If no table has a row with its walk, the rows that name its method and nothing else.
    """
    if group.task not in study.tasks:
        return []
    rows = study.rows_on(group.task)
    if group.found_on_validation:
        return [row for row in rows if _fits_tuned(row, group)]
    radius = tuned.get(_ladder(group))
    epsilon = group.walk["epsilon"]  # None with a budget
    times = epsilon / radius if radius and epsilon else None
    found = [row for row in rows if fits(row, group) or _is_rung(row, group, times)]
    if found or any(fits(row, group) for row in _every_row(group.task)):
        return found
    return [row for row in rows if not row.walk and fits(row, group, RADIUS)]


def paper_of(group: Group) -> Expected | None:
    """The paper's number for this walk, else for this method with the radius that the paper found for it."""
    rows = _every_row(group.task)
    if group.found_on_validation:
        found = [row for row in rows if _fits_tuned(row, group)]
    else:
        found = [row for row in rows if fits(row, group)]
        found += [row for row in rows if not row.walk and fits(row, group, RADIUS)]
    return found[0].expected if found else None


def _every_row(task: str) -> list[Row]:
    return [row for study in studies.every() if task in study.tasks for row in study.rows_on(task)]


def fits(row: Row, group: Group, besides: Collection[str] = ()) -> bool:
    """Whether the group's walk is the row's, besides some of its options."""
    return row.method == group.method and not group.other_walk(row.walk).keys() - CIRCUMSTANCES - set(besides)


def _fits_tuned(row: Row, group: Group) -> bool:
    """A rung of a ladder of radii is met by its multiple and norm, any other row by the method and the steps."""
    if row.times is not None:
        return _is_rung(row, group, 1.0)
    return group.tuned and fits(row, group, RADIUS)


def _is_rung(row: Row, group: Group, times: float | None) -> bool:
    """Whether the row is that multiple of the tuned radius, in the group's norm."""
    if times is None or row.times is None or not fits(row, group, RADIUS):
        return False
    return float(group.walk["norm"]) == row.walk["norm"] and math.isclose(row.times, times, rel_tol=1e-4)


def _ladder(group: Group) -> tuple[str, float, str]:
    return group.method, float(group.walk["norm"]), json.dumps(group.settings, sort_keys=True)
