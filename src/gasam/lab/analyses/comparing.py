"""Comparison of analysed runs: their baselines, a sentence that compares them, and their lines in a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from gasam.lab.records import AnalysisRecord, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    """

    title: str
    x_name: str
    y_name: str
    x: Sequence[float]
    y: Sequence[float | None]
    log: str = ""
    marked: float | None = None


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
) -> Figure:
    """A picture with a panel for each task and size, and a line for each run.

    Baselines are grey and GA-SAM is orange. Runs of the same method have different dashes.
    """
    from gasam.analysis.pictures import BASELINE, DASHES, GA_SAM, PlotLine, draw_lines, sheet

    by_kind: dict[tuple[str, str], list[tuple[AnalysisRecord, str]]] = {}
    for each, label in zip(found, labels, strict=True):
        by_kind.setdefault((each.run.task, each.run.size), []).append((each, label))
    figure, axes = sheet(len(by_kind))
    for panel, ((task, size), here) in zip(axes, by_kind.items(), strict=True):
        lines: list[PlotLine] = []
        dashes = {each.run.method: cycle(DASHES) for each, _ in here}
        for each, label in here:
            line, method = plotted(each), each.run.method
            colour = {"baseline": BASELINE, "ga-sam": GA_SAM}.get(method)
            name = _without_kind(label, each.run)
            lines.append(PlotLine(name, line.x, line.y, colour, next(dashes[method]), line.marked))
        first = plotted(here[0][0])
        title = f"{task}, size {size}: {first.title}"
        draw_lines(panel, lines, title=title, x=first.x_name, y=first.y_name, log=first.log)
    return figure


def _without_kind(label: str, run: RunSummary) -> str:
    """The label without task and size, which the title of the panel has already."""
    for kind in (f"{run.task}, size {run.size}", run.task, f"size {run.size}"):
        label = label.removeprefix(f"{kind}: ")
    return label


def _same_data(one: RunSummary, other: RunSummary) -> bool:
    return (one.task, one.size, one.data.hash) == (other.task, other.size, other.data.hash)


def _clauses(measures: Measures, named: Sequence[tuple[AnalysisRecord, str]]) -> list[str]:
    """A clause for each measure, with its number for each run."""
    numbers: dict[str, list[str]] = {}
    for each, label in named:
        for measure in measures(each):
            numbers.setdefault(measure.name, []).append(f"{measure.text} for {label}")
    return [f"{name} is {', '.join(texts)}" for name, texts in numbers.items()]
