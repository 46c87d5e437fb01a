"""Table 4: the metric under the paper's corruptions of the weights, and the radius at which half of it is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gasam.analysis.robustness import TABLE4
from gasam.lab.analyses.robustness import Robustness
from gasam.lab.paper.figures import FigureStudy, Finding, Setting, analysed, rows_for
from gasam.lab.records import AnalysisRecord, RunRecord, as_json
from gasam.lab.tables import Table

PAPER = {
    "none": ("30.60", "31.15"),
    "L2, 0.05": ("30.26", "30.90"),
    "L2, 0.1": ("29.36", "30.26"),
    "L2, 0.2": ("6.46", "17.87"),
    "L-inf, 0.0001": ("30.30", "30.72"),
    "L-inf, 0.0002": ("29.95", "30.67"),
    "L-inf, 0.0005": ("5.33", "29.14"),
}
"""BLEU of baseline and GA-SAM on En-Vi under attack."""


class Table4(FigureStudy):
    title = "Table 4: the metric under corrupted weights"
    tasks = ("en-vi",)

    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        from gasam.lab.report.labels import run_labels

        judged = {"paper": None, "small": 100, "tiny": 4}[setting.size]
        searched = Robustness(rows=rows_for(setting.size, 1024, 256, 16), restarts=0, judged=judged)
        listed = [replace(searched, norm=norm, radii=TABLE4[norm]) for norm in (2.0, math.inf)]
        measured = {each: analysed(each, runs, setting) for each in listed}
        able = [run for run, each in zip(runs, measured[listed[0]], strict=True) if has_half(each)]
        if able:
            measured[searched] = analysed(searched, able, setting)
        shown = searched if able else listed[0]
        return Finding(
            self.title,
            {"paper": PAPER, "records": [as_json(each) for some in measured.values() for each in some]},
            shown.draw(measured[shown], run_labels(measured[shown])),
            shown.sentence(measured[shown], run_labels(measured[shown])),
            (*(each.table(some, run_labels(some)) for each, some in measured.items()), paper_table()),
        )


def paper_table() -> Table:
    rows = tuple((name, *values) for name, values in PAPER.items())
    note = "Absolute radii are those of the paper's 59 million weights."
    return Table("The paper's Table 4: BLEU on en-vi", ("corruption", "Baseline", "GA-SAM"), rows, (note,))


def has_half(each: AnalysisRecord) -> bool:
    """Whether there is anything above the metric of a model that knows nothing: a search asks when half is lost."""
    found = each.found
    return not found["higher_is_better"] or float(found["clean_metric"]) > found["floor"]
