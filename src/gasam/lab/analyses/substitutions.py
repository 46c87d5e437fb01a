"""Two substitutions of the paper on a run: a batch's gradient for an example's, the Fisher matrix for the Hessian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.analysis.substitutions import fisher_substitution, norm_substitution
from gasam.lab.analyses.definition import Analysis, Found, Labels, Measurement
from gasam.lab.analyses.loading import LoadedRun
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Substitutions(Analysis):
    """Runs of one task that were trained for different numbers of epochs show the substitutions over training."""

    rows: int = 256
    probes: int = 8

    kind = "substitutions"

    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        batches = run.examples(self.split, self.rows)
        measurement.report("the gradients of single examples")
        found = measurement.kept or {"norms": norm_substitution(run.model, run.objective, batches)}
        measurement.keep(found)
        measurement.report("the Hessian")
        curvature = fisher_substitution(run.model, run.objective, batches, probes=self.probes, seed=self.seed)
        return found | {"curvature": curvature}

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        rows = []
        for each in found:
            norms, curvature = each.found["norms"], each.found["curvature"]
            numbers = {
                "|g| of a batch to an example's": norms["factor"],
                "spread": norms["spread"],
                "ranks of T": norms["rank_correlation"],
                "|F - H| to |H|": curvature["distance"],
                "cosine": curvature["cosine"],
                "traces F / H": curvature["fisher_trace"] / curvature["hessian_trace"],
                "largest eigenvalues F / H": curvature["top_ratio"],
            }
            shown = ("" if number is None else f"{number:.3g}" for number in numbers.values())
            rows.append((each.run.task, str(epochs_of(each)), *shown))
        note = f"On {self.rows} examples of the {self.split} split; the spread is the standard deviation of log ratios."
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table("The substitutions over training", ("task", "epochs", *numbers), tuple(rows), (note,), values)

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> Figure:
        from gasam.analysis.pictures import Line, draw_lines, sheet

        figure, [left, right] = sheet(2)
        epochs = [epochs_of(each) for each in found]

        def drawn(label: str, part: str, number: str) -> Line:
            return Line(label, epochs, [each.found[part][number] for each in found])

        norms = [drawn("mean ratio", "norms", "factor"), drawn("spread of log ratios", "norms", "spread")]
        draw_lines(left, norms, title="|g_i| for E|grad_i l|", x="epochs", y="", log="x")
        curvatures = [drawn("|F - H| / |H|", "curvature", "distance"), drawn("cosine", "curvature", "cosine")]
        draw_lines(right, curvatures, title="empirical Fisher for Hessian", x="epochs", y="", log="x")
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Labels) -> str:
        return "; ".join(
            f"after {epochs_of(each)} epochs the ratios of the norms spread by {each.found['norms']['spread']:.2f} "
            f"in their logarithm, and Fisher matrix and Hessian have a cosine of "
            f"{each.found['curvature']['cosine']:.2f}"
            for each in found
        )


def epochs_of(record: AnalysisRecord) -> int:
    return int(record.run.settings["epochs"])
