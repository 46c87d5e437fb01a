"""The paper's claim that GA-SAM finds flatter minima, Table 4 and Figure 3, against what was measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from gasam.experiments.analyses import Analysis, Measure
from gasam.experiments.records import Record
from gasam.experiments.report.budgets import as_dear
from gasam.experiments.report.cells import counted
from gasam.experiments.report.groups import Group, baseline_of, grouped
from gasam.experiments.report.statistics import Difference, paired_difference
from gasam.experiments.report.tables import Table
from gasam.experiments.report.verdicts import ONE_SEED, UNDECIDED, standing

CLAIM = (
    "The paper claims that GA-SAM finds flatter minima: on en-vi it keeps more BLEU under every corruption (its Table "
    "4, below), and its 50 largest eigenvalues are smaller (its Figure 3, which has no numbers). Here the measures of "
    "GA-SAM are divided by those of the baseline with the same seed: geometric means over seeds, with Student's 95% "
    "interval of the logarithms. The claim is `reproduced` where the interval beside the baseline with as many epochs, "
    "with which the paper compares, says flatter; one seed only says which way it points."
)
COLUMNS = (
    "task",
    "measure",
    "flat is",
    "Baseline",
    "GA-SAM",
    "ratio",
    "ratio at equal gradient evaluations",
    "verdict",
)


def flatness_table(analyses: Sequence[tuple[Analysis, Sequence[Record]]]) -> Table | None:
    """A row for each measure of each analysis on each task; None if GA-SAM was not analysed beside a baseline."""
    rows = [row for analysis, found in analyses for row in _rows(analysis, found)]
    return Table("Flatness", COLUMNS, tuple(sorted(rows))) if rows else None


def _rows(analysis: Analysis, found: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    measures = {each["run"]["name"]: analysis.measures(each) for each in found}
    groups = grouped(each["run"] for each in found)
    ours = next((group for group in groups if group.method == "ga-sam"), None)
    plain = None if ours is None else baseline_of(ours, groups)
    if ours is None or plain is None:
        return
    dear = as_dear(ours, groups)
    for number, measure in enumerate(measures[ours.runs[0]["name"]]):
        mine, base, long = (_values(group, measures, number) for group in (ours, plain, dear))
        beside = paired_difference(mine, base)
        if beside is not None:
            ratios = (_ratio(beside), _ratio(paired_difference(mine, long)) or "not run")
            means = (_mean(values) for values in (base, mine))
            flat = "more" if measure.more_is_flatter else "less"
            yield ours.task, measure.name.removeprefix("the "), flat, *means, *ratios, _verdict(beside, measure)


def _values(group: Group | None, measures: Mapping[str, Sequence[Measure]], number: int) -> dict[int, float]:
    """Logarithms by seed, of the runs that were analysed and gave a number."""
    found = {run["seed"]: measures[run["name"]][number].value for run in group.runs} if group else {}
    return {seed: math.log(value) for seed, value in found.items() if value is not None and value > 0}


def _mean(logarithms: Mapping[int, float]) -> str:
    return f"{math.exp(statistics.fmean(logarithms.values())):.3g} ({counted(len(logarithms), 'seed')})"


def _ratio(found: Difference | None) -> str:
    if found is None:
        return ""
    ends = (
        "" if found.low is None or found.high is None else f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    )
    return f"{math.exp(found.mean):.2f}{ends}"


def _verdict(found: Difference, measure: Measure) -> str:
    match standing(found, measure.more_is_flatter):
        case None:
            flatter = (found.mean > 0) == measure.more_is_flatter
            return f"not reproduced ({ONE_SEED}, {'flatter' if flatter else 'sharper'})"
        case "better":
            return "reproduced"
        case "worse":
            return "not reproduced (sharper)"
    return f"not reproduced ({UNDECIDED})"
