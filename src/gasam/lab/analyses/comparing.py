"""Analysed runs side by side: their baselines, a sentence that compares them, their lines in a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gasam.lab.records import AnalysisRecord, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gasam.analysis import pictures


class Measure(NamedTuple):
    """A number that says how flat the minimum of a run is: None if it was not reached, then `text` says why."""

    name: str
    value: float | None
    text: str
    more_is_flatter: bool


Measures = Callable[[AnalysisRecord], Sequence[Measure]]


class Plotted(NamedTuple):
    """The points of a run's line. A y of None is a gap; `marked` is a place on the x axis to be shown."""

    x: Sequence[float]
    y: Sequence[float | None]
    marked: float | None = None


def compared(measures: Measures, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
    """Each measure of each run that is not a baseline, beside its baselines'; without any, of all runs."""
    clauses = []
    for number, each in enumerate(found):
        rivals = [] if each.run.method == "baseline" else baselines(each, found)
        if rivals:
            told = _clauses(measures, [(found[i], labels[i]) for i in (number, *rivals)])
            clauses += [f"on {each.run.task} {clause}" for clause in told]
    return "; ".join(clauses or _clauses(measures, list(zip(found, labels, strict=True))))


def baselines(ours: AnalysisRecord, found: Sequence[AnalysisRecord]) -> list[int]:
    """The places of the baselines to compare with: on the same data, and with the same seed if there are any.

    These are the one with the same settings, and the one with the nearest number of gradient evaluations.
    """
    plain = [i for i, other in enumerate(found) if other.run.method == "baseline" and _same_data(other.run, ours.run)]
    plain = [i for i in plain if found[i].run.seed == ours.run.seed] or plain

    def distance(number: int) -> float:
        return abs(math.log(found[number].run.gradient_evaluations / ours.run.gradient_evaluations))

    same_settings = [i for i in plain if found[i].run.settings == ours.run.settings]
    same_cost = sorted(plain, key=distance)
    return list(dict.fromkeys(same_settings[:1] + same_cost[:1]))


def norm_name(norm: float) -> str:
    return "L-inf" if math.isinf(norm) else f"L{norm:g}"


def counted(found: Sequence[AnalysisRecord]) -> str:
    """How many examples the loss was taken on: fewer than asked for if a split has no more."""
    counts = [each.examples or each.options["rows"] for each in found]
    least, most = min(counts), max(counts)
    return f"{most} examples" if least == most else f"{least} to {most} examples"


def panels(
    found: Sequence[AnalysisRecord],
    labels: Sequence[str],
    plotted: Callable[[AnalysisRecord], Plotted],
    *,
    title: str,
    x: str,
    y: str | Callable[[AnalysisRecord], str],
    log: str | Callable[[AnalysisRecord], str] = "",
) -> Figure:
    """A panel for each task and size, a line for each run: grey for the baselines, orange for GA-SAM.

    Args:
        found: The records.
        labels: Their names.
        plotted: Gives the line of a record.
        title: What all panels show.
        x: What the x axis shows.
        y: What the y axis shows, or what says it of a panel's first record.
        log: Axes with a logarithmic scale, "", "x", "y" or "xy", or what says it of a panel's first record.
    """
    from gasam.analysis.pictures import draw_lines, sheet

    kinds = list(dict.fromkeys((each.run.task, each.run.size) for each in found))
    figure, axes = sheet(len(kinds))
    for (task, size), panel in zip(kinds, axes, strict=True):
        here = [i for i, each in enumerate(found) if (each.run.task, each.run.size) == (task, size)]
        records = [found[i] for i in here]
        draw_lines(
            panel,
            _lines(records, [_without_kind(labels[i], found[i].run) for i in here], plotted),
            title=f"{task}, size {size}: {title}",
            x=x,
            y=y(records[0]) if callable(y) else y,
            log=log(records[0]) if callable(log) else log,
        )
    return figure


def _lines(
    found: Sequence[AnalysisRecord], labels: Sequence[str], plotted: Callable[[AnalysisRecord], Plotted]
) -> list[pictures.Line]:
    """Runs of one method have one colour, and differ in their dashes."""
    from gasam.analysis import pictures

    colours = {"baseline": pictures.BASELINE, "ga-sam": pictures.GA_SAM}
    methods = [each.run.method for each in found]
    lines = []
    for number, (each, label, method) in enumerate(zip(found, labels, methods, strict=True)):
        points = plotted(each)
        dashes = pictures.DASHES[methods[:number].count(method) % len(pictures.DASHES)]
        lines.append(pictures.Line(label, points.x, points.y, colours.get(method), dashes, points.marked))
    return lines


def _without_kind(label: str, run: RunSummary) -> str:
    """The title of a panel names task and size already."""
    for kind in (f"{run.task}, size {run.size}", run.task, f"size {run.size}"):
        label = label.removeprefix(f"{kind}: ")
    return label


def _same_data(one: RunSummary, other: RunSummary) -> bool:
    return (one.task, one.size, one.data.hash) == (other.task, other.size, other.data.hash)


def _clauses(measures: Measures, named: Sequence[tuple[AnalysisRecord, str]]) -> list[str]:
    """For each measure its name, and its number for each of the runs."""
    numbers: dict[str, list[str]] = {}
    for each, label in named:
        for measure in measures(each):
            numbers.setdefault(measure.name, []).append(f"{measure.text} for {label}")
    return [f"{name} is {', '.join(texts)}" for name, texts in numbers.items()]
