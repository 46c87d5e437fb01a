"""The picture of a comparison: validation against what was spent, the test results of all seeds, and their cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from gasam.analysis.pictures import (
    BASELINE,
    DASHES,
    GA_SAM,
    OKABE_ITO,
    SECOND_BASELINE,
    finish,
    in_sheets,
    make_logarithmic,
    numbered,
)
from gasam.lab.errors import InputError
from gasam.lab.record import Record
from gasam.lab.report.comparison import described
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.report.labels import label
from gasam.lab.storage import replaced


class Style(NamedTuple):
    colour: str
    dashes: str
    emphasised: bool


def comparison_figures(records: Sequence[Record], file: Path, times: Mapping[str, float] | None = None) -> list[Path]:
    """PNGs with three panels for each task and size: curves, test scores, and the score against the cost of a step.

    A figure has at most two tasks: the others are in further files, NAME-2.png and so on.
    """
    kinds = list(dict.fromkeys((record.task, record.size) for record in records))
    files = []
    for number, some in enumerate(in_sheets(len(kinds), each=3), start=1):
        figure = draw([record for record in records if (record.task, record.size) in kinds[some]], times or {})
        files.append(numbered(file.with_suffix(""), number).with_suffix(".png"))
        with replaced(files[-1]) as partial:
            figure.savefig(partial, format="png", dpi=150)
    return files


def svg(figure: Figure) -> str:
    """The same text for the same figure."""
    stream = BytesIO()
    with rc_context({"svg.hashsalt": "gasam"}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue().decode()


def draw(records: Sequence[Record], times: Mapping[str, float] | None = None) -> Figure:
    kinds = list(dict.fromkeys((record.task, record.size) for record in records))
    if not kinds:
        raise InputError("there is nothing to draw: give at least one record")
    every = [groups_of(records, *kind) for kind in kinds]
    heights = [max(3.2, 0.42 * len(groups) + 1.4) for groups in every]
    figure = Figure(figsize=(15, sum(heights)), layout="constrained")
    panels = figure.subplots(len(kinds), 3, squeeze=False, height_ratios=heights)
    for groups, (left, middle, right) in zip(every, panels, strict=True):
        drawn = styles(groups)
        _curves(left, groups, drawn)
        _scores(middle, groups, drawn)
        _costs(right, groups, drawn, times or {})
    return figure


def _curves(axes: Axes, groups: Sequence[Group], styles: Sequence[Style]) -> None:
    """The mean over seeds, from the least to the greatest of them shaded."""
    followed = groups[0].followed
    heights: list[float] = []
    for group, style in zip(groups, styles, strict=True):
        curves = concat(
            [DataFrame(record.curve, columns=["epoch", "gradient_evaluations", "valid"]) for record in group.records]
        )
        epochs = curves.dropna(subset="valid").astype(float).groupby("epoch")
        spent, valid = epochs["gradient_evaluations"].mean(), epochs["valid"]
        width, above = (2.6, 3) if style.emphasised else (1.4, 2)
        axes.plot(spent, valid.mean(), style.dashes, color=style.colour, lw=width, zorder=above, label=_short(group))
        axes.fill_between(spent, valid.min(), valid.max(), color=style.colour, alpha=0.15, lw=0, zorder=1)
        heights += map(float, valid.mean())
    if heights and not followed.higher_is_better:  # matplotlib has no logarithm of nothing
        make_logarithmic(axes.yaxis, heights)
    title = f"{groups[0].task}, size {groups[0].size}: validation"
    finish(axes, title, "gradient evaluations", described(followed))
    axes.legend(fontsize="small", frameon=False, handlelength=3)


def _scores(axes: Axes, groups: Sequence[Group], styles: Sequence[Style]) -> None:
    """The mean with its standard deviation, and a dot for every seed; a group that gave no number says so."""
    low, high = _range(groups)
    for place, (group, style) in enumerate(zip(groups, styles, strict=True)):
        found, scores = group.summary, list(group.scores.values())
        if found is None:
            axes.text(low, place, " diverged", va="center")
            continue
        if len(scores) > 1:
            width = 2.4 if style.emphasised else 1.6
            axes.errorbar(
                found.mean, place, xerr=found.std, fmt="|", ms=18, mew=2.4, lw=width, color=style.colour, capsize=4
            )
        axes.plot(scores, [place] * len(scores), "o", ms=5, mfc="white", mec=style.colour, mew=1.4, zorder=4)
    several = any(len(group.scores) > 1 for group in groups)
    finish(axes, "test: mean, deviation, seeds" if several else "test: one seed", described(groups[0].metric), "")
    axes.grid(visible=False, axis="y")
    axes.set_xlim(low, high)
    axes.set_ylim(max(len(groups), 3) - 0.5, -0.5)
    axes.set_yticks(range(len(groups)), [_short(group) for group in groups])
    for tick, style in zip(axes.get_yticklabels(), styles, strict=True):
        tick.set_fontweight("bold" if style.emphasised else "normal")


def _costs(axes: Axes, groups: Sequence[Group], styles: Sequence[Style], times: Mapping[str, float]) -> None:
    """The mean score against the measured time of a step, or against its passes where no time was measured."""
    timed = all(group.configuration in times for group in groups)
    drawn: list[tuple[float, float, str, str]] = []
    for group, style in zip(groups, styles, strict=True):
        found, cost = group.summary, times[group.configuration] if timed else group.passes
        if found is not None and cost is not None:
            axes.errorbar(cost, found.mean, yerr=found.std, fmt="o", color=style.colour, capsize=3, ms=6)
            drawn.append((cost, found.mean, _short(group), style.colour))
    title = "time of a step, times the baseline's" if timed else "gradient evaluations a step"
    finish(axes, "score against cost", title, described(groups[0].metric))
    axes.margins(x=0.25, y=0.15)
    _name_points(axes, drawn)


def _name_points(axes: Axes, drawn: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names beside points, towards the middle, where they are not cut off; close ones are moved apart."""
    if not drawn:
        return
    middle = (min(x for x, *_ in drawn) + max(x for x, *_ in drawn)) / 2
    low, high = axes.get_ylim()
    for on_left in (True, False):
        some = sorted((point for point in drawn if (point[0] <= middle) == on_left), key=lambda point: point[1])
        sizes = [0.06 * (high - low) * (1 + name.count("\n")) for _, _, name, _ in some]
        heights = spread([mean for _, mean, *_ in some], sizes)
        for (cost, mean, name, colour), height in zip(some, heights, strict=True):
            axes.annotate(
                name,
                (cost, mean),
                xytext=(9 if on_left else -9, height),
                textcoords=("offset points", "data"),
                ha="left" if on_left else "right",
                va="center",
                color=colour,
                fontsize="small",
            )


