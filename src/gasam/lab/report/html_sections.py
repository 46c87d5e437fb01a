"""The sections of the HTML report, one for each task and size: answer, charts, tables and analyses of its runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gasam.lab.analyses import Analysis
from gasam.lab.record import AnalysisRecord, Record
from gasam.lab.report import chart_data, charts
from gasam.lab.report.answers import Answer, answer_of
from gasam.lab.report.chart_data import Series
from gasam.lab.report.charts import Chart
from gasam.lab.report.comparison import comparison, described
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.report.labels import configuration_labels, differing, label, radius
from gasam.lab.tables import Table

WALKS = {
    "ratio": "Displacement |a| / |w|",
    "largest_ratio": "|a| / |w| of the largest group",
    "strength": "Strength of the schedule",
    "capped": "Share of groups that the cap limits",
    "predicted_rise": "Predicted rise of the loss",
    "rise": "Measured rise of the loss",
}
"""The diagnostics of walks, in the order of the page."""
HEADS = {"attack": "Robustness of the weights", "spectrum": "Spectrum", "sharpness": "Sharpness"}
Analyses = Sequence[tuple[Analysis, list[AnalysisRecord]]]


class Run(NamedTuple):
    """A run and the file of its record."""

    file: Path
    record: Record


class RunRow(NamedTuple):
    """A run in the table of all runs. A number that does not exist is None."""

    task: str
    size: str
    method: str
    walk: str
    settings: str
    epochs: int
    seed: int
    metric: str
    valid: float | None
    test: float | None
    diverged: bool
    gradient_evaluations: float
    seconds: float
    file: Path


class Analysed(NamedTuple):
    """An analysis: its table, and its chart with the configurations in it if it has one."""

    title: str
    table: Table
    series: Sequence[Series]
    chart: Chart | None


@dataclass(frozen=True)
class Section:
    """A task in one size. `walks` are the charts of the walks' diagnostics; older records have none."""

    task: str
    size: str
    answer: Answer
    metric: str
    series: Sequence[Series]
    charts: Sequence[Chart]
    walks: Sequence[Chart]
    table: Table
    analyses: Sequence[Analysed]
    runs: Sequence[RunRow]

    @property
    def title(self) -> str:
        return f"{self.task}, size {self.size}"

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def notes(self) -> list[str]:
        """The notes of the table without the conclusion, which is the answer."""
        return [note for note in self.table.notes if not note.startswith("Conclusion: ")]


def sections(
    runs: Sequence[Run],
    analyses: Analyses = (),
    step_times: Mapping[tuple[str, str], Mapping[str, float]] | None = None,
    flags: str | None = None,
) -> list[Section]:
    """A section for each task and size, in the order of the runs.

    Args:
        runs: The runs to show.
        analyses: Analyses of runs with the same options on one task.
        step_times: For each task and size the step times relative to the baseline, by the label of the configuration.
        flags: What `gasam tune` needs to use the same data and settings; None if it is not known.
    """
    kinds = dict.fromkeys((run.record.task, run.record.size) for run in runs)
    return [
        _section(task, size, runs, analyses, (step_times or {}).get((task, size), {}), flags) for task, size in kinds
    ]


def _section(
    task: str, size: str, runs: Sequence[Run], analyses: Analyses, times: Mapping[str, float], flags: str | None
) -> Section:
    found = [run.record for run in runs]
    groups = groups_of(found, task, size)
    series = chart_data.series_of(groups)
    by_configuration = {group.configuration: times[label(group)] for group in groups if label(group) in times}
    here = [(kind, some) for kind, some in analyses if (some[0].run.task, some[0].run.size) == (task, size)]
    return Section(
        task=task,
        size=size,
        answer=answer_of(groups),
        metric=described(groups[0].metric),
        series=series,
        charts=list(_charts(groups, series, times)),
        walks=list(_walks(groups, series)),
        table=comparison(found, task, size, flags, by_configuration),
        analyses=[_analysed(kind, some, groups, series) for kind, some in here],
        runs=list(_rows(groups, {id(run.record): run.file for run in runs})),
    )


def _charts(groups: Sequence[Group], series: Sequence[Series], times: Mapping[str, float]) -> Iterator[Chart]:
    metric, followed = groups[0].metric, groups[0].followed
    score = _with_unit(metric.name, metric.unit)
    if rows := chart_data.differences(groups, series):
        side = "right" if metric.higher_is_better else "left"
        caption = (
            "Test score minus that of the baseline with the same seed. Dots are seeds. From three seeds on, a diamond "
            "is their mean and the bar its 95% interval: a bar that crosses 0 shows no clear difference."
        )
        yield Chart("Difference to the baseline", caption, charts.differences(rows, series, score, side))
    if rows := chart_data.over_epochs(groups, lambda point: point.get("valid")):
        name = f"validation {_with_unit(followed.name, followed.unit)}"
        caption = (
            f"After every epoch; {_direction(followed.higher_is_better)}. Lines are means, and bands reach from the "
            "lowest to the highest seed. With one or two seeds every line is a seed."
        )
        spec = charts.curves(rows, series, name, log=not followed.higher_is_better)
        yield Chart("Learning curves", caption, spec)
    shown = f"test {score}"
    spread = f"Bars are standard deviations over seeds; {_direction(metric.higher_is_better)}."
    if len(groups) > 1 and (rows := chart_data.scores(groups, lambda group: group.passes)):
        spec = charts.costs(rows, series, "gradient evaluations (passes) per step", shown)
        caption = f"What a step costs: one gradient evaluation is a forward and a backward pass. {spread}"
        yield Chart("Score against passes", caption, spec)
    if len(groups) > 1 and (rows := chart_data.scores(groups, lambda group: times.get(label(group)))):
        spec = charts.costs(rows, series, "step time, times that of the baseline", shown)
        yield Chart("Score against step time", f"Measured on the machine that ran the comparison. {spread}", spec)


def _walks(groups: Sequence[Group], series: Sequence[Series]) -> Iterator[Chart]:
    for name, rows in chart_data.walk_rows(groups, list(WALKS)):
        yield Chart(WALKS[name], "", charts.over_epochs(rows, series, WALKS[name]))


def _analysed(
    analysis: Analysis, found: Sequence[AnalysisRecord], groups: Sequence[Group], series: Sequence[Series]
) -> Analysed:
    own = groups_of([each.run for each in found], found[0].run.task, found[0].run.size)
    colours = {group.method: each.colour for group, each in zip(groups, series, strict=True)}
    shown = analysis.table(found, configuration_labels(found))
    table = Table(shown.title, tuple(shown.columns), tuple(map(tuple, shown.cells())), tuple(shown.notes))
    title = HEADS.get(analysis.kind, analysis.kind.capitalize())
    return Analysed(title, table, chart_data.analysed_series(own, colours), None)


def _rows(groups: Sequence[Group], files: Mapping[int, Path]) -> Iterator[RunRow]:
    for group in groups:
        walk = "" if group.method == "baseline" else radius(group)
        settings = differing(group, group.other_walk())
        for record in group.records:
            yield RunRow(
                record.task,
                record.size,
                group.title,
                walk,
                settings,
                record.settings["epochs"],
                record.seed,
                _with_unit(group.metric.name, group.metric.unit),
                record.valid,
                record.test,
                record.diverged,
                record.gradient_evaluations,
                record.seconds,
                files[id(record)],
            )


def _with_unit(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name


def _direction(higher_is_better: bool) -> str:
    return f"{'higher' if higher_is_better else 'lower'} is better"
