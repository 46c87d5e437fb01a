"""How the answer changed with the baseline: GA-SAM's gain in every version of a task's small size."""

from __future__ import annotations

from collections.abc import Sequence

from gasam.lab.records import RunRecord
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.statistics import number
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import TASKS
from gasam.lab.tasks.task import DEFAULT_SIZE


def history_table(records: Sequence[RunRecord]) -> Table:
    """A row for each version with a baseline and GA-SAM, the first version first; only tasks with several of them."""
    rows = []
    for task, definition in TASKS.items():
        versions = [size for size in reversed(list(definition.sizes)) if size.partition("@")[0] == DEFAULT_SIZE]
        found = [(size, pair) for size in versions if (pair := _pair(records, task, size))]
        if len(found) > 1:
            rows += [_row(task, size, *pair) for size, pair in found]
    return of_texts("How the answer changed", rows)


def _pair(records: Sequence[RunRecord], task: str, size: str) -> tuple[Group, Group] | None:
    """Plain training and GA-SAM in their usual configurations."""
    groups = [group for group in groups_of(records, task, size) if group.usual]
    walked = next((group for group in groups if group.method == "ga-sam" and group.scores), None)
    return (walked.baseline, walked) if walked and walked.baseline else None


def _row(task: str, size: str, baseline: Group, walked: Group) -> dict[str, str]:
    metric, summary = walked.metric, baseline.summary
    return {
        "task": f"[{task}](results/{task}.md)",
        "size": size,
        "metric": metric.name,
        "plain training": "diverged" if summary is None else number(summary.mean, metric.decimals),
        "GA-SAM minus plain training [95% interval]": walked.versus(baseline),
        "walk": "; ".join(walked.sources),
    }
