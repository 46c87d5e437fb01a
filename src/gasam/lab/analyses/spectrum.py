"""The largest eigenvalues of a run's Hessian or Fisher matrix, as in the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gasam.lab.analyses.comparing import Measure, Plotted, example_count
from gasam.lab.analyses.definition import Analysis, Cells, Found, Measurement, option
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.record import AnalysisRecord

WORDS = {"empirical_fisher": "empirical Fisher matrix", "fisher": "Fisher matrix", "hessian": "Hessian"}


@dataclass(frozen=True, kw_only=True)
class Spectrum(Analysis):
    """Compute the largest eigenvalues of the Hessian or Fisher matrix at the weights.

    Example: `gasam spectrum runs/A.json runs/B.json --matrix hessian --k 20`
    """

    matrix: str = option("empirical_fisher", help="Matrix: empirical_fisher (as in the paper), fisher or hessian.")
    k: int = option(50, help="Number of eigenvalues.")

    kind = command = "spectrum"
    title = "Largest eigenvalues"

    @property
    def filed(self) -> str:
        return f"{self.kind}-{self.matrix}"

    @property
    def manner(self) -> str:
        return f"{WORDS[self.matrix]}, {super().manner}"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        from gasam.analysis.spectrum import top_eigenvalues

        found = top_eigenvalues(
            *run.on(self.split, self.rows),
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

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        top = record.found["values"]
        places = [place for place in (1, 2, 5, 10, 20) if place < self.k] + [self.k]
        eigenvalues = {f"number {place}": f"{top[place - 1]:.4g}" for place in places}
        total = {f"sum of {self.k}": f"{sum(top):.4g}"}
        return [{"run": label} | eigenvalues | total | {"converged": f"{_converged(record)} of {len(top)}"}]

    def values(self, record: AnalysisRecord) -> Found:
        return {"eigenvalues": record.found["values"], "converged": _converged(record)}

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return f"{WORDS[self.matrix]} of the training loss on {example_count(found)} of the {self.split} split."

    def plotted(self, record: AnalysisRecord) -> Plotted:
        top = record.found["values"]
        positive = [value if value > 0 else None for value in top]
        return Plotted("top of the spectrum", "number", "eigenvalue", range(1, len(top) + 1), positive, log="y")

    def measures(self, record: AnalysisRecord) -> Sequence[Measure]:
        top = record.found["values"]
        numbers = {"the largest eigenvalue": top[0], f"the sum of the top {self.k} eigenvalues": sum(top)}
        return [
            Measure(f"{name} of the {WORDS[self.matrix]}", value, f"{value:.3g}", more_is_flatter=False)
            for name, value in numbers.items()
        ]


def _converged(record: AnalysisRecord) -> int:
    return sum(record.found["converged"])
