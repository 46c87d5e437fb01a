"""How the answer changed with the baseline: GA-SAM's gain in every version of a task's small size."""

from __future__ import annotations

from gasam.lab.report.contents import Contents
from gasam.lab.report.group import Group
from gasam.lab.report.versions import page_of, versions
from gasam.lab.statistics import number
from gasam.lab.tables import Table, of_texts
from gasam.lab.tasks import TASKS


def history_table(contents: Contents) -> Table:
    """A row for each version with a baseline and GA-SAM, the first version first; only tasks with several of them."""
    rows = []
    for task in TASKS:
        found = [(size, pair) for size in reversed(versions(task)) if (pair := _pair(contents, task, size))]
        if len(found) > 1:
            rows += [_row(page_of(contents, task, size), *pair) for size, pair in found]
    return of_texts("How the answer changed", rows)


def _pair(contents: Contents, task: str, size: str) -> tuple[Group, Group] | None:
    """Plain training and GA-SAM in their usual configurations."""
    groups = [group for group in contents.groups(task, size) if group.usual]
    walked = next((group for group in groups if group.method == "ga-sam" and group.scores), None)
    return (walked.baseline, walked) if walked and walked.baseline else None


def _row(page: str, baseline: Group, walked: Group) -> dict[str, str]:
    metric, summary = walked.metric, baseline.summary
    return {
        "task": f"[{walked.task}](results/{page})",
        "size": walked.size,
        "metric": metric.name,
        "plain training": "diverged" if summary is None else number(summary.mean, metric.decimals),
        "GA-SAM minus plain training [95% interval]": walked.versus(baseline),
        "walk": "; ".join(walked.sources),
    }
