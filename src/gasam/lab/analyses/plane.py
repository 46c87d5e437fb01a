"""The loss on a plane through the weights of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.analysis.landscape import plane
from gasam.lab.analyses.comparing import example_count
from gasam.lab.analyses.definition import Analysis, Cells, Found, Labels, Measurement, option
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.record import AnalysisRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class LossPlane(Analysis):
    """Measure the loss around the weights: on a filter-normalised plane, or along the line to another run.

    Examples: `gasam landscape runs/A.json runs/B.json`, `gasam landscape runs/A.json --to runs/B.json`
    """

    radius: float = option(1.0, help="Half the width of the plane, in units of each filter's norm.")
    points: int = option(15, help="Number of points in each direction; odd for a plane.")

    kind = "plane"
    command = "landscape"
    title = "Loss over a plane"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        subject, counting = run.on(self.split, self.rows), measurement.counting("point")
        found = plane(*subject, radius=self.radius, points=self.points, seed=self.seed, watch=counting)
        return found.as_json()

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        grid = _heights(record)
        rim = [*grid[0], *grid[-1], *(row[0] for row in grid), *(row[-1] for row in grid)]
        if any(map(math.isnan, rim)):
            rim = [math.nan]
        return [
            {
                "run": label,
                "loss at the weights": f"{_middle(grid):.4g}",
                "highest on the rim": f"{max(rim):.4g}",
                "lowest on the rim": f"{min(rim):.4g}",
            }
        ]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return f"The loss on {example_count(found)} of the {self.split} split, to {self.radius:g} filter lengths away."

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Figure]:
        """A panel for each run; all panels have the same colours, so that their heights can be compared."""
        from gasam.analysis.pictures import in_sheets, sheet
        from gasam.analysis.plane_pictures import PlaneScale, colour_bar, draw_plane

        scale = PlaneScale.of([_heights(each) for each in found])
        figures = []
        for some in in_sheets(len(found)):
            figure, axes = sheet(len(found[some]))
            drawn = None
            for each, label, panel in zip(found[some], labels[some], axes, strict=True):
                axis = each.found["axis"]
                transposed = [list(row) for row in zip(*_heights(each), strict=True)]
                drawn = draw_plane(panel, axis, axis, transposed, title=label, scale=scale) or drawn
            if drawn is not None and scale is not None:
                colour_bar(axes, drawn, scale)
            figures.append(figure)
        return figures

    def clause(self, record: AnalysisRecord, label: str) -> str:
        grid = _heights(record)
        mean = sum(map(sum, grid)) / len(grid) ** 2
        return f"the loss of {label} is {_middle(grid):.3g} at the weights and {mean:.3g} on average"


def _heights(record: AnalysisRecord) -> list[list[float]]:
    return [[float(value) for value in row] for row in record.found["losses"]]


def _middle(grid: list[list[float]]) -> float:
    return grid[len(grid) // 2][len(grid) // 2]
