"""The studies of the paper's figures and of its Table 4, robustness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from gasam.analysis.robustness import TABLE4
from gasam.lab.analyses.mixtures import Mixtures
from gasam.lab.analyses.robustness import Robustness
from gasam.lab.analyses.shift import check_images
from gasam.lab.analyses.shifted_line import ShiftedLine
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.paper.figure_study import FIGURE_STUDIES, FigureResult, FigureStudy, TrainedRuns
from gasam.lab.record import AnalysisRecord, Record
from gasam.lab.tables import Table
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURE_STUDIES", "TrainedRuns", "norms_by_epoch", "paper_table"]

PAPER = {
    "none": ("30.60", "31.15"),
    "L2, 0.05": ("30.26", "30.90"),
    "L2, 0.1": ("29.36", "30.26"),
    "L2, 0.2": ("6.46", "17.87"),
    "L-inf, 0.0001": ("30.30", "30.72"),
    "L-inf, 0.0002": ("29.95", "30.67"),
    "L-inf, 0.0005": ("5.33", "29.14"),
}
"""The paper's Table 4: BLEU of baseline and GA-SAM on En-Vi under attack."""


class ShiftStudy(FigureStudy):
    """The shift of the minimum on MNIST, or on the embedded digits if its data is missing."""

    tasks = ("mnist",)
    substitutes = ("digits",)
    methods = ("baseline",)

    def plans(self, size: str, names: Sequence[str], seeds: Sequence[int], origin: Origin) -> list[Plan]:
        for task in names:
            check_images(task)
        return super().plans(size, names, seeds, origin)


class Figure1(ShiftStudy):
    name = "figure1"
    title = "Figure 1: training loss, test loss and shifted training loss"
    analyses: ClassVar = {
        "paper": ShiftedLine(rows=10_000, epochs=20, points=61),
        "small": ShiftedLine(rows=2000, epochs=5, points=31),
        "tiny": ShiftedLine(rows=100, epochs=1, points=7),
    }


class Figure2(ShiftStudy):
    name = "figure2"
    title = "Figure 2: the length of the shift against the share of shifted data"
    analyses: ClassVar = {
        "paper": Mixtures(rows=10_000, epochs=20, trials=100, controls=10),
        "small": Mixtures(rows=2000, epochs=5, trials=100, controls=5),
        "tiny": Mixtures(rows=100, epochs=1, trials=5, controls=2),
    }


class Figure3(FigureStudy):
    name = "figure3"
    title = "Figure 3: largest eigenvalues of the empirical Fisher matrix"
    tasks = ("imdb", "ptb", "en-vi", "de-en")
    analyses: ClassVar = {"paper": Spectrum(rows=1024), "small": Spectrum(rows=512), "tiny": Spectrum(rows=64, k=10)}


class GradientNormStudy(FigureStudy):
    """Gradient norms over training, from the records of the runs."""

    tasks = ("en-vi",)
    methods = ("baseline",)
    gradient_norms = True


class Figure4(GradientNormStudy):
    name = "figure4"
    title = "Figure 4: gradient norms over training"

    def find(self, runs: TrainedRuns) -> FigureResult:
        norms = {f"{run.task}, seed {run.seed}": [row["gradient_norm"] for row in run.curve] for run in runs.records}
        means = [_mean(epoch) for epoch in zip(*norms.values(), strict=False)]
        first, last = means[0], _mean([values[-1] for values in norms.values()])
        sentence = (
            f"the mean gradient norm is {first:.3g} in the first epoch and {last:.3g} in the last, "
            f"{last / first:.2f} times as large; the largest is in epoch {1 + means.index(max(means))}"
        )
        data = {"norms": norms, "runs": [run.name for run in runs.records]}
        return FigureResult(self.title, data, norms_by_epoch({"gradient norm over training": norms}), sentence)


