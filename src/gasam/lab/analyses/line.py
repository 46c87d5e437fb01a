"""The loss along the line from the weights of a run to those of another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gasam.analysis.landscape import line
from gasam.lab.analyses.comparing import Plotted, example_count
from gasam.lab.analyses.definition import Analysis, Cells, Found, Measurement, option
from gasam.lab.analyses.loading import LoadedRun, weights_like
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord


@dataclass(frozen=True, kw_only=True)
class LossLine(Analysis):
    """The loss at w + alpha (other - w), where `other` is a run of the same model. Both runs are among the points."""

    other: Path = option(help="Measure along the line to this run instead of on a plane.", flag="to")  # noqa: RUF009
    points: int = 15
    start: float = option(-0.5, help="Start of the line; 0 is the run, 1 is the run of --to.")
    stop: float = option(1.5, help="End of the line.")

    kind = "line"
    command = "landscape"
    title = "Loss along a line"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.points < 2 or not self.start < self.stop:
            raise InputError(
                f"a line must have points >= 2 and start < stop, got {self.points}, {self.start:g} and {self.stop:g}"
            )

    def options(self) -> dict[str, Any]:
        return super().options() | {"other": self.other.stem}

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        try:
            weights = weights_like(run.model, self.other)
        except InputError as error:
            raise InputError(f"--to must name another run of the same model: {error}") from None
        step = (self.stop - self.start) / (self.points - 1)
        alphas = sorted({0.0, 1.0, *(round(self.start + step * number, 9) for number in range(self.points))})
        losses = {}
        for split in dict.fromkeys((self.split, "test")):
            counting = measurement.counting(f"{split}, point")
            losses[split] = line(*run.on(split, self.rows), alphas, other=weights, watch=counting).losses
        return {"alphas": alphas, "losses": losses}

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        rows = []
        for number, alpha in enumerate(record.found["alphas"]):
            losses = {split: float(along[number]) for split, along in record.found["losses"].items()}
            texts = {f"{split} loss": f"{loss:.4g}" for split, loss in losses.items()}
            rows.append({"run": label, "alpha": f"{alpha:.3g}"} | texts)
        return rows

    def values(self, record: AnalysisRecord) -> None:
        return None

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return (
            f"alpha = 0 is the run, alpha = 1 is {self.other.stem}; {example_count(found)} of the {self.split} split."
        )

    def plotted(self, record: AnalysisRecord) -> Plotted:
        title = f"{self.split} loss along a line"
        return Plotted(title, "alpha", "loss", record.found["alphas"], self._losses(record))

    def clause(self, record: AnalysisRecord, label: str) -> str:
        points = zip(self._losses(record), record.found["alphas"], strict=True)
        between = [loss for loss, alpha in points if 0 <= alpha <= 1]
        barrier = max(between) - max(between[0], between[-1])
        return (
            f"between {label} and {self.other.stem} the highest {self.split} loss is {max(between):.3g}, "
            f"{barrier:.3g} above the higher end"
        )

    def _losses(self, record: AnalysisRecord) -> list[float]:
        return [float(loss) for loss in record.found["losses"][self.split]]
