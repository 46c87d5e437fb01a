"""The loss around the weights of a run: on a plane, or along the line to another run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gasam.analysis.landscape import line, plane
from gasam.analysis.objective import check_whole
from gasam.lab.analyses.analysis import Analysis, Cells, Found, Labels, Progress, example_count, option
from gasam.lab.errors import InputError
from gasam.lab.output import Chart
from gasam.lab.output import plane as heat_map
from gasam.lab.record import AnalysisRecord
from gasam.lab.training.finished import FinishedRun, find


class Landscape(Analysis):
    """Measure the loss around the weights: on a filter-normalised plane, or along the line to another run.

    Examples: `gasam landscape runs/A.json runs/B.json`, `gasam landscape runs/A.json --to runs/B.json`
    """

    kind = command = "landscape"
    title = "Loss around the weights"

    to: Path | None = option(None, "Measure along the line to this run instead of on a plane.", strict=False)
    radius: float = option(1.0, "Half the width of the plane, in units of each filter's norm.")
    points: int = option(15, "Number of points in each direction of the plane (odd), or along the line.")

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        if self.to is not None:
            return self._along_line(run, self.to, progress)
        subject, counting = run.on(self.split, self.rows), progress.counting("point")
        return vars(plane(*subject, radius=self.radius, points=self.points, seed=self.seed, watch=counting))

    def _along_line(self, run: FinishedRun, other: Path, progress: Progress) -> Found:
        """The losses of this split and of the test split, from alpha -0.5 to 1.5. Both runs are among the points."""
        try:
            weights = find(other).weights_for(run.model)
        except InputError as error:
            raise InputError(f"--to must name another run of the same model: {error}") from None
        check_whole("points", self.points, 2)
        spaced = (round(-0.5 + 2 * number / (self.points - 1), 9) for number in range(self.points))
        alphas = sorted({0.0, 1.0, *spaced})
        losses = {}
        for split in dict.fromkeys((self.split, "test")):
            counting = progress.counting(f"{split}, point")
            losses[split] = line(*run.on(split, self.rows), alphas, other=weights, watch=counting).losses
        return {"alphas": alphas, "losses": losses}

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        if self.to is not None:
            along = record.found["losses"].items()
            return [
                {"alpha": f"{alpha:.3g}"} | {f"{split} loss": f"{float(losses[number]):.4g}" for split, losses in along}
                for number, alpha in enumerate(record.found["alphas"])
            ]
        grid = _heights(record)
        rim = [*grid[0], *grid[-1], *(row[0] for row in grid), *(row[-1] for row in grid)]
        if any(map(math.isnan, rim)):
            rim = [math.nan]
        heights = {"loss at the weights": _middle(grid), "highest on the rim": max(rim), "lowest on the rim": min(rim)}
        return [{name: f"{height:.4g}" for name, height in heights.items()}]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        where = f"{example_count(found)} of the {self.split} split"
        if self.to is not None:
            return f"alpha = 0 is the run, alpha = 1 is {self.to.stem}; {where}."
        return f"The loss on {where}, to {self.radius:g} filter lengths away."

    def charts(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Chart]:
        """A plane for each run, all with the same colours, or a chart with the lines of all runs of a task."""
        if self.to is not None:
            return super().charts(found, labels)
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

    def curve(self, record: AnalysisRecord) -> list[tuple[float, float]]:
        return list(zip(record.found["alphas"], map(float, record.found["losses"][self.split]), strict=True))

    def style(self, record: AnalysisRecord) -> dict[str, Any]:
        return {"title": f"{self.split} loss along a line", "x": "alpha", "y": "loss"}

    def measures(self, record: AnalysisRecord) -> dict[str, str]:
        if self.to is None:
            grid = _heights(record)
            mean = sum(map(sum, grid)) / len(grid) ** 2
            return {"the loss at the weights": f"{_middle(grid):.3g}", "its mean on the plane": f"{mean:.3g}"}
        points = zip(record.found["losses"][self.split], record.found["alphas"], strict=True)
        between = [float(loss) for loss, alpha in points if 0 <= alpha <= 1]
        barrier = max(between) - max(between[0], between[-1])
        told = f"{max(between):.3g} ({barrier:.3g} above the higher end)"
        return {f"the highest {self.split} loss on the line to {self.to.stem}": told}


def _heights(record: AnalysisRecord) -> list[list[float]]:
    return [[float(value) for value in row] for row in record.found["losses"]]


def _middle(grid: list[list[float]]) -> float:
    return grid[len(grid) // 2][len(grid) // 2]
