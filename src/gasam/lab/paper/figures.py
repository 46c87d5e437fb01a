"""The figures of the paper and its Table 4: the runs that each needs, and what is measured of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from gasam.analysis.robustness import TABLE4
from gasam.lab import output, record
from gasam.lab.analyses import Analysis
from gasam.lab.analyses.attack import Attack
from gasam.lab.analyses.shift import Mixtures, Shift, ShiftedLine, check_images
from gasam.lab.analyses.spectrum import Spectrum
from gasam.lab.output import Chart, Table
from gasam.lab.record import AnalysisRecord, Record
from gasam.lab.report.comparison import configuration_labels
from gasam.lab.storage import write_json
from gasam.lab.tasks import Origin
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan

METHODS = ("baseline", "ga-sam")
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

Measure = Callable[[Analysis, Sequence[Path]], list[AnalysisRecord]]
Found = tuple[list[Table], list[Chart], dict[str, Any]]
"""The tables and charts of a figure, and the numbers of both."""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: analyses of runs, or gradient norms over training, which are in the runs' records."""

    title: str
    tasks: tuple[str, ...]  # the paper's; users may name others
    analyses: Mapping[str, Sequence[Analysis]] = field(default_factory=dict)  # what is measured in each size
    methods: tuple[str, ...] = ("baseline",)  # those to train
    norms: str = ""  # which norms are shown instead of analyses: "whole" or "layers"

    def plans(self, size: str, names: Sequence[str], seeds: Sequence[int], origin: Origin) -> list[Plan]:
        """The runs that the figure needs."""
        if any(isinstance(each, Shift) for each in self.analyses.get(size, ())):
            for task in names:
                check_images(task)
        return [
            plan.make(task, method, size, seed, origin=origin)
            for task in names
            for seed in seeds
            for method in self.methods
        ]

    def write(
        self, place: Path, size: str, files: Sequence[Path], records: Sequence[Record], measure: Measure
    ) -> tuple[list[Table], list[Path]]:
        """Write the figure of runs; return its tables and files. `measure` runs an analysis on the files of records."""
        tables, charts, data = self._norms(records) if self.norms else self._measured(size, files, measure)
        numbers = place.with_name(f"{place.name}.json")
        write_json(numbers, {"title": self.title} | data)
        return tables, [numbers, *output.save(charts, place)]

    def _measured(self, size: str, files: Sequence[Path], measure: Measure) -> Found:
        measured = [(analysis, measure(analysis, files)) for analysis in self.analyses[size]]
        labels = configuration_labels(measured[0][1])
        tables = [analysis.table(found, labels) for analysis, found in measured]
        charts = [chart for analysis, found in measured for chart in analysis.charts(found, labels)]
        data: dict[str, Any] = {"records": [record.as_json(each) for _, found in measured for each in found]}
        if isinstance(measured[0][0], Attack):
            rows = [{"corruption": name, "Baseline": ours, "GA-SAM": walk} for name, (ours, walk) in PAPER.items()]
            note = "Absolute radii are those of the paper's 59 million weights."
            tables.append(Table("The paper's Table 4: BLEU on en-vi", rows, [note]))
            data["paper"] = PAPER
        return tables, charts, data

    def _norms(self, records: Sequence[Record]) -> Found:
        panels: dict[str, dict[str, list[float]]] = {}
        for run in records:
            name = f"{run.task}, seed {run.seed}"
            if self.norms == "whole":
                panels.setdefault("all weights", {})[name] = [row["gradient_norm"] for row in run.curve]
                continue
            sides = {f"{name}: {side}": layers_of(run, side) for side in ("encoder", "decoder")}
            panels |= {title: layers for title, layers in sides.items() if layers} or {name: layers_of(run, "")}
        rows = [
            {"of": title, "line": name}
            | {"mean": f"{fmean(norms):.3g}", "first epoch": f"{norms[0]:.3g}", "last epoch": f"{norms[-1]:.3g}"}
            for title, panel in panels.items()
            for name, norms in panel.items()
        ]
        data = {"norms": panels, "runs": [run.name for run in records]}
        return [Table("Mean |g|", rows)], [norm_chart(*each) for each in panels.items()], data


FIGURES: Mapping[str, Figure] = {
    "figure1": Figure(
        "Figure 1: training loss, test loss and shifted training loss",
        ("mnist",),
        {
            "paper": [ShiftedLine(epochs=20, points=20)],
            "small": [ShiftedLine(epochs=5, points=10)],
            "tiny": [ShiftedLine(epochs=1, points=2)],
        },
    ),
    "figure2": Figure(
        "Figure 2: the length of the shift against the share of shifted data",
        ("mnist",),
        {
            "paper": [Mixtures(epochs=20, trials=100, controls=10)],
            "small": [Mixtures(epochs=5, trials=100, controls=5)],
            "tiny": [Mixtures(epochs=1, trials=5, controls=2)],
        },
    ),
    "figure3": Figure(
        "Figure 3: largest eigenvalues of the empirical Fisher matrix",
        ("imdb", "ptb", "en-vi", "de-en"),
        {"paper": [Spectrum(rows=1024)], "small": [Spectrum(rows=512)], "tiny": [Spectrum(rows=64, k=10)]},
        METHODS,
    ),
    "figure4": Figure("Figure 4: gradient norms over training", ("en-vi",), norms="whole"),
    "figure5": Figure("Figure 5: gradient norms of the layers of encoder and decoder", ("en-vi",), norms="layers"),
    "table4": Figure(
        "Table 4: the metric under corrupted weights",
        ("en-vi",),
        {
            size: [*(search.model_copy(update={"norm": n, "radii": r}) for n, r in TABLE4.items()), search]
            for size, search in {
                "paper": Attack(rows=1024, restarts=0),
                "small": Attack(rows=256, restarts=0, judged=100),
                "tiny": Attack(rows=16, restarts=0, judged=4),
            }.items()
        },
        METHODS,
    ),
}
"""Every figure by its name. Table 4 has the paper's radii, and a search for the radius at which half is lost."""


def layers_of(run: Record, side: str) -> dict[str, list[float]]:
    """The norms of the side's layers by epoch, in the model's order, from the lowest to the highest layer."""
    rows = [row["layer_gradient_norms"] for row in run.curve]
    names = [name for name in rows[0] if name.startswith(side) and rows[0][name] is not None]
    return {name: [row[name] for row in rows] for name in names}


def norm_chart(title: str, panel: Mapping[str, Sequence[float]]) -> Chart:
    points = [
        {"label": name, "seed": 0, "x": epoch, "y": value}
        for name, norms in panel.items()
        for epoch, value in enumerate(norms, 1)
    ]
    colours = {name: name for name in panel}
    return output.lines(points, colours, title=title, x="epoch", y="mean |g| of an epoch's steps")
