"""Which rows of the paper's tables a group of runs belongs to, and what the paper found there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gasam.lab import tasks
from gasam.lab.paper import studies
from gasam.lab.paper.studies import Row, Study
from gasam.lab.records import RunRecord
from gasam.lab.report.cells import Paper
from gasam.lab.report.groups import (
    CIRCUMSTANCES,
    RADIUS,
    Group,
    baseline_of,
    grouped,
    in_words,
    label,
    shared_settings,
)
from gasam.lab.report.verdicts import Verdict, judge, paper_difference

Ladder = Mapping[tuple[str, float, str], float]
"""The tuned radius by method, norm and settings."""


class Line(NamedTuple):
    """A row of a study's table, with one of the groups that belong to it; no group is a row that was not run.

    `first` marks the one that speaks for the row where there are several.
    """

    row: Row
    name: str
    group: Group | None
    baseline: Group | None
    paper: Paper | None
    verdict: Verdict | None
    first: bool


def lines(study: Study, task: str, groups: Sequence[Group]) -> Iterator[Line]:
    """The rows in the study's order; within a row the groups in theirs, so that a tuned radius comes first."""
    ladder = ladder_of(groups)
    places = [(group, rows_of(group, study, ladder)) for group in groups]
    for row in study.rows:
        spoken = False
        for group in (group for group, rows in places if row in rows):
            comparable = usual_settings(group, groups)
            paper = _paper(study, row, task) if comparable else None
            base = _named(row, task) if _fits(row, group) and not group.found_on_validation else row.label
            name = label(group, base, group.other_walk(row.walk[task]), groups)
            plain = baseline_of(group, groups)
            verdict = _verdict(study, row, task, group, plain) if comparable else None
            yield Line(row, name, group, plain, paper, verdict, comparable and not spoken)
            spoken = spoken or comparable
        if not spoken:
            verdict = _verdict(study, row, task, None, None)
            yield Line(row, _named(row, task), None, None, _paper(study, row, task), verdict, True)


def study_groups(study: Study, records: Sequence[RunRecord], task: str, size: str) -> list[Group]:
    """What a study's table shows of a task."""
    groups = grouped(record for record in records if (record.task, record.size) == (task, size))
    ladder = ladder_of(groups)
    return [group for group in groups if rows_of(group, study, ladder)]


def ladder_of(groups: Sequence[Group]) -> Ladder:
    """What is known of the tuned radii, from runs with them and with multiples of them; of two the first counts."""
    return {
        _ladder(group): group.walk["epsilon"] / (group.multiple or 1.0)
        for group in reversed(groups)
        if group.found_on_validation
    }


def paper_of(group: Group) -> Paper | None:
    """The paper's number for this walk, else for this method with the radius that the paper found for it."""
    every = [studies.load(name) for name in studies.names()]
    for besides in ((), RADIUS):
        for study in every:
            for row in study.rows:
                if group.task not in row.expected:
                    continue
                if group.found_on_validation:
                    fits = _fits_tuned(row, group)
                else:
                    fits = not (besides and row.walk[group.task]) and _fits(row, group, *besides)
                if fits:
                    return _paper(study, row, group.task)
    return None


def rows_of(group: Group, study: Study, ladder: Ladder | None = None) -> list[Row]:
    """The rows with the group's own walk; if no study has such a row, those that only name its method: its radius may
    be another than the paper's. A radius that was found on validation stands for the paper's, whatever its number; a
    run that is a rung of its `ladder` by chance is one, for no run is made twice."""
    if group.task not in study.tasks:
        return []
    if group.found_on_validation:
        return [row for row in study.rows if _fits_tuned(row, group)]
    rows = [row for row in study.rows if _fits(row, group) or _is_rung(row, group, _times(group, ladder or {}))]
    if rows or any(_fits(row, group) for row in _every_row(group.task)):
        return rows
    return [row for row in study.rows if not row.walk[group.task] and _fits(row, group, *RADIUS)]


def usual_settings(group: Group, groups: Sequence[Group]) -> bool:
    """Whether nothing but its walk sets it apart: the paper has one number, for one budget."""
    return group.other_settings.keys() <= shared_settings(groups).keys()


def _paper(study: Study, row: Row, task: str) -> Paper | None:
    expected = row.expected.get(task)
    return None if expected is None else Paper(expected, study.difference(row, task))


def _verdict(study: Study, row: Row, task: str, group: Group | None, plain: Group | None) -> Verdict | None:
    """None for the baseline, and where the paper has no number."""
    theirs = study.rows[0].expected.get(task)
    if row.method == "baseline" or theirs is None or task not in row.expected:
        return None
    higher = tasks.find(task).family.metric.higher_is_better
    claim = paper_difference(row.expected[task], theirs)
    return judge(
        claim,
        group.scores if group else {},
        plain.scores if plain else {},
        higher_is_better=higher,
        diverged=group.silent if group else 0,
        baselines_diverged=len(plain.lost & group.scores.keys()) if plain and group else 0,
    )


def _named(row: Row, task: str) -> str:
    return f"{row.label} ({in_words(row.own[task])})" if row.own[task] else row.label


def _every_row(task: str) -> Iterator[Row]:
    for study in map(studies.load, studies.names()):
        yield from study.rows if task in study.tasks else ()


def _fits(row: Row, group: Group, *besides: str) -> bool:
    """Whether the group's walk is the row's, besides some of its options."""
    if row.method != group.method:
        return False
    return not group.other_walk(row.walk[group.task]).keys() - {*CIRCUMSTANCES, *besides}


def _fits_tuned(row: Row, group: Group) -> bool:
    """A rung of a ladder of radii is met by its multiple and norm, any other row by the method and the steps."""
    if "epsilon" in row.walk[group.task]:
        return _is_rung(row, group, 1.0 if group.multiple is None else group.multiple)
    return group.tuned and _fits(row, group, *RADIUS)


def _is_rung(row: Row, group: Group, times: float | None) -> bool:
    """Whether the row is that multiple of the tuned radius, in the group's norm."""
    walk = row.walk[group.task]
    if times is None or "epsilon" not in walk or not _fits(row, group, *RADIUS):
        return False
    return float(group.walk["norm"]) == walk["norm"] and math.isclose(row.times(group.task), times, rel_tol=1e-4)


def _times(group: Group, ladder: Ladder) -> float | None:
    radius = ladder.get(_ladder(group))
    return group.walk["epsilon"] / radius if radius else None


def _ladder(group: Group) -> tuple[str, float, str]:
    return group.method, float(group.walk["norm"]), json.dumps(group.settings, sort_keys=True)
