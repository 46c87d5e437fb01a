"""What the paper's tables cost here: seconds a run from the records, and the hours that follow."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from gasam.lab.paper.studies import Study, relative_cost
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.groups import RADIUS, Group, grouped
from gasam.lab.tables import Table


def seconds_of_runs(records: Sequence[RunRecord], task: str, size: str) -> dict[str, list[float]]:
    """By method, baseline and GA-SAM, in the size's own settings and with the method's own K."""
    groups = grouped(record for record in records if (record.task, record.size) == (task, size))
    return {
        method: [float(run.seconds) for group in groups if _typical(group, method) for run in _ended(group)]
        for method in ("baseline", "ga-sam")
    }


def pilot_table(records: Sequence[RunRecord], tasks: Iterable[str], size: str) -> Table:
    """Seconds a run: the median, and of how many."""
    rows = []
    for task in tasks:
        found = seconds_of_runs(records, task, size)
        plain, ours = (_median(found[method]) for method in ("baseline", "ga-sam"))
        times = "" if plain is None or ours is None else f"{ours / plain:.2f}x"
        texts = [_told(found[method]) for method in ("baseline", "ga-sam")]
        rows.append((task, *texts, times))
    columns = ("task", "baseline, seconds a run", "GA-SAM, seconds a run", "GA-SAM to baseline")
    return Table(f"Seconds a run, size {size}", columns, tuple(rows))


def hours_table(studies: Iterable[Study], records: Sequence[RunRecord], size: str) -> Table:
    """Runs and hours of each table: every run costs the baseline's median times its gradient evaluations a step."""
    rows = []
    for study in studies:
        medians = {task: _median(seconds_of_runs(records, task, size)["baseline"]) for task in study.tasks}
        known = {task: seconds for task, seconds in medians.items() if seconds is not None}
        budget = study.budget(size)
        lacking = [task for task in study.tasks if task not in known]
        told = f"{hours(study, size, known):.1f}" if known else "not known"
        told += f" without {', '.join(lacking)}" if known and lacking else ""
        rows.append((study.title.partition(":")[0], str(budget.runs), f"{budget.baseline_runs:.0f}", told))
    columns = ("table", "runs", "baseline runs that cost as much", "hours, one run at a time")
    return Table(f"Hours, size {size}", columns, tuple(rows))


def hours(study: Study, size: str, seconds: Mapping[str, float]) -> float:
    """Of the tasks whose `seconds` a run of the baseline are known."""
    plans = study.plans(size, list(seconds))
    return sum(seconds[plan.task] * relative_cost(plan) for plan in plans) / 3600


def _typical(group: Group, method: str) -> bool:
    same = group.method == method and not group.other_settings
    return same and not group.other_walk().keys() - {*RADIUS, "same_noise"}


def _ended(group: Group) -> list[RunRecord]:
    return [run for run in group.runs if not run.diverged]


def _median(seconds: Sequence[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


def _told(seconds: Sequence[float]) -> str:
    if not seconds:
        return "not run"
    return f"{statistics.median(seconds):,.0f} ({cells.counted(len(seconds), 'run')})"
