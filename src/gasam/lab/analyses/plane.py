"""The loss over a plane through a run's weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.analysis.landscape import plane
from gasam.lab.analyses.comparing import counted
from gasam.lab.analyses.definition import Analysis, Found, Labels, Measurement, option
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class LossPlane(Analysis):
    """The loss around the weights: over a filter-normalised plane, or along the line to another run.

    `gasam landscape runs/A.json runs/B.json`, `gasam landscape runs/A.json --to runs/B.json`
    """

    radius: float = option(1.0, help="How far the plane goes, in lengths of each filter.")
    points: int = option(15, help="Places in each direction; odd for a plane.")

    kind = "plane"
    command = "landscape"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        return plane(
            run.model,
            run.objective,
            run.examples(self.split, self.rows),
            radius=self.radius,
            points=self.points,
            seed=self.seed,
            watch=lambda done, of: measurement.report(f"point {done}/{of}"),
        ).as_json()

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        rows = []
        for each, label in zip(found, labels, strict=True):
            grid = _heights(each)
            rim = [*grid[0], *grid[-1], *(row[0] for row in grid), *(row[-1] for row in grid)]
            if any(map(math.isnan, rim)):
                rim = [math.nan]
            rows.append((label, *(f"{value:.4g}" for value in (_middle(grid), max(rim), min(rim)))))
        columns = ("run", "loss at the weights", "highest on the rim", "lowest on the rim")
        note = f"The loss on {counted(found)} of the {self.split} split, to {self.radius:g} filter lengths away."
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table("Loss over a plane", columns, tuple(rows), (note,), values)

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> Figure:
        from gasam.analysis.pictures import draw_plane, sheet

        figure, axes = sheet(len(found))
        for each, label, panel in zip(found, labels, axes, strict=True):
            axis = each.found["axis"]
            transposed = [list(row) for row in zip(*_heights(each), strict=True)]
            draw_plane(panel, axis, axis, transposed, title=label)
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Labels) -> str:
        clauses = []
        for each, label in zip(found, labels, strict=True):
            grid = _heights(each)
            mean = sum(map(sum, grid)) / len(grid) ** 2
            clauses.append(f"the loss of {label} is {_middle(grid):.3g} at the weights and {mean:.3g} on average")
        return "; ".join(clauses)


def _heights(record: AnalysisRecord) -> list[list[float]]:
    return [[float(value) for value in row] for row in record.found["losses"]]


def _middle(grid: list[list[float]]) -> float:
    return grid[len(grid) // 2][len(grid) // 2]
