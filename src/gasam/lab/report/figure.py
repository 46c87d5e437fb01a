"""The picture of a comparison: validation against what was spent, the test results of all seeds, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from gasam.analysis.pictures import BASELINE, DASHES, GA_SAM, OKABE_ITO
from gasam.lab.errors import InputError
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.comparison import described
from gasam.lab.report.groups import Group, grouped, labels
from gasam.lab.report.statistics import summary
from gasam.lab.storage import replaced
from gasam.lab.tasks import find


class Style(NamedTuple):
    colour: str
    line: str
    width: float
    above: int


def comparison_figure(records: Sequence[RunRecord], file: Path, times: Mapping[str, float] | None = None) -> None:
    """A PNG with three panels for each task and size: curves, bars, and the score against the cost of a step."""
    figure = draw(records, times or {})
    with replaced(file) as partial:
        figure.savefig(partial, format="png", dpi=150)


def draw(records: Sequence[RunRecord], times: Mapping[str, float] | None = None) -> Figure:
    kinds = list(dict.fromkeys((record.task, record.size) for record in records))
    if not kinds:
        raise InputError("there is nothing to draw: give at least one record")
    groups = [grouped(r for r in records if (r.task, r.size) == kind) for kind in kinds]
    heights = [max(3.2, 0.42 * len(some) + 1.4) for some in groups]
    figure = Figure(figsize=(15, sum(heights)), layout="constrained")
    panels = figure.subplots(len(kinds), 3, squeeze=False, height_ratios=heights)
    for some, (left, middle, right) in zip(groups, panels, strict=True):
        styles = _styles(some)
        _curves(left, some, styles)
        _bars(middle, some, styles)
        _costs(right, some, styles, times or {})
    return figure


def _costs(axes: Axes, groups: Sequence[Group], styles: Sequence[Style], times: Mapping[str, float]) -> None:
    """The mean score against the measured time of a step, or against its passes where no time was measured."""
    measured = all(group.key in times for group in groups)
    for group, name, style in zip(groups, labels(groups), styles, strict=True):
        found, passes = summary(group.scores.values()), cells.passes(group)
        cost = times[group.key] if measured else passes
        if found is None or cost is None:
            continue
        axes.errorbar(cost, found.mean, yerr=found.std, fmt="o", color=style.colour, capsize=3, ms=6)
        axes.annotate(name, (cost, found.mean), textcoords="offset points", xytext=(7, 4), fontsize="small")
    axes.set_title("score against cost", loc="left")
    axes.set_xlabel("time of a step over the baseline's" if measured else "passes a step")
    axes.set_ylabel(described(find(groups[0].task).family.metric))
    axes.margins(x=0.25, y=0.15)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _curves(axes: Axes, groups: Sequence[Group], styles: Sequence[Style]) -> None:
    """The mean over seeds, from the least to the greatest of them shaded."""
    for group, name, style in zip(groups, labels(groups), styles, strict=True):
        points = _points(group)
        spent, values = [x for x, _ in points], [found for _, found in points]
        mean = [sum(found) / len(found) for found in values]
        axes.plot(spent, mean, style.line, color=style.colour, lw=style.width, zorder=style.above, label=name)
        low, high = [min(found) for found in values], [max(found) for found in values]
        axes.fill_between(spent, low, high, color=style.colour, alpha=0.15, lw=0, zorder=1)
    followed = find(groups[0].task).family.followed
    if not followed.higher_is_better and any(map(_points, groups)):  # matplotlib has no logarithm of nothing
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_title(f"{groups[0].task}, size {groups[0].size}: validation", loc="left")
    axes.set_xlabel("gradient evaluations")
    axes.set_ylabel(described(followed))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False)


def _points(group: Group) -> list[tuple[float, list[float]]]:
    """For each epoch what was spent until then, on average, and the values of the seeds that have one."""
    epochs: dict[int, list[tuple[float, float]]] = {}
    for run in group.runs:
        for row in run.curve:
            if row["valid"] is not None:
                epochs.setdefault(row["epoch"], []).append((row["gradient_evaluations"], row["valid"]))
    return [
        (sum(spent for spent, _ in found) / len(found), [value for _, value in found])
        for _, found in sorted(epochs.items())
    ]


def _bars(axes: Axes, groups: Sequence[Group], styles: Sequence[Style]) -> None:
    """The mean with its standard deviation, and a dot for every seed; a group that gave no number says so."""
    low, high = _range(groups)
    for place, (group, style) in enumerate(zip(groups, styles, strict=True)):
        found = summary(group.scores.values())
        if found is None:
            axes.text(low, place, " diverged", va="center")
            continue
        axes.barh(place, found.mean, height=0.62, color=style.colour, alpha=0.85 if _emphasised(group) else 0.45)
        axes.errorbar(found.mean, place, xerr=found.std, color="black", capsize=3, lw=1)
        scores = list(group.scores.values())
        axes.plot(scores, [place] * len(scores), "o", ms=4, mfc="white", mec="black", mew=0.8, zorder=4)
    axes.set_xlim(low, high)
    axes.set_ylim(max(len(groups), 3) - 0.5, -0.5)
    axes.set_yticks(range(len(groups)), labels(groups))
    for tick, group in zip(axes.get_yticklabels(), groups, strict=True):
        tick.set_fontweight("bold" if _emphasised(group) else "normal")
    axes.set_title("test: mean, standard deviation, single seeds", loc="left")
    axes.set_xlabel(f"{described(find(groups[0].task).family.metric)}; the axis does not start at 0")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _range(groups: Sequence[Group]) -> tuple[float, float]:
    """Of all that is drawn, with some room: bars from 0 would hide what is compared."""
    found = [some for some in (summary(group.scores.values()) for group in groups) if some is not None]
    if not found:
        return 0.0, 1.0
    seen = [score for group in groups for score in group.scores.values()]
    low = min(*seen, *(some.mean - (some.std or 0) for some in found))
    high = max(*seen, *(some.mean + (some.std or 0) for some in found))
    room = max(0.2 * (high - low), 0.005 * abs(high), 0.1)
    return low - room, high + room


def _styles(groups: Sequence[Group]) -> list[Style]:
    """Baseline and GA-SAM have a colour of their own; configurations of one method differ in their dashes."""
    others = dict(zip(dict.fromkeys(g.method for g in groups if _ordinary(g)), cycle(OKABE_ITO), strict=False))
    colours = {"baseline": BASELINE, "ga-sam": GA_SAM} | others
    before: dict[str, int] = {}
    styles = []
    for group in groups:
        number = before[group.method] = before.get(group.method, -1) + 1
        strong = _emphasised(group)
        line = DASHES[number % len(DASHES)]
        styles.append(Style(colours[group.method], line, 2.6 if strong else 1.4, 3 if strong else 2))
    return styles


def _ordinary(group: Group) -> bool:
    return group.method not in ("baseline", "ga-sam")


def _emphasised(group: Group) -> bool:
    return group.method == "ga-sam"
