"""The paper's claim that GA-SAM finds flatter minima, Table 4 and Figure 3, against what was measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gasam.lab.analyses import Analysis, Measure
from gasam.lab.paper.verdicts import ONE_SEED, UNDECIDED
from gasam.lab.records import AnalysisRecord
from gasam.lab.report.frame import RADIUS, Group, grouped
from gasam.lab.statistics import counted, paired_difference
from gasam.lab.tables import Column, Table, tabulated
from gasam.lab.tasks import find

Logarithms = Mapping[int, float]


class Flatness(NamedTuple):
    """One measure of one analysis: its logarithms by seed for the baseline, for GA-SAM and for the longer baseline."""

    task: str
    measure: Measure
    plain: Logarithms
    ours: Logarithms
    longer: Logarithms

    @property
    def verdict(self) -> str:
        found = paired_difference(self.ours, self.plain)
        standing = found.standing(self.measure.more_is_flatter) if found else None
        if found is None or standing is None:
            flatter = found is not None and (found.mean > 0) == self.measure.more_is_flatter
            return f"not reproduced ({ONE_SEED}, {'flatter' if flatter else 'sharper'})"
        words = {"better": "reproduced", "worse": "not reproduced (sharper)"}
        return words.get(standing, f"not reproduced ({UNDECIDED})")


COLUMNS: tuple[Column[Flatness], ...] = (
    Column("task", lambda row: row.task),
    Column("measure", lambda row: row.measure.name.removeprefix("the ")),
    Column("flat is", lambda row: "more" if row.measure.more_is_flatter else "less"),
    Column("Baseline", lambda row: _mean(row.plain)),
    Column("GA-SAM", lambda row: _mean(row.ours)),
    Column("ratio", lambda row: _ratio(row.ours, row.plain)),
    Column("ratio at equal gradient evaluations", lambda row: _ratio(row.ours, row.longer)),
    Column("verdict", lambda row: row.verdict),
)


def flatness_table(analyses: Iterable[tuple[Analysis, Sequence[AnalysisRecord]]]) -> Table | None:
    """A row for each measure of each analysis on a task of the paper; None if GA-SAM was not analysed beside a
    baseline."""
    rows = [
        row for analysis, found in analyses if find(found[0].run.task).kind == "paper" for row in _rows(analysis, found)
    ]
    rows.sort(key=lambda row: (row.task, row.measure.name.removeprefix("the ")))
    return tabulated("Flatness", COLUMNS, rows) if rows else None


def _rows(analysis: Analysis, found: Sequence[AnalysisRecord]) -> Iterator[Flatness]:
    """Of GA-SAM as the tables have it, but for its radius."""
    measures = {each.run.name: analysis.measures(each) for each in found}
    usual = [
        group
        for group in grouped(each.run for each in found)
        if group.method == "ga-sam" and not group.other_settings and not group.other_walk().keys() - RADIUS
    ]
    if not usual or usual[0].baseline is None:
        return
    ours = usual[0]
    for number, measure in enumerate(measures[ours.records[0].name]):
        values = [_logarithms(group, measures, number) for group in (ours.baseline, ours, ours.longer)]
        if values[0].keys() & values[1].keys():
            yield Flatness(f"{ours.task}, size {ours.size}", measure, *values)


def _logarithms(group: Group | None, measures: Mapping[str, Sequence[Measure]], number: int) -> Logarithms:
    """By seed, of the runs that were analysed and gave a number."""
    found = {run.seed: measures[run.name][number].value for run in group.records} if group else {}
    return {seed: math.log(value) for seed, value in found.items() if value is not None and value > 0}


def _mean(logarithms: Logarithms) -> str:
    return f"{math.exp(statistics.fmean(logarithms.values())):.3g} ({counted(len(logarithms), 'seed')})"


def _ratio(ours: Logarithms, theirs: Logarithms) -> str:
    found = paired_difference(ours, theirs)
    if found is None:
        return "not measured"
    ends = (
        "" if found.low is None or found.high is None else f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    )
    pairs = "" if found.pairs == len(ours) else f" ({counted(found.pairs, 'common seed')})"
    return f"{math.exp(found.mean):.2f}{ends}{pairs}"
