"""Tables in the paper's manner, made from records alone: ours, the paper's beside it, and what each costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gasam.lab import tasks
from gasam.lab.families import Metric
from gasam.lab.methods import METHODS
from gasam.lab.paper.studies import Study
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.cells import COLUMNS, Cell, Cells
from gasam.lab.report.collapse import collapsed, warnings
from gasam.lab.report.contrast import contrast
from gasam.lab.report.groups import (
    Group,
    as_recorded,
    baseline_of,
    grouped,
    in_words,
    labels,
    radius,
    shared_settings,
)
from gasam.lab.report.matching import Line, lines, paper_of, study_groups, usual_settings
from gasam.lab.report.statistics import paired_difference
from gasam.lab.report.verdicts import standing
from gasam.lab.tables import Table, as_json, markdown

__all__ = [
    "Table",
    "as_json",
    "comparison",
    "data_notes",
    "described",
    "markdown",
    "remarks",
    "study_table",
]


def comparison(
    records: Iterable[RunRecord],
    task: str,
    size: str,
    flags: str | None = None,
    step_times: Mapping[str, float] | None = None,
) -> Table:
    """Every configuration that was run on a task in a size, a row each, in the order of the methods.

    `flags` are those that `gasam tune` needs to use the same data and settings; None if they are not known.
    `step_times` are those of `step_time.step_times`.
    """
    groups = grouped(record for record in records if (record.task, record.size) == (task, size))
    names = labels(groups)
    rows: list[Cells] = []
    for group, name in zip(groups, names, strict=True):
        paper, baseline = paper_of(group) if usual_settings(group, groups) else None, baseline_of(group, groups)
        row = cells.row(group, baseline, paper, (step_times or {}).get(group.key))
        if collapsed(group, baseline):
            row["test"] = row["test"]._replace(text=f"{row['test'].text}, collapsed")
        rows.append({"method": Cell(name, group.method)} | row)
    columns = ("method", described(tasks.find(task).family.metric), *COLUMNS)
    notes = [*conclusion(groups), *warnings(groups, names, flags), *_radii(groups), *_champion(groups)]
    return _table(f"{task}, size {size}", columns, rows, [*notes, *remarks(task, size, groups)])


def conclusion(groups: Sequence[Group]) -> Iterator[str]:
    """One sentence: what the table shows of GA-SAM, or else of its first method."""
    walking = [group for group in groups if group.scores and group.method != "baseline"]
    group = next((each for each in walking if each.method == "ga-sam"), None) or next(iter(walking), None)
    baseline = baseline_of(group, groups) if group else None
    found = paired_difference(group.scores, baseline.scores) if group and baseline else None
    if group is None or baseline is None or found is None:
        return
    if found.pairs == 1:
        yield "Conclusion: one seed shows that everything works, and nothing about the methods. Use --seeds 4."
        return
    name, better = METHODS[group.method].title, standing(found, _higher_is_better(group))
    measured = f"{cells.difference(group, baseline).text} over {found.pairs} seeds"
    if better in ("better", "worse"):
        yield f"Conclusion: {name} is {better} than the baseline: {measured}."
    else:
        yield f"Conclusion: no clear difference between {name} and the baseline: {measured}."


def _higher_is_better(group: Group) -> bool:
    return tasks.find(group.task).family.metric.higher_is_better


def study_table(study: Study, records: Sequence[RunRecord], size: str) -> Table:
    """A table of the paper, task by task, with a verdict for each cell; a task without any run is left out, and said,
    if others have some."""
    found = {task: study_groups(study, records, task, size) for task in study.tasks}
    shown = [task for task in study.tasks if found[task]] or list(study.tasks)
    rows: list[Cells] = []
    notes: list[str] = []
    for task in shown:
        heading = f"{task}: {described(tasks.find(task).family.metric)}"
        for number, line in enumerate(lines(study, task, found[task])):
            rows.append({"task": Cell("" if number else heading, task)} | _study_row(line))
        notes += [f"{task}: {note}" for note in remarks(task, size, found[task])]
    if left_out := [task for task in study.tasks if task not in shown]:
        notes.append(f"Not run in this size: {', '.join(left_out)}.")
    return _table(f"{study.title}, size {size}", ("task", "row", "test", *COLUMNS, "verdict"), rows, notes)


def described(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{metric.name}{unit} ({'higher' if metric.higher_is_better else 'lower'} is better)"


def remarks(task: str, size: str, groups: Sequence[Group]) -> Iterator[str]:
    """What differs from the paper in data and in numbers; the latter from what was run, not from what is planned."""
    definition = tasks.find(task)
    if definition.kind.startswith("twin"):
        yield f"{task} is a {definition.kind}, to try and to test with: it is no evidence."
    for note in data_notes(groups):
        yield f"Data: {note}."
    copied = [
        run.remarks["bleu_of_copying"] for group in groups for run in group.runs if "bleu_of_copying" in run.remarks
    ]
    if copied:
        yield f"The source itself, copied, has BLEU {copied[0]:.2f}."
    if not groups:
        return
    if shared := shared_settings(groups):
        yield f"All rows: {in_words(shared)}; size {size} has {in_words(_same(shared, definition.settings(size)))}."
    if definition.kind == "paper":
        paper = as_recorded(definition.settings("paper"))
        usual = next((group for group in groups if usual_settings(group, groups)), groups[0]).settings
        if other := {name: value for name, value in usual.items() if name in paper and paper[name] != value}:
            yield f"These runs: {in_words(other)}; the paper has {in_words({name: paper[name] for name in other})}."


def data_notes(groups: Sequence[Group]) -> list[str]:
    """How the data differs from the paper's, each thing once."""
    every = [note for group in groups for run in group.runs for note in run.data.notes]
    return [note.rstrip(".") for note in dict.fromkeys(every)]


