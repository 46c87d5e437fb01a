"""The worst and the average rise of a run's loss in balls around its weights, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gasam.analysis.sharpness import sharpness
from gasam.lab.analyses.analysis import Analysis, Cells, Found, Progress, as_numbers, example_count
from gasam.lab.record import AnalysisRecord
from gasam.lab.training.finished import FinishedRun
from gasam.perturbation import Perturbation


class Sharpness(Analysis):
    """Measure the worst and the average rise of the loss in a ball around the weights.

    Example: `gasam sharpness runs/A.json runs/B.json --epsilon 0.05,0.1`
    """

    kind = command = "sharpness"
    title = "Sharpness"

    epsilon: Annotated[tuple[float, ...], BeforeValidator(as_numbers)] = Field(
        (0.01, 0.05, 0.1), description="Radii of the ball, separated by commas."
    )
    norm: float = Field(2.0, description="Norm of the ball: 2, inf, or any number > 1.", strict=False)
    steps: int = Field(10, description="Number of ascent steps, K.")
    scale: str = Field("one", description="Scale T, e.g. gradient_strength.")
    granularity: str = Field(
        "model", description="Group of weights with its own T: element, filter, layer, module or model."
    )
    draws: int = Field(8, description="Number of random points for the average, in each batch.")

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        ball: Any = {name: getattr(self, name) for name in ("norm", "steps", "scale", "granularity")}
        balls = [Perturbation(epsilon=epsilon, **ball) for epsilon in self.epsilon]
        subject, found = run.on(self.split, self.rows), list(progress.kept.get("balls", ()))
        for each in balls[len(found) :]:
            counting = progress.counting(f"ball {len(found) + 1}/{len(balls)}, batch")
            rises = sharpness(*subject, each, draws=self.draws, seed=self.seed, watch=counting)
            found.append({"epsilon": each.epsilon} | vars(rises))
            progress.keep({"balls": found})
        return {"balls": found}

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        return [
            {
                "epsilon": f"{ball['epsilon']:g}",
                "worst rise": _interval(ball["worst"]),
                "average rise": _interval(ball["average"]),
            }
            for ball in record.found["balls"]
        ]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return (
            f"Rise of the loss of single batches in the ball |T^-1 a|_{self.norm:g} <= epsilon, "
            f"T = {self.scale}, by {self.steps} steps or on average over {self.draws} random points, "
            f"on {example_count(found)} of the {self.split} split; mean over batches with its 95% interval."
        )

    def curve(self, record: AnalysisRecord) -> list[tuple[float, float]]:
        return [(ball["epsilon"], float(ball["worst"]["mean"])) for ball in record.found["balls"]]

    def style(self, record: AnalysisRecord) -> dict[str, Any]:
        return {"title": "worst rise of the loss", "x": "epsilon", "y": "rise", "log": "xy"}


def _interval(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return ""
    middle = f"{float(estimate['mean']):.3g}"
    if estimate["interval"] is None:
        return middle
    low, high = map(float, estimate["interval"])
    return f"{middle} [{low:.3g}, {high:.3g}]"
