"""What the paper's tables cost here: seconds a run from the records, and the hours that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from gasam.lab.paper.studies import Study, relative_cost
from gasam.lab.records import RunRecord
from gasam.lab.report.frame import RADIUS, groups_of
from gasam.lab.statistics import counted
from gasam.lab.tables import Table, of_texts


def pilot_table(records: Sequence[RunRecord], tasks: Iterable[str], size: str) -> Table:
    """Seconds a run: the median, and of how many."""
    rows = []
    for task in tasks:
        plain, ours = (_seconds(records, task, size, method) for method in ("baseline", "ga-sam"))
        row = {"task": task, "baseline, seconds a run": _told(plain), "GA-SAM, seconds a run": _told(ours)}
        rows.append(row | {"GA-SAM to baseline": f"{median(ours) / median(plain):.2f}x" if plain and ours else ""})
    return of_texts(f"Seconds a run, size {size}", rows)


def hours_table(studies: Iterable[Study], records: Sequence[RunRecord], size: str) -> Table:
    """Runs and hours of each table: every run costs the baseline's median times its gradient evaluations a step."""
    rows = []
    for study in studies:
        seconds = {task: _seconds(records, task, size, "baseline") for task in study.tasks}
        known = {task: median(found) for task, found in seconds.items() if found}
        lacking = ", ".join(task for task in study.tasks if task not in known)
        costs = [(plan.task, relative_cost(plan)) for plan in study.plans(size)]
        hours = sum(known[task] * cost for task, cost in costs if task in known) / 3600
        rows.append(
            {
                "table": study.number,
                "runs": str(len(costs)),
                "baseline runs that cost as much": f"{sum(cost for _, cost in costs):.0f}",
                "hours, one run at a time": f"{hours:.1f}{f' without {lacking}' if lacking else ''}"
                if known
                else "not known",
            }
        )
    return of_texts(f"Hours, size {size}", rows)


def _seconds(records: Sequence[RunRecord], task: str, size: str, method: str) -> list[float]:
    """Of the runs that did not diverge, in the size's own settings and with the method's own K."""
    return [
        record.seconds
        for group in groups_of(records, task, size)
        if group.method == method and not group.other_settings
        if not group.other_walk().keys() - RADIUS - {"same_noise"}
        for record in group.records
        if not record.diverged
    ]


def _told(seconds: Sequence[float]) -> str:
    return f"{median(seconds):,.0f} ({counted(len(seconds), 'run')})" if seconds else "not run"
