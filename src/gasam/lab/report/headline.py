"""What the main result is, in two sentences, from the records: GA-SAM on a well initialised baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gasam.lab.families.classification import TextClassification
from gasam.lab.methods import METHODS, TABLE1
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.contrast import contrast
from gasam.lab.report.groups import Group, baseline_of, grouped
from gasam.lab.report.matching import usual_settings
from gasam.lab.tasks import TASKS

FIRST, SECOND = "small", "small@2"


def headline(found: Sequence[RunRecord]) -> Iterator[str]:
    """For every text classification task of the paper that was run in both versions of size small."""
    for task, definition in TASKS.items():
        if definition.kind != "paper" or definition.family is not TextClassification:
            continue
        first, second = (_pair(found, task, size) for size in (FIRST, SECOND))
        if first and second:
            yield f"{_sentences(task, *first, *second)} {_beside_others(found, second[1])}".strip()


def _pair(found: Sequence[RunRecord], task: str, size: str) -> tuple[Group, Group] | None:
    """The baseline and GA-SAM, as usual."""
    groups = grouped(record for record in found if (record.task, record.size) == (task, size))
    sources = ("recommended",) if size == SECOND else ()
    usual = next((group for group in groups if group.method == "ga-sam" and _is_usual(group, groups, *sources)), None)
    baseline = baseline_of(usual, groups) if usual else None
    return (baseline, usual) if baseline and usual else None


def _is_usual(group: Group, groups: Sequence[Group], *sources: str) -> bool:
    return usual_settings(group, groups) and (not sources or set(group.sources) == set(sources))


def _sentences(task: str, old_baseline: Group, old: Group, baseline: Group, ours: Group) -> str:
    gain, old_gain = cells.difference(ours, baseline).text, cells.difference(old, old_baseline).text
    return (
        f"**{task}**, size {SECOND}, {len(ours.scores)} seeds: GA-SAM with default settings reaches {_mean(ours)}, "
        f"plain training {_mean(baseline)}, a difference of {gain}. In size {FIRST}@1 the difference is {old_gain}, "
        f"with a tuned epsilon, over a weaker baseline of {_mean(old_baseline)}, whose initial embeddings have a "
        f"standard deviation of 1 instead of 0.1."
    )


def _beside_others(found: Sequence[RunRecord], ours: Group) -> str:
    """GA-SAM and the other methods with the same budget, cap and schedule."""
    groups = grouped(record for record in found if (record.task, record.size) == (ours.task, ours.size))
    others = [
        (METHODS[group.method].title, group)
        for group in groups
        if group.method in TABLE1 and group.method != ours.method and group.sources == ["recommended"]
    ]
    return contrast("GA-SAM", ours, others)


def _mean(group: Group) -> str:
    return cells.result(group).text.partition(" ")[0]
