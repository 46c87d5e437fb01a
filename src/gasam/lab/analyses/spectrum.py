"""The largest eigenvalues of a run's Hessian or Fisher matrix: the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.lab.analyses.comparing import Measure, Plotted, counted, panels
from gasam.lab.analyses.definition import Analysis, Found, Labels, Measurement, option
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"empirical_fisher": "empirical Fisher matrix", "fisher": "Fisher matrix", "hessian": "Hessian"}


@dataclass(frozen=True, kw_only=True)
class Spectrum(Analysis):
    """The largest eigenvalues of the loss's curvature at the weights.

    `gasam spectrum runs/A.json runs/B.json --matrix hessian --k 20`
    """

    matrix: str = option("empirical_fisher", help="empirical_fisher (the paper's), fisher or hessian.")
    k: int = option(50, help="How many of the largest eigenvalues.")

    kind = command = "spectrum"

    @property
    def filed(self) -> str:
        return f"{self.kind}-{self.matrix}"

    @property
    def manner(self) -> str:
        return f"{WORDS[self.matrix]}, {super().manner}"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        from gasam.analysis.spectrum import top_eigenvalues

        found = top_eigenvalues(
            run.model,
            run.objective,
            run.examples(self.split, self.rows),
            k=self.k,
            matrix=self.matrix,  # type: ignore[arg-type]
            seed=self.seed,
            watch=lambda done: measurement.report(f"{done} products"),
        )
        return {
            "values": found.values.tolist(),
            "residuals": found.residuals.tolist(),
            "converged": found.converged.tolist(),
            "method": found.method,
            "examples": found.examples,
            "weights": found.weights,
            "work": found.work,
        }

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        places = [place for place in (1, 2, 5, 10, 20) if place < self.k] + [self.k]
        columns = ("run", *(f"number {place}" for place in places), f"sum of {self.k}", "converged")
        rows, values = [], []
        for each, label in zip(found, labels, strict=True):
            top = each.found["values"]
            converged = sum(each.found["converged"])
            shown = [*(top[place - 1] for place in places), sum(top)]
            rows.append((label, *(f"{value:.4g}" for value in shown), f"{converged} of {len(top)}"))
            values.append({"run": each.run.name, "eigenvalues": top, "converged": converged})
        note = f"{WORDS[self.matrix]} of the training loss on {counted(found)} of the {self.split} split."
        return Table("Largest eigenvalues", columns, tuple(rows), (note,), tuple(values))

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> Figure:
        def plotted(each: AnalysisRecord) -> Plotted:
            top = each.found["values"]
            return Plotted(range(1, len(top) + 1), [value if value > 0 else None for value in top])

        return panels(found, labels, plotted, title="top of the spectrum", x="number", y="eigenvalue", log="y")

    def measures(self, record: AnalysisRecord) -> Sequence[Measure]:
        top = record.found["values"]
        numbers = {"the largest eigenvalue": top[0], f"the sum of the top {self.k} eigenvalues": sum(top)}
        return [
            Measure(f"{name} of the {WORDS[self.matrix]}", value, f"{value:.3g}", more_is_flatter=False)
            for name, value in numbers.items()
        ]
