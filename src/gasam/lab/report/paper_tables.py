"""The paper's tables: our runs beside its numbers, row by row, with a verdict for each cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gasam.lab import tasks
from gasam.lab.paper.studies import Row, Study
from gasam.lab.paper.verdicts import WORDS, Verdict, judge, paper_difference
from gasam.lab.record import Record
from gasam.lab.report.comparison import COST, DIFFERENCE, LABEL, NAME, PAPER, SETTINGS, TEST, Line, described
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.report.labels import differing, in_words
from gasam.lab.report.matching import fits, rows_of, tuned_radii
from gasam.lab.report.notes import deviations
from gasam.lab.tables import Cell, Column, Table, tabulated

TASK: Column[Line] = Column("task", lambda line: Cell(line.task, line.task), "task")
ROW: Column[Line] = NAME._replace(title="row")
VERDICT: Column[Line] = Column(
    "verdict", lambda line: Cell(line.verdict.word, line.verdict._asdict()) if line.verdict else Cell(), "verdict"
)
REASON: Column[Line] = Column("reason", lambda line: line.verdict.reason if line.verdict else "")


def study_table(study: Study, records: Sequence[Record], size: str) -> Table:
    """A table of the paper, task by task; a task without any run is left out, and named, if others have some."""
    found = {task: study_groups(study, records, task, size) for task in study.tasks}
    shown = [task for task in study.tasks if found[task]] or study.tasks
    rows = [line for task in shown for line in lines(study, task, found[task])]
    notes = [
        f"{task}: {note}"
        for task in shown
        for note in (f"{described(tasks.find(task).family.metric)}.", *deviations(task, size, found[task]))
    ]
    if left_out := [task for task in study.tasks if task not in shown]:
        notes.append(f"Not run in this size: {', '.join(left_out)}.")
    columns = [LABEL, TASK, ROW, SETTINGS, TEST, DIFFERENCE, *PAPER, *COST, VERDICT, REASON]
    return tabulated(f"{study.title}, size {size}", columns, rows, notes)


def study_groups(study: Study, records: Sequence[Record], task: str, size: str) -> list[Group]:
    """What a study's table shows of a task."""
    groups = groups_of(records, task, size)
    tuned = tuned_radii(groups)
    return [group for group in groups if rows_of(group, study, tuned)]


def lines(study: Study, task: str, groups: Sequence[Group]) -> list[Line]:
    """The rows in the study's order; within a row the groups in theirs, so that a tuned radius comes first."""
    rows, tuned = study.rows_on(task), tuned_radii(groups)
    places = [(group, rows_of(group, study, tuned)) for group in groups]
    found: list[Line] = []
    for row in rows:
        spoken = False
        for group in [group for group, fitting in places if row in fitting]:
            found.append(_line(row, group, speaks=group.usual and not spoken))
            spoken = spoken or group.usual
        if not spoken:
            not_run = Line(task, row.method, row.label, in_words(row.own), None, row.expected)
            found.append(replace(not_run, verdict=_verdict(row, None)))
    return found


def tally(every: Sequence[Study], records: Sequence[Record], size: str) -> Table:
    """How many cells of each table and task have which verdict."""
    rows = []
    for study in every:
        for task in study.tasks:
            cells = lines(study, task, study_groups(study, records, task, size))
            found = Counter(line.verdict.word for line in cells if line.speaks and line.verdict)
            rows.append((study.number, task, *(str(found[word]) for word in WORDS)))
    return Table(f"Verdicts, size {size}", ("table", "task", *WORDS), tuple(rows))


def _line(row: Row, group: Group, *, speaks: bool) -> Line:
    own = in_words(row.own) if fits(row, group) and not group.found_on_validation else ""
    other = ", ".join(filter(None, (own, differing(group, group.other_walk(row.walk)))))
    line = Line(row.task, row.method, row.label, other, group, None, speaks=speaks)
    return replace(line, paper=row.expected, verdict=_verdict(row, group)) if group.usual else line


def _verdict(row: Row, group: Group | None) -> Verdict | None:
    """The baseline has none."""
    if row.expected.baseline is None:
        return None
    claim = paper_difference(row.expected, row.expected.baseline)
    higher = tasks.find(row.task).family.metric.higher_is_better
    if group is None:
        return judge(claim, {}, {}, higher_is_better=higher)
    plain = group.baseline
    return judge(
        claim,
        group.scores,
        plain.scores if plain else {},
        higher_is_better=higher,
        diverged=len(group.lost),
        baselines_diverged=len(plain.lost & group.scores.keys()) if plain else 0,
    )
