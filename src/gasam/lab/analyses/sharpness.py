"""The rise of a run's loss in balls around its weights: the worst and the average, with confidence over batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gasam.analysis.sharpness import sharpness
from gasam.analysis.values import plain_value
from gasam.lab.analyses import Analysis, Found, Measure, Watch
from gasam.lab.analyses.showing import counted, flatness, norm_name, panels
from gasam.lab.analyses.subjects import Subject
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table
from gasam.perturbation import Perturbation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Rises(Analysis):
    epsilons: tuple[float, ...] = (0.01, 0.05, 0.1)
    norm: float = 2.0
    steps: int = 10
    scale: str = "one"
    granularity: str = "model"
    draws: int = 8

    kind = "sharpness"

    @property
    def filed(self) -> str:
        scaled = "" if self.scale == "one" else f"-{self.scale}-{self.granularity}"
        return f"{self.kind}-{norm_name(self.norm)}{scaled}"

    @property
    def manner(self) -> str:
        of = "" if self.scale == "one" else f" of each {self.granularity}"
        return f"{norm_name(self.norm)}, T = {self.scale}{of}, K = {self.steps}"

    def options(self) -> dict[str, Any]:
        return super().options() | {"norm": plain_value(self.norm)}

    def perturbation(self, epsilon: float) -> Perturbation:
        return Perturbation(
            epsilon=epsilon,
            norm=self.norm,
            steps=self.steps,
            scale=self.scale,
            granularity=self.granularity,  # type: ignore[arg-type]
        )

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        balls = [self.perturbation(epsilon) for epsilon in self.epsilons]
        batches, found = subject.examples(self.split, self.rows), list(known.get("balls", ()))
        for number, ball in enumerate(balls[len(found) :], start=len(found) + 1):
            measured = sharpness(
                subject.model,
                subject.objective,
                batches,
                ball,
                draws=self.draws,
                seed=self.seed,
                watch=lambda done, of, number=number: watch(f"ball {number}/{len(balls)}, batch {done}/{of}"),  # type: ignore[misc]
            )
            found.append({"epsilon": ball.epsilon} | measured.as_json())
            keep({"balls": found})
        return {"balls": found}

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        rows = []
        for each, label in zip(found, labels, strict=True):
            for ball in each.found["balls"]:
                average = "" if ball["average"] is None else interval(ball["average"])
                rows.append((label, f"{ball['epsilon']:g}", interval(ball["worst"]), average))
        columns = ("run", "epsilon", "worst rise", "average rise")
        notes = (
            f"Rise of the loss of single batches in the ball |T^-1 a|_{plain_value(self.norm)} <= epsilon, "
            f"T = {self.scale}, by {self.steps} steps or on average over {self.draws} random points, "
            f"on {counted(found)} of the {self.split} split; mean over batches with its 95% interval.",
        )
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table("Sharpness", columns, tuple(rows), notes, values)

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import Line

        def line(each: AnalysisRecord, **style: Any) -> Line:
            balls = each.found["balls"]
            return Line(x=[b["epsilon"] for b in balls], y=[float(b["worst"]["mean"]) for b in balls], **style)

        return panels(found, labels, line, title="worst rise of the loss", x="epsilon", y="rise", log="xy")

    def measures(self, each: AnalysisRecord) -> Sequence[Measure]:
        worst = [(ball["epsilon"], float(ball["worst"]["mean"])) for ball in each.found["balls"]]
        name = f"the worst rise of the loss ({self.manner})"
        return [
            Measure(f"{name} at epsilon {at:g}", value, f"{value:.3g}", more_is_flatter=False) for at, value in worst
        ]

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        return flatness(lambda each: self.measures(each)[-1:], found, labels)


def interval(estimate: dict[str, Any]) -> str:
    middle = f"{float(estimate['mean']):.3g}"
    if estimate["interval"] is None:
        return middle
    low, high = map(float, estimate["interval"])
    return f"{middle} [{low:.3g}, {high:.3g}]"
