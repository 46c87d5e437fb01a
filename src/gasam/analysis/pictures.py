"""Plots of lines, points and planes in one style; needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
except ImportError:
    raise ImportError("pictures need matplotlib: run `pip install 'gasam[analysis]'`") from None

OKABE_ITO = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D00", "#5D3A9B", "#882255", "#000000")
"""Colours that colour-blind readers can distinguish, other than those of the baseline and of GA-SAM."""
BASELINE, GA_SAM = "#4D4D4D", "#D55E00"
SECOND_BASELINE = "#A0A0A0"
PANELS = 6
"""The largest number of panels in a figure: with more of them the labels are too small to read."""
DASHES = ("-", "--", "-.", ":")
POINTS = "points"
"""A value of `dashes`: points without a line."""


class PlotLine(NamedTuple):
    """A line of a plot. A y of None leaves a gap. `marked` is a position on the x axis to mark.

    `errors` are the half lengths of error bars; lines with many points have a band instead.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str | None = None
    dashes: str = "-"
    marked: float | None = None
    errors: Sequence[float] | None = None


def sheet(panels: int, *, width: float = 4.7, height: float = 3.7) -> tuple[Figure, list[Axes]]:
    """An empty figure with this number of panels, at most two per row: three would be too small on a page."""
    columns = min(panels, 2)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns + (0.8 if columns == 1 else 0), height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.set_visible(False)
    return figure, axes[:panels]


def draw_lines(axes: Axes, lines: Sequence[PlotLine], *, title: str, x: str, y: str, log: str = "") -> None:
    """Plot lines. `log` names the logarithmic axes: "", "x", "y" or "xy". An axis without values > 0 stays linear.

    A logarithmic x axis may have points at 0: it is linear from there to the smallest other value.
    """
    colours = cycle(OKABE_ITO)
    for line in lines:
        colour = line.colour or next(colours)
        heights = [math.nan if value is None else value for value in line.y]
        marker = "o" if len(line.x) < MANY or line.dashes == POINTS else None
        dashes = "none" if line.dashes == POINTS else line.dashes
        axes.plot(line.x, heights, ls=dashes, color=colour, marker=marker, ms=3.5, lw=1.8, label=line.label)
        if line.errors is not None:
            _draw_errors(axes, line.x, np.asarray(heights, dtype=float), np.asarray(line.errors, dtype=float), colour)
        if line.marked is not None:
            axes.axvline(line.marked, color=colour, lw=0.9, ls=":")
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        numbers = chain.from_iterable(getattr(line, name) for line in lines)
        finite = [number for number in numbers if number is not None and math.isfinite(number)]
        if name in log and any(number > 0 for number in finite):
            make_logarithmic(axis, finite)
    finish(axes, title, x, y)
    axes.legend(fontsize="small", framealpha=0.85, edgecolor="none", handlelength=3)


MANY = 40
"""A line with this many points has no markers, and a band instead of error bars."""


def _draw_errors(axes: Axes, x: Sequence[float], y: Any, errors: Any, colour: str) -> None:
    if len(x) < MANY:
        axes.errorbar(x, y, yerr=errors, color=colour, fmt="none", capsize=2.5, lw=1)
    else:
        axes.fill_between(x, y - errors, y + errors, color=colour, alpha=0.18, lw=0)


def draw_dots(axes: Axes, lines: Sequence[PlotLine], *, title: str, x: str) -> None:
    """Plot lines that have one point each as dots below each other, with the names of the lines on the y axis."""
    colours = cycle(OKABE_ITO)
    for place, line in enumerate(lines):
        colour, value = line.colour or next(colours), math.nan if line.y[0] is None else line.y[0]
        error = None if line.errors is None else line.errors[0]
        axes.errorbar(value, place, xerr=error, fmt="o", color=colour, capsize=4, ms=7, lw=1.4, label=line.label)
    finish(axes, title.replace(": ", ":\n"), x, "")  # the names of the lines leave little room for the title
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.margins(x=0.15)
    axes.grid(visible=False, axis="y")


def level_line(axes: Axes, height: float, label: str) -> None:
    """Mark a height by a dotted line across the plot, with its label above the left end."""
    axes.axhline(height, color="black", lw=1.0, ls=":")
    axes.annotate(
        label,
        (0.02, height),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        xytext=(0, 3),
        fontsize="small",
    )


def make_logarithmic(axis: Axis, numbers: Sequence[float]) -> None:
    """Set a logarithmic scale whose labels are plain numbers that do not touch each other."""
    positive = [number for number in numbers if number > 0]
    low, high = min(positive), max(positive)
    decades = math.log10(high / low)
    if 0 < decades < NARROW and min(numbers) > 0:
        return  # a logarithm would change nothing but the labels
    axes: Any = axis.axes
    set_scale = axes.set_xscale if axis is axes.xaxis else axes.set_yscale
    begins_at_zero = min(numbers) < low
    if begins_at_zero:
        set_scale("symlog", linthresh=low, linscale=0.5)
        (axes.set_xlim if axis is axes.xaxis else axes.set_ylim)(min(*numbers, -0.1 * low), 1.1 * high)
    else:
        set_scale("log")
    if decades < 2 or begins_at_zero:
        axis.set_major_locator(FixedLocator([0.0] * begins_at_zero + round_numbers(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))


NARROW = 0.2
"""Values that span fewer powers of ten than this get a linear axis."""


def round_numbers(low: float, high: float) -> list[float]:
    """From two to eight numbers of a logarithmic axis, as round as possible, from `low` to `high`."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8), tuple(step / 10 for step in range(10, 100))):
        every = [step * 10.0**exponent for exponent in exponents for step in steps]
        found = [number for number in every if low * 0.999 <= number <= high * 1.001]
        if len(found) >= 3:
            break
    return found[:: -(-len(found) // 8)] if found else [low]


def plain_number(value: float) -> str:
    """A short label of a number, such as 0.002, 1e-05 or 1e+12."""
    return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}" if abs(value) < 1e4 else f"{value:.0e}"


def finish(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def in_sheets(count: int, each: int = 1) -> list[slice]:
    """Slices of `count` items so that no figure has more than `PANELS` panels, where an item has `each` panels."""
    step = max(1, PANELS // each)
    return [slice(first, first + step) for first in range(0, max(count, 1), step)]


def save_all(figures: Sequence[Figure], place: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write several figures: the first at `place`, the others with the end -2, -3 and so on."""
    files = []
    for number, figure in enumerate(figures, start=1):
        files += save(figure, numbered(place, number), kinds)
    return files


def numbered(place: Path, number: int) -> Path:
    return place if number == 1 else place.with_name(f"{place.name}-{number}")


def save(figure: Figure, place: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the figure as PNG and SVG. The same figure always gives the same bytes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    files = [place.with_name(f"{place.name}.{kind}") for kind in kinds]
    with rc_context({"svg.hashsalt": "gasam"}):
        for file in files:
            figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
