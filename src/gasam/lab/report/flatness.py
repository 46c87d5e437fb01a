"""The paper's claim that GA-SAM finds flatter minima, Table 4 and Figure 3, against what was measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gasam.lab.analyses import Analysis, Measure
from gasam.lab.paper.verdicts import judge_flatness
from gasam.lab.records import AnalysisRecord
from gasam.lab.report.frame import group_runs
from gasam.lab.report.group import RADIUS, Group
from gasam.lab.statistics import FEW, Difference, counted, paired_difference
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import find

CLAIMS = {"attack": "Table 4", "spectrum": "Figure 3"}
"""Where the paper makes the claim, by the kind of analysis. Other measures are not in the paper."""
ADDITION = "not in the paper"
Logarithms = Mapping[int, float]
"""Of a measure, by seed."""


def flatness_tables(analyses: Iterable[tuple[Analysis, Sequence[AnalysisRecord]]]) -> dict[str, Table]:
    """By task and size a row for each measure of GA-SAM and its baseline; only for the paper's tasks."""
    rows: dict[str, list[dict[str, str]]] = {}
    for analysis, found in analyses:
        for row in _rows(analysis, found):
            rows.setdefault(f"{found[0].run.task}, size {found[0].run.size}", []).append(row)
    return {
        place: of_texts(place, sorted(some, key=lambda row: row["measure"])) for place, some in sorted(rows.items())
    }


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
            verdict = judge_flatness(difference, more_is_flatter=measure.more_is_flatter)
            yield {
                "measure": measure.name.removeprefix("the "),
                "flatter is": "higher" if measure.more_is_flatter else "lower",
                "Baseline": _mean(plain),
                "GA-SAM": _mean(ours),
                "ratio": _ratio(difference),
                "ratio, equal gradient evaluations": _ratio(paired_difference(ours, longer), same=longer == plain),
                "verdict": verdict.word if analysis.kind in CLAIMS else ADDITION,
                "reason": verdict.reason or "flatter",
            }


def _logarithms(group: Group | None, measures: Mapping[str, Sequence[Measure]], number: int) -> Logarithms:
    """Of the runs that were analysed and gave a number."""
    found = {run.seed: measures[run.name][number].value for run in group.records} if group else {}
    return {seed: math.log(value) for seed, value in found.items() if value is not None and value > 0}


def _mean(logarithms: Logarithms) -> str:
    return f"{math.exp(statistics.fmean(logarithms.values())):.3g}"


def _ratio(found: Difference | None, *, same: bool = False) -> str:
    if found is None or same:
        return "same weights" if same else "not measured"
    ends = ""
    if found.low is not None and found.high is not None and found.pairs >= FEW:
        ends = f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    return f"{math.exp(found.mean):.2f}{ends} ({counted(found.pairs, 'seed')})"
