"""The loss around the weights of a run, on a plane."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from gasam.analysis.landscape import plane
from gasam.lab.analyses.analysis import Analysis, Cells, Found, Labels, Progress, example_count
from gasam.lab.output import Chart
from gasam.lab.output import plane as heat_map
from gasam.lab.record import AnalysisRecord
from gasam.lab.training.finished import FinishedRun


class Landscape(Analysis):
    """Measure the loss around the weights, on a filter-normalised plane.

    Example: `gasam landscape runs/A.json runs/B.json`
    """

    kind = command = "landscape"
    title = "Loss around the weights"

    radius: float = Field(1.0, description="Half the width of the plane, in units of each filter's norm.")
    points: int = Field(15, description="Number of points in each direction (odd).")

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        subject, counting = run.on(self.split, self.rows), progress.counting("point")
        return vars(plane(*subject, radius=self.radius, points=self.points, seed=self.seed, watch=counting))

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        grid = _heights(record)
        rim = [*grid[0], *grid[-1], *(row[0] for row in grid), *(row[-1] for row in grid)]
        if any(map(math.isnan, rim)):
            rim = [math.nan]
        middle, mean = grid[len(grid) // 2][len(grid) // 2], sum(map(sum, grid)) / len(grid) ** 2
        heights = {"loss at the weights": middle, "mean": mean, "lowest on the rim": min(rim), "highest": max(rim)}
        return [{name: f"{height:.4g}" for name, height in heights.items()}]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return f"The loss on {example_count(found)} of the {self.split} split, to {self.radius:g} filter lengths away."

    def charts(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Chart]:
        """A plane for each run, all with the same colours."""
        heights = [loss for each in found for row in _heights(each) for loss in row if math.isfinite(loss)]
        ends = (min(heights), max(heights)) if heights else None
        steep = ends is not None and 0 < 20 * ends[0] < ends[1]
        charts = []
        for each in found:
            run, axis, grid = each.run, each.found["axis"], _heights(each)
            rows = [{"x": x, "y": y, "value": grid[i][j]} for i, x in enumerate(axis) for j, y in enumerate(axis)]
            title = f"{run.task}, {run.size}: {labels[run.key]}, seed {run.seed}"
            names = {"title": title, "x": "first direction", "y": "second direction", "value": "loss"}
            charts.append(heat_map(rows, **names, log=steep, domain=ends))
        return charts


def _heights(record: AnalysisRecord) -> list[list[float]]:
    return [[float(value) for value in row] for row in record.found["losses"]]