def _table(title: str, columns: Sequence[str], rows: Sequence[Cells], notes: Iterable[str]) -> Table:
    texts = tuple(tuple(cell.text for cell in row.values()) for row in rows)
    values = tuple({"label": row["method"].text} | {key: cell.value for key, cell in row.items()} for row in rows)
    return Table(title, tuple(columns), texts, tuple(notes), values).without_empty_columns()


def _study_row(line: Line) -> Cells:
    verdict = line.verdict
    judged = Cell() if verdict is None else Cell(str(verdict), verdict._asdict())
    measured = cells.row(line.group, line.baseline, line.paper)
    return {"method": Cell(line.name, line.row.method)} | measured | {"verdict": judged}


def _same(names: Iterable[str], settings: Any) -> dict[str, Any]:
    recorded = as_recorded(settings)
    return {name: recorded[name] for name in names}


def _radii(groups: Sequence[Group]) -> Iterator[str]:
    """How far each method walks, and who says so."""
    told: dict[str, dict[str, None]] = {}
    for group in groups:
        if group.method != "baseline":
            walk = f"{METHODS[group.method].title} {radius(group)}"
            told.setdefault("; ".join(group.sources), {})[walk] = None
    listed = [f"{', '.join(walks)} ({source})" for source, walks in told.items()]
    if listed:
        yield f"Size of the walks: {'; '.join(listed)}."


def _champion(groups: Sequence[Group]) -> Iterator[str]:
    """GA-SAM beside every other method: of several groups of one method the usual one."""
    named = [pair for pair in zip(groups, labels(groups), strict=True) if usual_settings(pair[0], groups)]
    first = {group.method: (name, group) for group, name in reversed(named) if group.method != "baseline"}
    lead = first.pop("ga-sam", None)
    if lead and (
        told := contrast(*lead, [(METHODS[method].title, first[method][1]) for method in METHODS if method in first])
    ):
        yield told
