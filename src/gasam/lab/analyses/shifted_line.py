"""The shifted training loss compared with the test loss: the experiment of the paper's Figure 1."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from gasam.lab.analyses.definition import Cells, Found, Labels, Measurement
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.analyses.shift import Labelled, Shift, fine_tuned, on_the_cpu, whole
from gasam.lab.record import AnalysisRecord
from gasam.lab.storage import Weights
from gasam.lab.theory import Problem
from gasam.lab.theory.risk import Risk

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class ShiftedLine(Shift):
    """Training loss, test loss and shifted training loss along the line through the two minima."""

    points: int = 31

    kind = "shifted-line"
    title = "The training loss beside the test loss"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        run = on_the_cpu(run)
        measurement.report("fine-tuning on the test data")
        delta, _ = fine_tuned(run, run.family.data["test"], self.epochs, seed=0)
        train, test = (whole(run, split, len(run.family.data[split][1])) for split in ("train", "test"))
        measurement.report("the line of fine-tuning")
        tuned = self._losses(run, run.model, delta, train, test, ridge=0.0)
        measurement.report("solving the regularised problem")
        model, train, test = self.problem(run)
        minimum = self.solved(run, model, test)
        if not minimum.stationary:
            raise ValueError(
                f"the regularised minimum on test data was not found ({minimum.sentence}): raise ridge or tolerance"
            )
        measurement.report("the line of the regularised problem")
        solved = self._losses(run, model, minimum.offset, train, test, ridge=self.ridge)
        return {"fine-tuned": tuned, "regularised": solved}

    def _losses(
        self,
        run: LoadedRun,
        model: nn.Module,
        delta: Weights,
        train_data: list[Labelled],
        test_data: list[Labelled],
        *,
        ridge: float,
    ) -> dict[str, Any]:
        """L(w; D), L(w; D*) and L(w - delta; D) + constant at the points w = theta + alpha delta."""
        alphas = [-1 + 3 * number / (self.points - 1) for number in range(self.points)]
        with Problem(model, run.objective, train_data, test_data, ridge).risks() as (train, test):
            step = train.flat("delta", {name: delta[name] for name in train.names})

            def at(risk: Risk, alpha: float) -> float:
                with risk.moved_by(alpha * step):
                    return float(risk.loss())

            constant = at(test, 1.0) - at(train, 0.0)
            losses = {
                "train": [at(train, alpha) for alpha in alphas],
                "test": [at(test, alpha) for alpha in alphas],
                "shifted": [at(train, alpha - 1) + constant for alpha in alphas],
            }
            lifted = at(test, 1.0) - at(train, 1.0)
        near = [number for number, alpha in enumerate(alphas) if 0.5 <= alpha <= 1.5]
        gaps = {
            "shifted": _distance(losses["shifted"], losses["test"], near),
            "unshifted": _distance([loss + lifted for loss in losses["train"]], losses["test"], near),
        }
        return {"alphas": alphas, "constant": constant, "delta": float(step.norm()), "gaps": gaps} | losses

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        return [
            {
                "run": label,
                "protocol": protocol,
                "|delta|": f"{losses['delta']:.4g}",
                "shifted training loss": f"{losses['gaps']['shifted']:.3g}",
                "training loss, not shifted": f"{losses['gaps']['unshifted']:.3g}",
            }
            for protocol, losses in record.found.items()
        ]

    def values(self, record: AnalysisRecord) -> None:
        return None

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        where = "within half a shift of its minimum, heights matched there"
        return f"Root mean square distances from the test loss {where}."

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Figure]:
        from gasam.analysis.pictures import PlotLine, draw_lines, in_sheets, sheet

        shown = [(each.run, protocol, losses) for each in found for protocol, losses in each.found.items()]
        figures = []
        for some in in_sheets(len(shown)):
            figure, axes = sheet(len(shown[some]))
            for panel, (run, protocol, losses) in zip(axes, shown[some], strict=True):
                alphas = losses["alphas"]
                lines = [
                    PlotLine("training loss", alphas, losses["train"]),
                    PlotLine("test loss", alphas, losses["test"]),
                    PlotLine("shifted training loss + constant", alphas, losses["shifted"], dashes="--"),
                ]
                title = f"{run.task}, seed {run.seed}: {protocol}"
                draw_lines(panel, lines, title=title, x="alpha (0 train, 1 test)", y="loss")
            figures.append(figure)
        return figures

    def clause(self, record: AnalysisRecord, label: str) -> str:
        return "; ".join(
            f"{record.run.task}, seed {record.run.seed}, {protocol}: near the test minimum the shifted "
            f"training loss is {losses['gaps']['shifted']:.3g} from the test loss, the unshifted one "
            f"{losses['gaps']['unshifted']:.3g}"
            for protocol, losses in record.found.items()
        )


def _distance(one: Sequence[float], other: Sequence[float], places: Sequence[int]) -> float:
    """The root mean square difference at these indices."""
    return math.sqrt(statistics.fmean((one[place] - other[place]) ** 2 for place in places))
