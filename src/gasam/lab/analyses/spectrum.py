"""The largest eigenvalues of a run's Hessian or Fisher matrix, as in the paper's Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from gasam.lab.analyses.analysis import Analysis, Cells, Found, Progress, example_count
from gasam.lab.record import AnalysisRecord
from gasam.lab.training.finished import FinishedRun

WORDS = {"empirical_fisher": "empirical Fisher matrix", "fisher": "Fisher matrix", "hessian": "Hessian"}


class Spectrum(Analysis):
    """Compute the largest eigenvalues of the Hessian or Fisher matrix at the weights.

    Example: `gasam spectrum runs/A.json runs/B.json --matrix hessian --k 20`
    """

    kind = command = "spectrum"
    title = "Largest eigenvalues"

    matrix: Literal["empirical_fisher", "fisher", "hessian"] = Field(
        "empirical_fisher", description="Matrix: empirical_fisher (as in the paper), fisher or hessian."
    )
    k: int = Field(50, description="Number of eigenvalues.", ge=1)

    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        from gasam.analysis.spectrum import top_eigenvalues

        def watch(done: int) -> None:
            progress.say(f"{done} products")

        subject = run.on(self.split, self.rows)
        found = top_eigenvalues(*subject, k=self.k, matrix=self.matrix, seed=self.seed, watch=watch)
        lists = {name: getattr(found, name).tolist() for name in ("values", "residuals", "converged")}
        return lists | {name: getattr(found, name) for name in ("method", "examples", "weights", "work")}

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        top, converged = record.found["values"], sum(record.found["converged"])
        places = [place for place in (1, 2, 5, 10) if place < self.k] + [self.k]
        eigenvalues = {f"number {place}": f"{top[place - 1]:.4g}" for place in places}
        return [eigenvalues | {"sum": f"{sum(top):.4g}", "converged": f"{converged} of {len(top)}"}]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return f"{WORDS[self.matrix]} of the training loss on {example_count(found)} of the {self.split} split."

    def curve(self, record: AnalysisRecord) -> list[tuple[float, float]]:
        return [(number, value) for number, value in enumerate(record.found["values"], 1) if value > 0]

    def style(self, record: AnalysisRecord) -> dict[str, Any]:
        return {"title": f"top of the {WORDS[self.matrix]}", "x": "number", "y": "eigenvalue", "log": "y"}
