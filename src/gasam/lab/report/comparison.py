"""The table of a task and size: a row a configuration, beside its baseline and the paper, with what each costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gasam.lab.paper.studies import Expected
from gasam.lab.paper.verdicts import Verdict
from gasam.lab.record import Metric, Record
from gasam.lab.report.frame import as_expensive, groups_of, with_longer_baselines
from gasam.lab.report.group import Group
from gasam.lab.report.judgement import collapsed, torn
from gasam.lab.report.labels import differing, duration, named
from gasam.lab.report.matching import paper_of
from gasam.lab.report.notes import notes
from gasam.lab.statistics import FEW, counted, number
from gasam.lab.tables import Cell, Column, Table, tabulated

SAME = "same weights"
"""Stands for the difference to a longer baseline that selected the epochs of the short one."""

SEE_LEFT = "see left"
"""Stands for the difference to a baseline that both has as many gradient evaluations and takes as long."""


@dataclass(frozen=True)
class Line:
    """A row of a table: a group of runs, or None for what was not run, and what the paper prints for it.

    `step_time` is how many times as long as the baseline's a step takes, where it was measured. Then `equally_long` is
    plain training that took as long. In a table of the paper `speaks` marks the group that is judged for its row.
    """

    task: str
    method: str
    name: str
    differing: str
    group: Group | None
    paper: Expected | None
    step_time: float | None = None
    equally_long: Group | None = None
    verdict: Verdict | None = None
    speaks: bool = True


def score_cell(group: Group) -> Cell:
    """Mean and standard deviation on the test split, or the scores of few seeds, and how many runs diverged."""
    mean, std, _ = group.summary or (None, None, 0)
    late, lost = group.diverged_later, len(group.lost)
    seeds = {str(seed): score for seed, score in group.scores.items()}
    if group.summary is None:
        text = f"diverged ({counted(lost, 'seed')})"
    else:
        decimals = group.metric.decimals
        scores = ", ".join(number(score, decimals) for score in seeds.values())
        few = len(seeds) < FEW
        counts = [counted(len(seeds), "seed") + (f": {scores}" if not few and torn(group) else "")]
        counts += [f"{late} of them diverged later"] if late else []
        counts += [f"{lost} more diverged"] if lost else []
        text = f"{scores if few else group.summary.text(decimals)} ({', '.join(counts)})"
    text += ", collapsed" if collapsed(group) else ""
    return Cell(text, {"mean": mean, "std": std, "seeds": seeds, "diverged": lost + late})


def _difference(group: Group) -> Cell:
    found, plain = group.difference(group.baseline), group.baseline
    if found is None or plain is None:
        return Cell()
    if group.method == "baseline":
        return Cell(SAME if group.has_scores_of(plain) else group.versus(plain), found._asdict())
    return Cell(_against(group, plain), found._asdict())


def _at_equal_time(line: Line) -> str:
    """The difference to plain training that took as long, unless the column before already has it."""
    if line.group is None or line.equally_long is None:
        return ""
    found = _against(line.group, line.equally_long)
    return SEE_LEFT if found and line.equally_long is line.group.longer else found


def _at_equal_evaluations(group: Group) -> str:
    if group.longer is None:
        return ""
    return SAME if group.longer_is_the_same else _against(group, group.longer)


def _against(group: Group, opponent: Group) -> str:
    """The difference to plain training, and how long that was trained if not as long as the first row."""
    found = group.versus(opponent)
    return ", ".join(filter(None, (found, duration(opponent)))) if found else ""


def _evaluations(group: Group) -> Cell:
    spent, relative = group.mean("gradient_evaluations"), group.relative_cost
    times = "" if relative is None else f" ({relative:.2f}x)"
    return Cell(f"{spent:,.0f}{times}", {"mean": spent, "relative": relative})


def _paper(line: Line) -> Cell:
    paper = line.paper
    return Cell(paper.text, {"mean": float(paper.mean), "std": float(paper.std)}) if paper else Cell()


def _paper_difference(line: Line) -> Cell:
    if line.paper is None or line.paper.difference is None:
        return Cell()
    slip = f" (printed {line.paper.slip})" if line.paper.slip else ""
    return Cell(f"{line.paper.difference:+}{slip}", float(line.paper.difference))


def _optional(found: float | None, form: str) -> Cell:
    return Cell() if found is None else Cell(form.format(found), found)


def of_runs(cell: Callable[[Group], Cell | str], missing: str = "") -> Callable[[Line], Cell | str]:
    return lambda line: missing if line.group is None else cell(line.group)


LABEL: Column[Line] = Column("", lambda line: Cell("", named(line.name, line.differing)), "label")
NAME: Column[Line] = Column("method", lambda line: Cell(line.name, line.method), "method")
SETTINGS: Column[Line] = Column("settings", lambda line: line.differing)
TEST = Column("test", of_runs(score_cell, "not run"), "test")
DIFFERENCE = Column("vs baseline [95% interval]", of_runs(_difference), "difference")
PAPER: tuple[Column[Line], ...] = (
    Column("paper", _paper, "paper"),
    Column("paper's difference", _paper_difference, "paper_difference"),
)
COST: tuple[Column[Line], ...] = (
    Column("gradient evaluations", of_runs(_evaluations), "gradient_evaluations"),
    Column("passes a step", of_runs(lambda group: _optional(group.passes, "{:.2f}")), "passes"),
    Column("step time", lambda line: _optional(line.step_time, "{:.2f}x"), "step_time"),
)
BUDGETS: tuple[Column[Line], ...] = (
    Column("vs baseline, equal gradient evaluations", of_runs(_at_equal_evaluations)),
    Column("vs baseline, equal time", _at_equal_time),
    Column("vs fresh masks", of_runs(lambda group: group.versus(group.fresh))),
)


def comparison(
    records: Iterable[Record],
    task: str,
    size: str,
    flags: str | None = None,
    step_times: Mapping[str, float] | None = None,
) -> Table:
    """Every configuration that was run on a task in a size, a row each, in the order of the methods.

    Args:
        records: Those of other tasks and sizes are left out.
        task: The task.
        size: The size, as records name it.
        flags: What `gasam tune` needs to use the same data and settings; None if it is not known.
        step_times: Those of `step_time.step_times`, by configuration.
    """
    return comparison_of(groups_of(records, task, size), task, size, flags, step_times)


def comparison_of(
    groups: Sequence[Group],
    task: str,
    size: str,
    flags: str | None = None,
    step_times: Mapping[str, float] | None = None,
) -> Table:
    """A table with a row for each group.

    Args:
        groups: Groups of this task and size, of which some may be left out.
        task: As for `comparison`.
        size: As for `comparison`.
        flags: As for `comparison`.
        step_times: As for `comparison`.
    """
    times = with_longer_baselines(groups, step_times or {})

    def time_of(group: Group) -> float:
        return times.get(group.configuration, math.nan) * group.mean("updates")

    lines = [
        Line(
            task,
            group.method,
            group.title,
            differing(group, group.other_walk()),
            group,
            paper_of(group) if group.usual else None,
            times.get(group.configuration),
            as_expensive(group, groups, time_of) if group.method != "baseline" else None,
        )
        for group in groups
    ]
    scores = _with_units(groups[0].metric) if groups else (TEST, DIFFERENCE, *PAPER)
    columns = [LABEL, NAME, SETTINGS, *scores, *COST, *BUDGETS]
    return tabulated(f"{task}, size {size}", columns, lines, notes(task, size, groups, flags))


def _with_units(metric: Metric) -> Iterator[Column[Line]]:
    """The columns that hold the metric, with its unit in their titles."""
    yield TEST._replace(title=described(metric))
    yield DIFFERENCE._replace(title=DIFFERENCE.title.replace(" [", f", {metric.unit_of_differences} ["))
    paper, difference = PAPER
    yield paper._replace(title=f"{paper.title}, {metric.unit}" if metric.unit else paper.title)
    yield difference._replace(title=f"{difference.title}, {metric.unit_of_differences}")


def described(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{metric.name}{unit} ({'higher' if metric.higher_is_better else 'lower'} is better)"
