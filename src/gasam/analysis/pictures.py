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
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter
except ImportError:
    raise ImportError("pictures need matplotlib: run `pip install 'gasam[analysis]'`") from None

OKABE_ITO = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C6D00", "#5D3A9B")
"""Colours that colour-blind readers can distinguish, other than those of the baseline and of GA-SAM."""
BASELINE, GA_SAM = "#4D4D4D", "#D55E00"
DASHES = ("-", "--", "-.", ":")
POINTS = "points"
"""A value of `dashes`: points without a line."""


class PlotLine(NamedTuple):
    """A line of a plot. A y of None leaves a gap. `marked` is a position on the x axis to mark."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str | None = None
    dashes: str = "-"
    marked: float | None = None


def sheet(panels: int, *, width: float = 5.4, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """An empty figure with this number of panels, at most three per row."""
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.set_visible(False)
    return figure, axes[:panels]


def draw_lines(axes: Axes, lines: Sequence[PlotLine], *, title: str, x: str, y: str, log: str = "") -> None:
    """Plot lines. `log` names the logarithmic axes: "", "x", "y" or "xy". An axis without values > 0 stays linear."""
    colours = cycle(OKABE_ITO)
    for line in lines:
        colour = line.colour or next(colours)
        heights = [math.nan if value is None else value for value in line.y]
        marker = "o" if len(line.x) < 40 or line.dashes == POINTS else None
        dashes = "none" if line.dashes == POINTS else line.dashes
        axes.plot(line.x, heights, ls=dashes, color=colour, marker=marker, ms=3.5, lw=1.8, label=line.label)
        if line.marked is not None:
            axes.axvline(line.marked, color=colour, lw=0.9, ls=":")
    for name, scale, axis in (("x", axes.set_xscale, axes.xaxis), ("y", axes.set_yscale, axes.yaxis)):
        numbers = chain.from_iterable(getattr(line, name) for line in lines)
        if name in log and any(number is not None and 0 < number < math.inf for number in numbers):
            scale("log")
            axis.set_major_formatter(LogFormatter())
            axis.set_minor_formatter(LogFormatter())
    finish(axes, title, x, y)
    axes.legend(fontsize="small", frameon=False)


def draw_plane(axes: Axes, x: Sequence[float], y: Sequence[float], heights: Any, *, title: str) -> None:
    """Plot contours of `heights[i][j]` at (x[j], y[i]); the model is the cross at the origin.

    Heights that are not finite are left blank. If all heights are equal, there are no contours.
    """
    heights = np.asarray(heights, dtype=float)
    finite = np.where(np.isfinite(heights), heights, math.nan)
    if len(np.unique(heights[np.isfinite(heights)])) > 1:
        drawn = axes.contourf(x, y, finite, levels=24, cmap="viridis")
        axes.contour(x, y, finite, levels=12, colors="white", linewidths=0.4, alpha=0.6)
        axes.figure.colorbar(drawn, ax=axes, label="loss")
    axes.plot(0, 0, "+", color="white", ms=10)
    finish(axes, title, "first direction", "second direction")


def finish(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, place: Path, kinds: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write the figure as PNG and SVG. The same figure always gives the same bytes."""
    place.parent.mkdir(parents=True, exist_ok=True)
    files = [place.with_name(f"{place.name}.{kind}") for kind in kinds]
    with rc_context({"svg.hashsalt": "gasam"}):
        for file in files:
            figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
