"""Plots of planes, which may share their colours; needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator

from gasam.analysis.pictures import finish, plain_number, round_numbers


class PlaneScale(NamedTuple):
    """The colours that several planes share: the heights that are drawn, and whether their scale is logarithmic."""

    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, planes: Sequence[Any]) -> PlaneScale | None:
        """The scale of all finite heights; logarithmic if they span more than a factor of 20. None if all are equal."""
        every = np.concatenate([np.asarray(plane, dtype=float).ravel() for plane in planes])
        finite = every[np.isfinite(every)]
        if len(np.unique(finite)) < 2:
            return None
        low, high = float(finite.min()), float(finite.max())
        return cls(low, high, low > 0 and high / low > 20)

    def levels(self, count: int) -> Any:
        return (np.geomspace if self.logarithmic else np.linspace)(self.low, self.high, count)

    def ticks(self) -> list[float]:
        """About six round numbers."""
        if not self.logarithmic:
            return [
                float(tick) for tick in MaxNLocator(6).tick_values(self.low, self.high) if self.low <= tick <= self.high
            ]
        return round_numbers(self.low, self.high)


def draw_plane(
    axes: Axes, x: Sequence[float], y: Sequence[float], heights: Any, *, title: str, scale: PlaneScale | None = None
) -> Any:
    """Plot contours of `heights[i][j]` at (x[j], y[i]); the model is the cross at the origin.

    Heights that are not finite are left blank. If all heights are equal, there are no contours.

    Args:
        axes: Where to draw.
        x: The positions of the columns.
        y: The positions of the rows.
        heights: The heights.
        title: The title of the plot.
        scale: The colours that several planes share; `colour_bar` then explains them once. By default the plane has
            its own colours and its own bar.
    """
    heights = np.asarray(heights, dtype=float)
    finite = np.where(np.isfinite(heights), heights, math.nan)
    shown = scale or PlaneScale.of([heights])
    drawn = None
    if shown is not None and len(np.unique(heights[np.isfinite(heights)])) > 1:
        norm = (LogNorm if shown.logarithmic else Normalize)(shown.low, shown.high)
        drawn = axes.contourf(x, y, finite, levels=shown.levels(25), cmap="viridis", norm=norm)
        axes.contour(x, y, finite, levels=shown.levels(13), colors="white", linewidths=0.4, alpha=0.6)
        if scale is None:
            colour_bar([axes], drawn, shown)
    axes.plot(0, 0, "+", color="white", ms=10)
    finish(axes, title, "first direction", "second direction")
    return drawn


def colour_bar(axes: Sequence[Axes], drawn: Any, scale: PlaneScale) -> None:
    """Explain the colours of planes beside them, with round numbers."""
    figure: Any = axes[0].figure
    bar = figure.colorbar(drawn, ax=list(axes), label="loss, logarithmic" if scale.logarithmic else "loss")
    bar.set_ticks(scale.ticks(), labels=[plain_number(tick) for tick in scale.ticks()])
    bar.minorticks_off()
