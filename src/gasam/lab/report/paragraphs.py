"""Paragraphs for each table and task: what the paper says, what was measured, what differs, what does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gasam.lab.paper.studies import Study
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.comparison import remarks
from gasam.lab.report.contrast import contrast, listed
from gasam.lab.report.groups import Group
from gasam.lab.report.matching import Line, lines, study_groups
from gasam.lab.report.paper import best_in_words, best_row
from gasam.lab.report.statistics import paired_difference, summary
from gasam.lab.report.verdicts import (
    BASELINE_DIVERGED,
    ONE_SEED,
    UNDECIDED,
    WORDS,
    Standing,
    Verdict,
    standing,
)
from gasam.lab.tables import Table
from gasam.lab.tasks import find

TALLY = ("reproduced", "not reproduced", UNDECIDED, "not run")
"""One seed, or a baseline that diverged, carries no claim: undecided."""
TORN = 5
"""How many times the baseline's spread over seeds a row's may be before its scores are told one by one."""
IN_WORDS: dict[Standing, str] = {
    "better": "better than the baseline",
    "worse": "worse",
    "no difference": "neither",
}


def paragraph(
    study: Study, task: str, size: str, groups: Sequence[Group], remark: str = "", *, again: bool = False
) -> str:
    """The paper's claims, what was measured, what came of them. Everything but `remark` is made from numbers, and
    claims no more than their intervals carry. `again` points to the section of the task for what differs, which a table
    before has told."""
    cell = [line for line in lines(study, task, groups) if line.first]
    higher = find(task).family.metric.higher_is_better
    paper = [f"**{task}.** The paper: {best_in_words(study, task).partition(': ')[2]}.", _claims(study, task, cell)]
    if not any(line.group for line in cell):
        own = " with its own settings" if groups else ""
        return _spoken(*paper, f"Not run in size {size}{own}.", remark)
    here = [*_measured(cell, higher), _rivals(study, task, cell)]
    return "\n\n".join(
        (_spoken(*paper), _spoken(*here), _spoken(*_verdicts(cell), _differing(task, size, groups, again), remark))
    )


def _spoken(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _differing(task: str, size: str, groups: Sequence[Group], again: bool) -> str:
    if again:
        return f"What differs in data and size is told [above](#{task}-size-{size})."
    found = list(remarks(task, size, groups))
    return f"What differs. {' '.join(found)}" if found else ""


def tally(study: Study, records: Sequence[RunRecord], size: str) -> Iterator[tuple[str, ...]]:
    """For each task how many cells have which verdict."""
    for task in study.tasks:
        found = lines(study, task, study_groups(study, records, task, size))
        counted = [_counted_as(line.verdict) for line in found if line.first and line.verdict]
        yield study.title.partition(":")[0], task, *(str(counted.count(column)) for column in TALLY)


def verdict_table(every: Iterable[Study], records: Sequence[RunRecord], size: str) -> Table:
    rows = [row for study in every for row in tally(study, records, size)]
    return Table(f"Verdicts, size {size}", ("table", "task", *TALLY), tuple(rows))


def _counted_as(verdict: Verdict) -> str:
    return UNDECIDED if verdict.reason in (ONE_SEED, UNDECIDED, BASELINE_DIVERGED) else verdict.word


def _claims(study: Study, task: str, cell: Sequence[Line]) -> str:
    said: dict[Standing, list[str]] = {}
    for line in cell:
        if line.verdict:
            said.setdefault(line.verdict.paper, []).append(f"{_short(line)}: {study.difference(line.row, task):+}")
    return f"Its intervals say {listed(said, IN_WORDS)}."


def _measured(cell: Sequence[Line], higher: bool) -> Iterator[str]:
    """The baseline, the best of the others, and which interval says what."""
    plain, *others = cell
    if plain.group is not None:
        yield f"Here: baseline {cells.result(plain.group).text}{_best(others, higher)}."
    said: dict[Standing, list[str]] = {}
    alone: list[str] = []
    for line in others:
        if line.group is None or line.baseline is None:
            continue
        found = paired_difference(line.group.scores, line.baseline.scores)
        if found is not None:
            carried = standing(found, higher)
            named = f"{_short(line)}: {cells.difference(line.group, line.baseline).text}"
            (alone if carried is None else said.setdefault(carried, [])).append(named)
    if said:
        yield f"Our intervals say {listed(said, IN_WORDS)}."
    if alone:
        yield f"From one seed, which carries nothing: {', '.join(alone)}."
    if torn := [_by_seed(line) for line in others if line.group and _torn(line.group, line.baseline)]:
        yield f"Seeds disagree, by more than {TORN} times the baseline's standard deviation: {'; '.join(torn)}."


def _torn(group: Group, baseline: Group | None) -> bool:
    """Whether some seeds learn and others do not: a mean and its interval say little then."""
    found, plain = (summary(each.scores.values()) if each else None for each in (group, baseline))
    return bool(found and plain and found.std and plain.std and found.std > TORN * plain.std)


def _by_seed(line: Line) -> str:
    assert line.group is not None
    return f"{_short(line)}: {', '.join(map(cells.number, line.group.scores.values()))}"


def _best(others: Sequence[Line], higher: bool) -> str:
    means = [(found.mean, line) for line in others if line.group and (found := summary(line.group.scores.values()))]
    if not means:
        return ""
    _, line = (max if higher else min)(means, key=lambda pair: pair[0])
    assert line.group is not None
    gain = cells.difference(line.group, line.baseline).text if line.baseline else ""
    compared = f", {gain} to the baseline" if gain else ""
    return f"; of the others {line.name} has the best mean, {cells.result(line.group).text}{compared}"


def _verdicts(cell: Sequence[Line]) -> Iterator[str]:
    judged = [line for line in cell if line.verdict]
    for word in WORDS:
        named = [
            f"{_short(line)} ({line.verdict.reason})" if line.verdict.reason else _short(line)
            for line in judged
            if line.verdict and line.verdict.word == word
        ]
        if named:
            yield f"{word.capitalize()}: {', '.join(named)}."


def _rivals(study: Study, task: str, cell: Sequence[Line]) -> str:
    """The row that the paper found best beside the table's other walks of its method."""
    lead = next(line for line in cell if line.row is best_row(study, task))
    if lead.group is None:
        return ""
    rivals = [line for line in cell if line.row.method == lead.row.method and line.group is not lead.group]
    return contrast(lead.name, lead.group, [(_short(line), line.group) for line in rivals if line.group])


def _short(line: Line) -> str:
    """For lists, which have commas of their own."""
    return line.row.label.replace(", ", " ")
