"""What the paper's tables cost here: seconds a run from the records, and the hours that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pandas import Series

from gasam.lab.paper.studies import Study, relative_cost
from gasam.lab.records import RunRecord
from gasam.lab.report.frame import RADIUS, groups_of
from gasam.lab.statistics import counted
from gasam.lab.tables import Column, Table, tabulated

Seconds = dict[str, "Series[float]"]


def pilot_table(records: Sequence[RunRecord], tasks: Iterable[str], size: str) -> Table:
    """Seconds a run: the median, and of how many."""
    columns: list[Column[tuple[str, Seconds]]] = [
        Column("task", lambda row: row[0]),
        Column("baseline, seconds a run", lambda row: _told(row[1]["baseline"])),
        Column("GA-SAM, seconds a run", lambda row: _told(row[1]["ga-sam"])),
        Column("GA-SAM to baseline", lambda row: _ratio(row[1])),
    ]
    return tabulated(
        f"Seconds a run, size {size}", columns, [(task, seconds_of(records, task, size)) for task in tasks]
    )


def hours_table(studies: Iterable[Study], records: Sequence[RunRecord], size: str) -> Table:
    """Runs and hours of each table: every run costs the baseline's median times its gradient evaluations a step."""
    rows = []
    for study in studies:
        plain = {task: seconds_of(records, task, size)["baseline"] for task in study.tasks}
        known = {task: float(seconds.median()) for task, seconds in plain.items() if len(seconds)}
        costs = [(plan.task, relative_cost(plan)) for plan in study.plans(size)]
        hours = sum(known[task] * cost for task, cost in costs if task in known) / 3600
        told = f"{hours:.1f}" if known else "not known"
        if known and len(known) < len(study.tasks):
            told += f" without {', '.join(task for task in study.tasks if task not in known)}"
        rows.append((study.number, str(len(costs)), f"{sum(cost for _, cost in costs):.0f}", told))
    columns = ("table", "runs", "baseline runs that cost as much", "hours, one run at a time")
    return Table(f"Hours, size {size}", columns, tuple(rows))


def seconds_of(records: Sequence[RunRecord], task: str, size: str) -> Seconds:
    """By method, of the runs that did not diverge, in the size's own settings and with the method's own K."""
    found: dict[str, list[float]] = {"baseline": [], "ga-sam": []}
    for group in groups_of(records, task, size):
        if (
            group.method in found
            and not group.other_settings
            and not group.other_walk().keys() - RADIUS - {"same_noise"}
        ):
            found[group.method] += [record.seconds for record in group.records if not record.diverged]
    return {method: Series(seconds, dtype=float) for method, seconds in found.items()}


def _told(seconds: Series[float]) -> str:
    return f"{seconds.median():,.0f} ({counted(len(seconds), 'run')})" if len(seconds) else "not run"


def _ratio(seconds: Seconds) -> str:
    plain, ours = seconds["baseline"], seconds["ga-sam"]
    return f"{ours.median() / plain.median():.2f}x" if len(plain) and len(ours) else ""
