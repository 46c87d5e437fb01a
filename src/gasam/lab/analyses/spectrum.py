"""The top of the spectrum of a run's Hessian or Fisher matrix: the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gasam.lab.analyses import Analysis, Found, Measure, Watch
from gasam.lab.analyses.showing import counted, flatness, panels
from gasam.lab.analyses.subjects import Subject
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS = {"empirical_fisher": "empirical Fisher matrix", "fisher": "Fisher matrix", "hessian": "Hessian"}


@dataclass(frozen=True, kw_only=True)
class Spectrum(Analysis):
    matrix: str = "empirical_fisher"
    k: int = 50

    kind = "spectrum"

    @property
    def filed(self) -> str:
        return f"{self.kind}-{self.matrix}"

    @property
    def manner(self) -> str:
        return f"{WORDS[self.matrix]}, {super().manner}"

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        from gasam.analysis.spectrum import top_eigenvalues

        found = top_eigenvalues(
            subject.model,
            subject.objective,
            subject.examples(self.split, self.rows),
            k=self.k,
            matrix=self.matrix,  # type: ignore[arg-type]
            seed=self.seed,
            watch=lambda done: watch(f"{done} products"),
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

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
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

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import Line

        def line(each: AnalysisRecord, **style: Any) -> Line:
            top = each.found["values"]
            return Line(x=range(1, len(top) + 1), y=[value if value > 0 else None for value in top], **style)

        return panels(found, labels, line, title="top of the spectrum", x="number", y="eigenvalue", log="y")

    def measures(self, each: AnalysisRecord) -> Sequence[Measure]:
        top = each.found["values"]
        numbers = {"the largest eigenvalue": top[0], f"the sum of the top {self.k} eigenvalues": sum(top)}
        return [
            Measure(f"{name} of the {WORDS[self.matrix]}", value, f"{value:.3g}", more_is_flatter=False)
            for name, value in numbers.items()
        ]

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        return flatness(self.measures, found, labels)
