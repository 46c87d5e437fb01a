"""Comparison of analysed runs: their baselines, a sentence that compares them, and their lines in a picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import chain, cycle, repeat
from typing import TYPE_CHECKING, NamedTuple

from gasam.lab.record import AnalysisRecord, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gasam.analysis.pictures import PlotLine


class Measure(NamedTuple):
    """A measure of flatness of one run.

    Args:
        name: The name of the measure.
        value: The number; None if the search did not reach it.
        text: The number as text, or the reason why there is none.
        more_is_flatter: Whether a larger number means a flatter minimum.
    """

    name: str
    value: float | None
    text: str
    more_is_flatter: bool


Measures = Callable[[AnalysisRecord], Sequence[Measure]]


class Plotted(NamedTuple):
    """The line of a run in a picture, and the titles of the picture.

    A y of None is a gap. `log` names the axes with a logarithmic scale. `marked` is a position on the x axis to mark.
    `level` is a height to mark, with its label.
    """

    title: str
    x_name: str
    y_name: str
    x: Sequence[float]
    y: Sequence[float | None]
    log: str = ""
    marked: float | None = None
    level: tuple[float, str] | None = None


def compared(measures: Measures, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
    """A sentence that compares the measures of each run with those of its baselines.

    If no run has a baseline to compare with, it lists the measures of all runs.
    """
    clauses = []
    for number, each in enumerate(found):
        rivals = [] if each.run.method == "baseline" else baselines(each, found)
        if rivals:
            told = _clauses(measures, [(found[i], labels[i]) for i in (number, *rivals)])
            clauses += [f"on {each.run.task} {clause}" for clause in told]
    return "; ".join(clauses or _clauses(measures, list(zip(found, labels, strict=True))))


def baselines(ours: AnalysisRecord, found: Sequence[AnalysisRecord]) -> list[int]:
    """The indices of the baselines to compare a run with.

    They are on the same data, and have the same seed if possible. One has the same settings, the other has the nearest
    number of gradient evaluations.
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


def example_count(found: Sequence[AnalysisRecord]) -> str:
    """The number of examples that were used, which is smaller than `rows` if a split has fewer."""
    counts = [each.examples or each.options["rows"] for each in found]
    least, most = min(counts), max(counts)
    return f"{most} examples" if least == most else f"{least} to {most} examples"


def panels(
    found: Sequence[AnalysisRecord], labels: Sequence[str], plotted: Callable[[AnalysisRecord], Plotted]
) -> list[Figure]:
    """Pictures with a panel for each task and size, and a line for each configuration.

    Baselines are grey, the second of them lighter and dashed, and GA-SAM is orange. Runs that differ only in their seed
    are one line: their mean, with their standard deviation as error bars.
    """
    from gasam.analysis.pictures import draw_dots, draw_lines, in_sheets, level_line, sheet

    by_kind: dict[tuple[str, str], list[tuple[AnalysisRecord, str]]] = {}
    for each, label in zip(found, labels, strict=True):
        by_kind.setdefault((each.run.task, each.run.size), []).append((each, label))
    figures = []
    for some in in_sheets(len(by_kind)):
        figure, axes = sheet(len(list(by_kind)[some]))
        for panel, ((task, size), here) in zip(axes, list(by_kind.items())[some], strict=True):
            first = plotted(here[0][0])
            lines = _lines(here, plotted)
            title = f"{task}, size {size}: {first.title}"
            if all(len(line.x) == 1 for line in lines):
                draw_dots(panel, lines, title=title, x=f"{first.y_name} at {first.x_name} {lines[0].x[0]:g}")
            else:
                draw_lines(panel, lines, title=title, x=first.x_name, y=first.y_name, log=first.log)
            if first.level is not None:
                level_line(panel, *first.level)
        figures.append(figure)
    return figures


def _lines(here: Sequence[tuple[AnalysisRecord, str]], plotted: Callable[[AnalysisRecord], Plotted]) -> list[PlotLine]:
    """A line for each configuration; a line for each run if the seeds have too few points in common."""
    from gasam.analysis.pictures import BASELINE, DASHES, GA_SAM, SECOND_BASELINE, PlotLine

    groups: dict[str, list[tuple[AnalysisRecord, str]]] = {}
    for each, label in here:
        groups.setdefault(each.run.key, []).append((each, label))
    dashes = {each.run.method: cycle(DASHES) for each, _ in here}
    greys = chain((BASELINE,), repeat(SECOND_BASELINE))
    lines: list[PlotLine] = []
    for group in groups.values():
        curves = [plotted(each) for each, _ in group]
        common = sorted(set.intersection(*({float(x) for x in curve.x} for curve in curves)))
        alike = [group] if len(common) >= min(2, len(curves[0].x)) else [[one] for one in group]
        for runs in alike:
            run, label = runs[0][0].run, _without_kind(runs[0][1], runs[0][0].run)
            colour = next(greys) if run.method == "baseline" else {"ga-sam": GA_SAM}.get(run.method)
            dashed = next(dashes[run.method])
            if len(runs) == 1:
                line = plotted(runs[0][0])
                lines.append(PlotLine(label, line.x, line.y, colour, dashed, line.marked))
            else:
                label = f"{label.removesuffix(f', seed {run.seed}')}, {len(runs)} seeds"
                lines.append(_mean_line(curves, common, label)._replace(colour=colour, dashes=dashed))
    return lines


def _mean_line(curves: Sequence[Plotted], common: Sequence[float], label: str) -> PlotLine:
    """The mean of several curves at their common positions, with their standard deviation."""
    from gasam.analysis.pictures import PlotLine

    at = [{float(x): y for x, y in zip(curve.x, curve.y, strict=True)} for curve in curves]
    columns = [[curve[x] for curve in at] for x in common]
    known = [[float(y) for y in column if y is not None] for column in columns]
    whole = [len(column) == len(curves) and all(map(math.isfinite, column)) for column in known]
    means = [statistics.fmean(column) if usable else None for column, usable in zip(known, whole, strict=True)]
    errors = [statistics.stdev(column) if usable else 0.0 for column, usable in zip(known, whole, strict=True)]
    marks = [curve.marked for curve in curves if curve.marked is not None]
    marked = statistics.fmean(marks) if len(marks) == len(curves) else None
    return PlotLine(label, common, means, marked=marked, errors=errors)


def _without_kind(label: str, run: Summary) -> str:
    """The label without task and size, which the title of the panel has already."""
    for kind in (f"{run.task}, size {run.size}", run.task, f"size {run.size}"):
        label = label.removeprefix(f"{kind}: ")
    return label


def _same_data(one: Summary, other: Summary) -> bool:
    return (one.task, one.size, one.data.hash) == (other.task, other.size, other.data.hash)


def _clauses(measures: Measures, named: Sequence[tuple[AnalysisRecord, str]]) -> list[str]:
    """A clause for each measure, with its number for each run."""
    numbers: dict[str, list[str]] = {}
    for each, label in named:
        for measure in measures(each):
            numbers.setdefault(measure.name, []).append(f"{measure.text} for {label}")
    return [f"{name} is {', '.join(texts)}" for name, texts in numbers.items()]
