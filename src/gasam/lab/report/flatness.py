"""The paper's claim that GA-SAM finds flatter minima, Table 4 and Figure 3, against what was measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gasam.lab.analyses import Analysis, Measure
from gasam.lab.paper.verdicts import ONE_SEED, UNDECIDED
from gasam.lab.records import AnalysisRecord
from gasam.lab.report.frame import RADIUS, Group, group_runs
from gasam.lab.statistics import Difference, counted, paired_difference
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import find

Logarithms = Mapping[int, float]
"""Of a measure, by seed."""


def flatness_table(analyses: Iterable[tuple[Analysis, Sequence[AnalysisRecord]]]) -> Table | None:
    """A row for each measure of each analysis on a task of the paper; None if GA-SAM was not analysed beside a
    baseline."""
    rows = [row for analysis, found in analyses for row in _rows(analysis, found)]
    rows.sort(key=lambda row: (row["task"], row["measure"]))
    return of_texts("Flatness", rows) if rows else None


def _rows(analysis: Analysis, found: Sequence[AnalysisRecord]) -> Iterator[dict[str, str]]:
    """Of GA-SAM as the tables have it, but for its radius."""
    measures = {each.run.name: analysis.measures(each) for each in found}
    usual = [
        group
        for group in group_runs(each.run for each in found)
        if group.method == "ga-sam" and not group.other_settings and not group.other_walk().keys() - RADIUS
    ]
    if not usual or find(usual[0].task).kind != "paper":
        return
    group = usual[0]
    for number, measure in enumerate(measures[group.records[0].name]):
        ours, plain, longer = (_logarithms(each, measures, number) for each in (group, group.baseline, group.longer))
        if difference := paired_difference(ours, plain):
            yield {
                "task": f"{group.task}, size {group.size}",
                "measure": measure.name.removeprefix("the "),
                "flat is": "more" if measure.more_is_flatter else "less",
                "Baseline": _mean(plain),
                "GA-SAM": _mean(ours),
                "ratio": _ratio(difference, ours),
                "ratio at equal gradient evaluations": _ratio(paired_difference(ours, longer), ours),
                "verdict": _verdict(difference, measure),
            }


def _logarithms(group: Group | None, measures: Mapping[str, Sequence[Measure]], number: int) -> Logarithms:
    """Of the runs that were analysed and gave a number."""
    found = {run.seed: measures[run.name][number].value for run in group.records} if group else {}
    return {seed: math.log(value) for seed, value in found.items() if value is not None and value > 0}


def _mean(logarithms: Logarithms) -> str:
    return f"{math.exp(statistics.fmean(logarithms.values())):.3g} ({counted(len(logarithms), 'seed')})"


def _ratio(found: Difference | None, ours: Logarithms) -> str:
    if found is None:
        return "not measured"
    ends = ""
    if found.low is not None and found.high is not None:
        ends = f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    pairs = "" if found.pairs == len(ours) else f" ({counted(found.pairs, 'common seed')})"
    return f"{math.exp(found.mean):.2f}{ends}{pairs}"


def _verdict(found: Difference, measure: Measure) -> str:
    match found.standing(measure.more_is_flatter):
        case None:
            flatter = (found.mean > 0) == measure.more_is_flatter
            return f"not reproduced ({ONE_SEED}, {'flatter' if flatter else 'sharper'})"
        case "better":
            return "reproduced"
        case "worse":
            return "not reproduced (sharper)"
    return f"not reproduced ({UNDECIDED})"
