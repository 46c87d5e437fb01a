"""Slices of a run's loss: over a plane through its weights, or along the line to another run's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasam.analysis.landscape import line, plane
from gasam.analysis.values import plain_value
from gasam.lab.analyses import Analysis, Found, Watch
from gasam.lab.analyses.showing import counted, panels
from gasam.lab.analyses.subjects import Subject
from gasam.lab.errors import InputError
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table
from gasam.lab.training.checkpoints import Checkpoints

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Plane(Analysis):
    """Filter-normalised random directions: at 1 every filter has moved by its own length."""

    radius: float = 1.0
    points: int = 15

    kind = "plane"

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        return plane(
            subject.model,
            subject.objective,
            subject.examples(self.split, self.rows),
            radius=self.radius,
            points=self.points,
            seed=self.seed,
            watch=lambda done, of: watch(f"point {done}/{of}"),
        ).as_json()

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        columns = ("run", "loss at the weights", "highest on the rim", "lowest on the rim")
        rows = []
        for each, label in zip(found, labels, strict=True):
            grid = heights(each)
            rim = [*grid[0], *grid[-1], *(row[0] for row in grid), *(row[-1] for row in grid)]
            highest, lowest = (pick(rim) if not any(map(math.isnan, rim)) else math.nan for pick in (max, min))
            rows.append((label, *(f"{value:.4g}" for value in (middle(each), highest, lowest))))
        note = f"The loss on {counted(found)} of the {self.split} split, to {self.radius:g} filter lengths away."
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table("Loss over a plane", columns, tuple(rows), (note,), values)

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import draw_plane, sheet

        figure, axes = sheet(len(found))
        for each, label, panel in zip(found, labels, axes, strict=True):
            axis = each.found["axis"]
            draw_plane(panel, axis, axis, [list(row) for row in zip(*heights(each), strict=True)], title=label)
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        words = [
            f"the loss of {label} is {middle(each):.3g} at the weights and {mean_of(each):.3g} on average"
            for each, label in zip(found, labels, strict=True)
        ]
        return "; ".join(words)


@dataclass(frozen=True, kw_only=True)
class Towards(Analysis):
    """Along w + alpha (other - w), from each run to one other run of the same model; both are among the points."""

    other: str
    start: float = -0.5
    stop: float = 1.5
    points: int = 21

    kind = "line"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points < 2 or not self.start < self.stop:
            raise InputError(
                f"a line must have points >= 2 and start < stop, got {self.points}, {self.start:g} and {self.stop:g}"
            )

    def options(self) -> dict[str, Any]:
        return super().options() | {"other": Path(self.other).stem}

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        folder = Path(self.other).with_suffix("")
        weights = Checkpoints(folder).load(folder / "model.pt")
        if not weights:
            raise InputError(f"--to must be the record of a run whose weights lie beside it, got {self.other}")
        step = (self.stop - self.start) / (self.points - 1)
        alphas = sorted({0.0, 1.0, *(round(self.start + step * number, 9) for number in range(self.points))})
        found = {}
        for split in dict.fromkeys((self.split, "test")):
            along = line(
                subject.model,
                subject.objective,
                subject.examples(split, self.rows),
                alphas,
                other=weights,
                watch=lambda done, of, split=split: watch(f"{split}, point {done}/{of}"),  # type: ignore[misc]
            )
            found[split] = plain_value(along.losses)
        return {"alphas": alphas, "losses": found}

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        splits = tuple(found[0].found["losses"])
        rows = [
            (label, f"{alpha:.3g}", *(f"{float(each.found['losses'][split][i]):.4g}" for split in splits))
            for each, label in zip(found, labels, strict=True)
            for i, alpha in enumerate(each.found["alphas"])
        ]
        note = (
            f"alpha = 0 is the run, alpha = 1 is {Path(self.other).stem}; {counted(found)} of the {self.split} split."
        )
        return Table("Loss along a line", ("run", "alpha", *(f"{s} loss" for s in splits)), tuple(rows), (note,))

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import Line

        def drawn(each: AnalysisRecord, **style: Any) -> Line:
            return Line(x=each.found["alphas"], y=list(map(float, each.found["losses"][self.split])), **style)

        return panels(found, labels, drawn, title=f"{self.split} loss along a line", x="alpha", y="loss", log="")

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        words = []
        for each, label in zip(found, labels, strict=True):
            losses = map(float, each.found["losses"][self.split])
            inside = [loss for loss, alpha in zip(losses, each.found["alphas"], strict=True) if 0 <= alpha <= 1]
            highest, ends = max(inside), max(inside[0], inside[-1])
            words.append(
                f"between {label} and {Path(self.other).stem} the highest {self.split} loss is {highest:.3g}, "
                f"{highest - ends:.3g} above the higher end"
            )
        return "; ".join(words)


def heights(each: AnalysisRecord) -> list[list[float]]:
    return [[float(value) for value in row] for row in each.found["losses"]]


def middle(each: AnalysisRecord) -> float:
    grid = heights(each)
    return grid[len(grid) // 2][len(grid) // 2]


def mean_of(each: AnalysisRecord) -> float:
    values = [value for row in heights(each) for value in row]
    return sum(values) / len(values)
