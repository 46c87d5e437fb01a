"""Names of analysed runs that tell them apart in tables, pictures and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from gasam.lab.records import AnalysisRecord
from gasam.lab.report.groups import grouped, labels


def run_labels(found: Sequence[AnalysisRecord]) -> list[str]:
    """A name for each analysed run; task and size are in front if they differ."""
    runs = [each.run for each in found]
    several_tasks = len({run.task for run in runs}) > 1
    several_sizes = len({run.size for run in runs}) > 1
    names = {}
    for kind in dict.fromkeys((run.task, run.size) for run in runs):
        groups = grouped(run for run in runs if (run.task, run.size) == kind)
        for group, label in zip(groups, labels(groups), strict=True):
            for run in group.runs:
                names[run.name] = f"{label}, seed {run.seed}" if len(group.runs) > 1 else label
    found_labels = []
    for run in runs:
        front = ", ".join([run.task] * several_tasks + [f"size {run.size}"] * several_sizes)
        name = names.get(run.name, run.name)  # a copy of a run under another name
        found_labels.append(f"{front}: {name}" if front else name)
    return found_labels
