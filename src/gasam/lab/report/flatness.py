"""The paper's claim that GA-SAM finds flatter minima, Table 4 and Figure 3, against what was measured here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gasam.lab.analyses import Analysis, Measure
from gasam.lab.records import AnalysisRecord
from gasam.lab.report.budgets import as_dear
from gasam.lab.report.cells import counted
from gasam.lab.report.groups import RADIUS, Group, baseline_of, grouped
from gasam.lab.report.statistics import Difference, paired_difference
from gasam.lab.report.verdicts import ONE_SEED, UNDECIDED, standing
from gasam.lab.tables import Table
from gasam.lab.tasks import find

CLAIM = (
    "The paper claims that GA-SAM finds flatter minima: on en-vi it keeps more BLEU under every corruption (its Table "
    "4, below), and its 50 largest eigenvalues are smaller (its Figure 3, which has no numbers). Here the measures of "
    "GA-SAM are divided by those of the baseline with the same seed: geometric means over seeds, with Student's 95% "
    "interval of the logarithms. The claim is `reproduced` where the interval beside the baseline with as many epochs, "
    "with which the paper compares, says flatter; one seed only says which way it points. Rises of the loss are not in "
    "the paper; where T is not one, each model has a ball of its own, as in training."
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


def flatness_table(analyses: Iterable[tuple[Analysis, Sequence[AnalysisRecord]]]) -> Table | None:
    """A row for each measure of each analysis on a task of the paper; None if GA-SAM was not analysed beside a
    baseline."""
    rows = [row for analysis, found in analyses if _is_evidence(found[0]) for row in _rows(analysis, found)]
    return Table("Flatness", COLUMNS, tuple(sorted(rows))) if rows else None


def _is_evidence(each: AnalysisRecord) -> bool:
    return find(each.run.task).kind == "paper"


def _rows(analysis: Analysis, found: Sequence[AnalysisRecord]) -> Iterator[tuple[str, ...]]:
    measures = {each.run.name: analysis.measures(each) for each in found}
    groups = grouped(each.run for each in found)
    ours = next((group for group in groups if group.method == "ga-sam" and _usual(group)), None)
    plain = None if ours is None else baseline_of(ours, groups)
    if ours is None or plain is None:
        return
    dear = as_dear(ours, groups)
    for number, measure in enumerate(measures[ours.runs[0].name]):
        mine, base, long = (_values(group, measures, number) for group in (ours, plain, dear))
        beside = paired_difference(mine, base)
        if beside is not None:
            ratios = (_ratio(beside, mine), _ratio(paired_difference(mine, long), mine))
            means = (_mean(values) for values in (base, mine))
            flat = "more" if measure.more_is_flatter else "less"
            where = f"{ours.task}, size {ours.size}"
            yield where, measure.name.removeprefix("the "), flat, *means, *ratios, _verdict(beside, measure)


def _usual(group: Group) -> bool:
    """Whether it is the method as the tables have it, but for its radius."""
    return not group.other_settings and not group.other_walk().keys() - set(RADIUS)


def _values(group: Group | None, measures: Mapping[str, Sequence[Measure]], number: int) -> dict[int, float]:
    """Logarithms by seed, of the runs that were analysed and gave a number."""
    found = {run.seed: measures[run.name][number].value for run in group.runs} if group else {}
    return {seed: math.log(value) for seed, value in found.items() if value is not None and value > 0}


def _mean(logarithms: Mapping[int, float]) -> str:
    return f"{math.exp(statistics.fmean(logarithms.values())):.3g} ({counted(len(logarithms), 'seed')})"


def _ratio(found: Difference | None, mine: Mapping[int, float]) -> str:
    if found is None:
        return "not measured"
    ends = (
        "" if found.low is None or found.high is None else f" [{math.exp(found.low):.2f}, {math.exp(found.high):.2f}]"
    )
    pairs = "" if found.pairs == len(mine) else f" ({counted(found.pairs, 'common seed')})"
    return f"{math.exp(found.mean):.2f}{ends}{pairs}"


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