class Figure5(GradientNormStudy):
    name = "figure5"
    title = "Figure 5: gradient norms of the layers of encoder and decoder"

    def find(self, runs: TrainedRuns) -> FigureResult:
        norms: dict[str, dict[str, list[float]]] = {}
        for run in runs.records:
            sides = {side: layers_of(run, side) for side in ("encoder", "decoder")}
            if not any(sides.values()):
                sides = {"layers": layers_of(run, "")}
            norms |= {f"{run.task}, seed {run.seed}: {side}": layers for side, layers in sides.items() if layers}
        means = {title: {name: _mean(values) for name, values in layers.items()} for title, layers in norms.items()}
        clauses = []
        for title, by_layer in means.items():
            numbers = ", ".join(f"{mean:.3g} in {name}" for name, mean in by_layer.items())
            clauses.append(f"{title}: the mean norm is {numbers}")
        data = {"norms": norms, "means": means, "runs": [run.name for run in runs.records]}
        return FigureResult(self.title, data, norms_by_epoch(norms), "; ".join(clauses))


class Table4(FigureStudy):
    """The metric at the paper's radii, and the radius at which half of the metric is lost."""

    name = "table4"
    title = "Table 4: the metric under corrupted weights"
    tasks = ("en-vi",)
    analyses: ClassVar[Mapping[str, Robustness]] = {
        "paper": Robustness(rows=1024, restarts=0),
        "small": Robustness(rows=256, restarts=0, judged=100),
        "tiny": Robustness(rows=16, restarts=0, judged=4),
    }

    def find(self, runs: TrainedRuns) -> FigureResult:
        search = self.analyses[runs.size]
        found: dict[Robustness, list[AnalysisRecord]] = {}
        for norm, radii in TABLE4.items():
            listed = replace(search, norm=norm, radii=radii)
            found[listed] = runs.analyse(listed, runs.files)
        first = next(iter(found))
        able = [file for file, record in zip(runs.files, found[first], strict=True) if has_half(record)]
        if able:
            found[search] = runs.analyse(search, able)
        findings = {analysis: self.shown(analysis, some, runs) for analysis, some in found.items()}
        every = [record for each in findings.values() for record in each.data["records"]]
        tables = [table for each in findings.values() for table in each.tables]
        shown = findings[search if able else first]
        return replace(shown, data={"paper": PAPER, "records": every}, tables=(*tables, paper_table()))


def paper_table() -> Table:
    rows = tuple((name, *values) for name, values in PAPER.items())
    note = "Absolute radii are those of the paper's 59 million weights."
    return Table("The paper's Table 4: BLEU on en-vi", ("corruption", "Baseline", "GA-SAM"), rows, (note,))


def has_half(record: AnalysisRecord) -> bool:
    """Whether the clean metric is better than guessing, so that half of it can be lost."""
    found = record.found
    return not found["higher_is_better"] or float(found["clean_metric"]) > found["floor"]


def layers_of(record: Record, side: str) -> dict[str, list[float]]:
    """The norms of the side's layers by epoch, in the model's order, from the lowest to the highest layer."""
    rows = [row["layer_gradient_norms"] for row in record.curve]
    names = [name for name in rows[0] if name.startswith(side) and rows[0][name] is not None]
    return {name: [row[name] for row in rows] for name in names}


def norms_by_epoch(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> list[Figure]:
    """Pictures with a panel for each title and a line for each name."""
    from gasam.analysis.pictures import PlotLine, draw_lines, in_sheets, sheet

    figures = []
    for some in in_sheets(len(panels)):
        shown = list(panels.items())[some]
        figure, axes = sheet(len(shown))
        for panel, (title, norms) in zip(axes, shown, strict=True):
            lines = [PlotLine(name, range(1, len(values) + 1), values) for name, values in norms.items()]
            draw_lines(panel, lines, title=title, x="epoch", y="mean |g| of an epoch's steps")
        figures.append(figure)
    return figures


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
