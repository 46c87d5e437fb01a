"""The worst and the average rise of a run's loss in balls around its weights, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from gasam.analysis.sharpness import sharpness
from gasam.lab.analyses.comparing import Measure, Plotted, compared, example_count, norm_name
from gasam.lab.analyses.definition import Analysis, Cells, Found, Labels, Measurement, option
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.command_text import parsed_norm, parsed_numbers
from gasam.lab.record import AnalysisRecord
from gasam.perturbation import Perturbation


@dataclass(frozen=True, kw_only=True)
class Rises(Analysis):
    """Measure the worst and the average rise of the loss in a ball around the weights.

    Example: `gasam sharpness runs/A.json runs/B.json --epsilon 0.05,0.1`
    """

    epsilons: tuple[float, ...] = option(
        (0.01, 0.05, 0.1), help="Radii of the ball, separated by commas.", flag="epsilon", text="0.01,0.05,0.1"
    )
    norm: float = option(2.0, help="Norm of the ball: 2, inf, or any number > 1.", text="2")
    steps: int = option(10, help="Number of ascent steps, K.")
    scale: str = option("one", help="Scale T, e.g. gradient_strength.")
    granularity: str = option("model", help="Group of weights with its own T: element, filter, layer, module or model.")
    draws: int = option(8, help="Number of random points for the average, in each batch.")

    kind = command = "sharpness"
    title = "Sharpness"

    @classmethod
    def from_command(cls, **given: Any) -> Self:
        epsilons = parsed_numbers("--epsilon", given["epsilons"])
        return cls(**given | {"epsilons": epsilons, "norm": parsed_norm(given["norm"])})

    @property
    def filed(self) -> str:
        scaled = "" if self.scale == "one" else f"-{self.scale}-{self.granularity}"
        return f"{self.kind}-{norm_name(self.norm)}{scaled}"

    @property
    def manner(self) -> str:
        of = "" if self.scale == "one" else f" of each {self.granularity}"
        return f"{norm_name(self.norm)}, T = {self.scale}{of}, K = {self.steps}"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        balls = [
            Perturbation(
                epsilon=epsilon,
                norm=self.norm,
                steps=self.steps,
                scale=self.scale,
                granularity=self.granularity,  # type: ignore[arg-type]
            )
            for epsilon in self.epsilons
        ]
        subject, found = run.on(self.split, self.rows), list(measurement.kept.get("balls", ()))
        for ball in balls[len(found) :]:
            counting = measurement.counting(f"ball {len(found) + 1}/{len(balls)}, batch")
            rises = sharpness(*subject, ball, draws=self.draws, seed=self.seed, watch=counting)
            found.append({"epsilon": ball.epsilon} | rises.as_json())
            measurement.keep({"balls": found})
        return {"balls": found}

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        return [
            {
                "run": label,
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

    def plotted(self, record: AnalysisRecord) -> Plotted:
        balls = record.found["balls"]
        epsilons, rises = [ball["epsilon"] for ball in balls], [float(ball["worst"]["mean"]) for ball in balls]
        return Plotted("worst rise of the loss", "epsilon", "rise", epsilons, rises, log="xy")

    def measures(self, record: AnalysisRecord) -> Sequence[Measure]:
        found = []
        for ball in record.found["balls"]:
            rise = float(ball["worst"]["mean"])
            name = f"the worst rise of the loss ({self.manner}) at epsilon {ball['epsilon']:g}"
            found.append(Measure(name, rise, f"{rise:.3g}", more_is_flatter=False))
        return found

    def sentence(self, found: Sequence[AnalysisRecord], labels: Labels) -> str:
        """Compare the runs in the last ball only."""
        return compared(lambda each: self.measures(each)[-1:], found, labels)


def _interval(estimate: dict[str, Any] | None) -> str:
    if estimate is None:
        return ""
    middle = f"{float(estimate['mean']):.3g}"
    if estimate["interval"] is None:
        return middle
    low, high = map(float, estimate["interval"])
    return f"{middle} [{low:.3g}, {high:.3g}]"