def spread(values: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Rising values, moved as little as needed so that things of these sizes, centred at them, do not overlap."""
    blocks: list[list[tuple[float, float]]] = []
    for item in zip(values, sizes, strict=True):
        blocks.append([item])
        while len(blocks) > 1 and _edges(blocks[-2])[1] > _edges(blocks[-1])[0]:
            last = blocks.pop()
            blocks[-1] += last
    places = list[float]()
    for block in blocks:
        edge, _ = _edges(block)
        for _, size in block:
            places.append(edge + size / 2)
            edge += size
    return places


def _edges(block: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The ends of a row of things around the mean of their values."""
    middle, size = sum(value for value, _ in block) / len(block), sum(size for _, size in block)
    return middle - size / 2, middle + size / 2


def _short(group: Group) -> str:
    """The label in lines that leave room for the panels."""
    return fill(label(group), 24, break_long_words=False)


def _range(groups: Sequence[Group]) -> tuple[float, float]:
    """Of all that is drawn, with some room."""
    seen = [score for group in groups for score in group.scores.values()]
    for found in (group.summary for group in groups if group.summary):
        seen += [found.mean - (found.std or 0), found.mean + (found.std or 0)]
    low, high = min(seen, default=0.5), max(seen, default=0.5)
    room = max(0.2 * (high - low), 0.005 * abs(high), 0.1)
    return low - room, high + room


def styles(groups: Sequence[Group]) -> list[Style]:
    """Baseline and GA-SAM have a colour of their own; configurations of one method differ in their dashes."""
    colours = {"baseline": BASELINE, "ga-sam": GA_SAM}
    others = dict.fromkeys(group.method for group in groups if group.method not in colours)
    colours |= dict(zip(others, cycle(OKABE_ITO), strict=False))
    styles = []
    for number, group in enumerate(groups):
        before = sum(other.method == group.method for other in groups[:number])
        colour = SECOND_BASELINE if before and group.method == "baseline" else colours[group.method]
        styles.append(Style(colour, DASHES[before % len(DASHES)], group.method == "ga-sam"))
    return styles
