"""Two substitutions of the paper on a run: a batch's gradient for an example's, the Fisher matrix for the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gasam.analysis.substitutions import fisher_substitution, norm_substitution
from gasam.lab.analyses import Analysis, Found, Watch
from gasam.lab.analyses.subjects import Subject
from gasam.lab.records import AnalysisRecord
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Substitutions(Analysis):
    """Runs of one task that were trained for different times, side by side: the substitutions over training."""

    rows: int = 256
    probes: int = 8

    kind = "substitutions"

    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        batches = subject.examples(self.split, self.rows)
        watch("the gradients of single examples")
        found = known or {"norms": norm_substitution(subject.model, subject.objective, batches).as_json()}
        keep(found)
        watch("the Hessian")
        curvature = fisher_substitution(subject.model, subject.objective, batches, probes=self.probes, seed=self.seed)
        return found | {"curvature": curvature.as_json()}

    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table:
        columns = ("task", "epochs", "|g| of a batch to an example's", "spread", "ranks of T",
                   "|F - H| to |H|", "cosine", "traces F / H", "largest eigenvalues F / H")  # fmt: skip
        rows = []
        for each in found:
            norms, curvature = each.found["norms"], each.found["curvature"]
            numbers = (norms["factor"], norms["spread"], norms["rank_correlation"], curvature["distance"],
                       curvature["cosine"], curvature["fisher_trace"] / curvature["hessian_trace"],
                       curvature["top_ratio"])  # fmt: skip
            shown = ("" if number is None else f"{number:.3g}" for number in numbers)
            rows.append((each.run.task, str(epochs_of(each)), *shown))
        note = f"On {self.rows} examples of the {self.split} split; the spread is the standard deviation of log ratios."
        values = tuple({"run": each.run.name} | each.found for each in found)
        return Table("The substitutions over training", columns, tuple(rows), (note,), values)

    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure:
        from gasam.analysis.pictures import Line, draw_lines, sheet

        figure, [left, right] = sheet(2)
        epochs = [epochs_of(each) for each in found]
        norms, curvature = ([each.found[part] for each in found] for part in ("norms", "curvature"))
        spread = [
            Line("mean ratio", epochs, [each["factor"] for each in norms]),
            Line("spread of log ratios", epochs, [each["spread"] for each in norms]),
        ]
        draw_lines(left, spread, title="|g_i| for E|grad_i l|", x="epochs", y="", log="x")
        apart = [
            Line("|F - H| / |H|", epochs, [each["distance"] for each in curvature]),
            Line("cosine", epochs, [each["cosine"] for each in curvature]),
        ]
        draw_lines(right, apart, title="empirical Fisher for Hessian", x="epochs", y="", log="x")
        return figure

    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        return "; ".join(
            f"after {epochs_of(each)} epochs the ratios of the norms spread by {each.found['norms']['spread']:.2f} "
            f"in their logarithm, and Fisher matrix and Hessian have a cosine of "
            f"{each.found['curvature']['cosine']:.2f}"
            for each in found
        )


def epochs_of(each: AnalysisRecord) -> int:
    return int(each.run.config["settings"]["epochs"])
