"""What a table says of a group of runs: result, difference, the paper's number, cost; as text and as values."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

from gasam.lab.paper.studies import Expected
from gasam.lab.report.groups import Group
from gasam.lab.report.statistics import paired_difference, summary

COLUMNS = (
    "vs baseline [95% interval]",
    "paper",
    "paper's difference",
    "gradient evaluations",
    "passes a step",
    "step time",
)
"""What follows the name and the result."""


class Paper(NamedTuple):
    """A result of the paper, and its difference to the paper's baseline."""

    expected: Expected
    difference: Decimal | None


class Cell(NamedTuple):
    """`value` is what JSON can hold; None is a number that nobody measured."""

    text: str = ""
    value: Any = None


Cells = dict[str, Cell]


def row(group: Group | None, baseline: Group | None, paper: Paper | None, step_time: float | None = None) -> Cells:
    """The result and what COLUMNS name, in their order; no group is a row that was not run.

    `step_time` is how many times as long as the baseline's a step takes, where it was measured.
    """
    return {
        "test": Cell("not run") if group is None else result(group),
        "difference": Cell() if group is None or baseline is None else difference(group, baseline),
        "paper": Cell() if paper is None else Cell(paper.expected.text, _numbers(paper.expected)),
        "paper_difference": _paper_difference(paper),
        "gradient_evaluations": Cell() if group is None else _evaluations(group, baseline),
        "passes": Cell() if group is None else _passes(group),
        "step_time": Cell() if step_time is None else Cell(f"{step_time:.2f}x", step_time),
    }


def result(group: Group) -> Cell:
    """Mean and standard deviation on the test split, over how many seeds, and how many runs diverged."""
    found = summary(group.scores.values())
    silent = group.silent
    late = sum(bool(run.diverged) for run in group.runs if run.test is not None)
    scores = {str(seed): score for seed, score in group.scores.items()}
    value = {"mean": None, "std": None, "seeds": scores, "diverged": silent + late}
    if found is None:
        return Cell(f"diverged ({counted(silent, 'seed')})", value)
    spread = "" if found.std is None else f" ± {number(found.std)}"
    count = counted(found.seeds, "seed") + (f", {late} of them diverged later" if late else "")
    count += f", {silent} more diverged" if silent else ""
    return Cell(f"{number(found.mean)}{spread} ({count})", value | {"mean": found.mean, "std": found.std})


def difference(group: Group, baseline: Group) -> Cell:
    found = paired_difference(group.scores, baseline.scores)
    if found is None:
        return Cell()
    interval = "" if found.low is None or found.high is None else f" [{signed(found.low)}, {signed(found.high)}]"
    pairs = "" if found.pairs == len(group.scores) else f" ({counted(found.pairs, 'common seed')})"
    return Cell(f"{signed(found.mean)}{interval}{pairs}", found._asdict())


def mean(group: Group, key: str) -> float:
    """Over the runs that gave a number, if any did: one that diverged stopped early and looks cheap."""
    runs = [run for run in group.runs if run.test is not None] or group.runs
    return sum(float(getattr(run, key)) for run in runs) / len(runs)


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}" if abs(value) < 1000 else f"{value:+,.0f}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _numbers(expected: Expected) -> dict[str, float]:
    return {"mean": float(expected.mean), "std": float(expected.std)}


def _paper_difference(paper: Paper | None) -> Cell:
    found = None if paper is None else paper.difference
    return Cell() if found is None else Cell(f"{found:+}", float(found))


def _evaluations(group: Group, baseline: Group | None) -> Cell:
    spent = mean(group, "gradient_evaluations")
    relative = None if baseline is None or not baseline.scores else spent / mean(baseline, "gradient_evaluations")
    times = "" if relative is None else f" ({relative:.2f}x)"
    return Cell(f"{spent:,.0f}{times}", {"mean": spent, "relative": relative})


def passes(group: Group) -> float | None:
    """Mean gradient evaluations per update. The first records do not have the updates."""
    if not all(run.updates for run in group.runs):
        return None
    return float(sum(run.gradient_evaluations for run in group.runs) / sum(run.updates for run in group.runs))


def _passes(group: Group) -> Cell:
    found = passes(group)
    return Cell() if found is None else Cell(f"{found:.2f}", found)
