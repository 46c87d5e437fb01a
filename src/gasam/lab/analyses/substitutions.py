"""The error of two substitutions in the paper: batch gradients for example gradients, Fisher matrix for Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.analysis.substitutions import fisher_substitution, norm_substitution
from gasam.lab.analyses.definition import Analysis, Cells, Found, Labels, Measurement
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.records import AnalysisRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Substitutions(Analysis):
    """The substitutions over training, from runs of one task that were trained for different numbers of epochs."""

    rows: int = 256
    probes: int = 8

    kind = "substitutions"
    title = "The substitutions over training"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        subject = run.on(self.split, self.rows)
        measurement.report("the gradients of single examples")
        found = measurement.kept or {"norms": norm_substitution(*subject)}
        measurement.keep(found)
        measurement.report("the Hessian")
        curvature = fisher_substitution(*subject, probes=self.probes, seed=self.seed)
        return found | {"curvature": curvature}

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        norms, curvature = record.found["norms"], record.found["curvature"]
        numbers = {
            "|g| of a batch to an example's": norms["factor"],
            "spread": norms["spread"],
            "ranks of T": norms["rank_correlation"],
            "|F - H| to |H|": curvature["distance"],
            "cosine": curvature["cosine"],
            "traces F / H": curvature["fisher_trace"] / curvature["hessian_trace"],
            "largest eigenvalues F / H": curvature["top_ratio"],
        }
        shown = {name: "" if number is None else f"{number:.3g}" for name, number in numbers.items()}
        return [{"task": record.run.task, "epochs": str(epochs_of(record))} | shown]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        return f"On {self.rows} examples of the {self.split} split; the spread is the standard deviation of log ratios."

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Figure]:
        from gasam.analysis.pictures import PlotLine, draw_lines, sheet

        figure, [left, right] = sheet(2)
        epochs = [epochs_of(each) for each in found]

        def drawn(label: str, part: str, number: str) -> PlotLine:
            return PlotLine(label, epochs, [each.found[part][number] for each in found])

        norms = [drawn("mean ratio", "norms", "factor"), drawn("spread of log ratios", "norms", "spread")]
        draw_lines(left, norms, title="|g_i| for E|grad_i l|", x="epochs", y="ratio", log="x")
        curvatures = [drawn("|F - H| / |H|", "curvature", "distance"), drawn("cosine", "curvature", "cosine")]
        draw_lines(right, curvatures, title="empirical Fisher for Hessian", x="epochs", y="ratio, cosine", log="x")
        return [figure]

    def clause(self, record: AnalysisRecord, label: str) -> str:
        spread, cosine = record.found["norms"]["spread"], record.found["curvature"]["cosine"]
        return (
            f"after {epochs_of(record)} epochs the ratios of the norms spread by {spread:.2f} in their logarithm, "
            f"and Fisher matrix and Hessian have a cosine of {cosine:.2f}"
        )


def epochs_of(record: AnalysisRecord) -> int:
    return int(record.run.settings["epochs"])
