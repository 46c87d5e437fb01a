"""The loss along the line from a run's weights to another run's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasam.analysis.landscape import line
from gasam.lab.analyses.comparing import Plotted, counted, panels
from gasam.lab.analyses.definition import Analysis, Found, Labels, Measurement, option
from gasam.lab.analyses.loading import LoadedRun, read_weights
from gasam.lab.errors import InputError
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class LossLine(Analysis):
    """The loss at w + alpha (other - w), where `other` is a run of the same model; both runs are among the points."""

    other: Path = option(help="The loss along the line to this run, instead of a plane.", flag="to")  # noqa: RUF009
    points: int = 15
    start: float = option(-0.5, help="Where the line begins; 0 is the run, 1 the other.")
    stop: float = option(1.5, help="Where the line ends.")

    kind = "line"
    command = "landscape"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points < 2 or not self.start < self.stop:
            raise InputError(
                f"a line must have points >= 2 and start < stop, got {self.points}, {self.start:g} and {self.stop:g}"
            )

    def options(self) -> dict[str, Any]:
        return super().options() | {"other": self.other.stem}

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        weights = read_weights(self.other)
        if not weights:
            raise InputError(f"--to must be the record of a run whose weights lie beside it, got {self.other}")
        step = (self.stop - self.start) / (self.points - 1)
        alphas = sorted({0.0, 1.0, *(round(self.start + step * number, 9) for number in range(self.points))})

        def losses(split: str) -> Sequence[float]:
            return line(
                run.model,
                run.objective,
                run.examples(split, self.rows),
                alphas,
                other=weights,
                watch=lambda done, of: measurement.report(f"{split}, point {done}/{of}"),
            ).losses

        return {"alphas": alphas, "losses": {split: losses(split) for split in dict.fromkeys((self.split, "test"))}}

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        splits = tuple(found[0].found["losses"])
        rows = []
        for each, label in zip(found, labels, strict=True):
            for number, alpha in enumerate(each.found["alphas"]):
                losses = (float(each.found["losses"][split][number]) for split in splits)
                rows.append((label, f"{alpha:.3g}", *(f"{loss:.4g}" for loss in losses)))
        columns = ("run", "alpha", *(f"{split} loss" for split in splits))
        note = f"alpha = 0 is the run, alpha = 1 is {self.other.stem}; {counted(found)} of the {self.split} split."
        return Table("Loss along a line", columns, tuple(rows), (note,))

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> Figure:
        def plotted(each: AnalysisRecord) -> Plotted:
            return Plotted(each.found["alphas"], self._losses(each))

        return panels(found, labels, plotted, title=f"{self.split} loss along a line", x="alpha", y="loss")

    def sentence(self, found: Sequence[AnalysisRecord], labels: Labels) -> str:
        clauses = []
        for each, label in zip(found, labels, strict=True):
            points = zip(self._losses(each), each.found["alphas"], strict=True)
            between = [loss for loss, alpha in points if 0 <= alpha <= 1]
            barrier = max(between) - max(between[0], between[-1])
            clauses.append(
                f"between {label} and {self.other.stem} the highest {self.split} loss is {max(between):.3g}, "
                f"{barrier:.3g} above the higher end"
            )
        return "; ".join(clauses)

    def _losses(self, record: AnalysisRecord) -> list[float]:
        return [float(loss) for loss in record.found["losses"][self.split]]
