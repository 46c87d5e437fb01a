"""What README says of the results: the main one in two sentences, and a table with a task a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gasam.lab.families.classification import TextClassification
from gasam.lab.methods import METHODS, TABLE1
from gasam.lab.records import RunRecord
from gasam.lab.report.comparison import described
from gasam.lab.report.frame import Group, groups_of
from gasam.lab.report.labels import differing, named
from gasam.lab.report.matching import paper_of
from gasam.lab.report.notes import contrast, data_notes
from gasam.lab.statistics import counted, number, signed
from gasam.lab.tables import Table
from gasam.lab.tasks import TASKS

SHOWN = (*TABLE1, "freelb")
FIRST, SECOND = "small", "small@2"


def headline(records: Sequence[RunRecord]) -> Iterator[str]:
    """GA-SAM on a well initialised baseline: for every text classification task of the paper that was run in both
    versions of size small."""
    for task, definition in TASKS.items():
        if definition.kind != "paper" or definition.family is not TextClassification:
            continue
        second = groups_of(records, task, SECOND)
        recommended = [group for group in second if group.sources == ["recommended"]]
        old, new = _ga_sam(groups_of(records, task, FIRST)), _ga_sam(recommended)
        if old and old.baseline and new and new.baseline:
            others = [each for each in recommended if each.method in TABLE1 and each is not new]
            told = (
                f"**{task}**, size {SECOND}, {len(new.scores)} seeds: GA-SAM with default settings reaches "
                f"{_mean(new)}, plain training {_mean(new.baseline)}, a difference of {new.versus(new.baseline)}. "
                f"In size {FIRST}@1 the difference is {old.versus(old.baseline)}, with a tuned epsilon, over a weaker "
                f"baseline of {_mean(old.baseline)}, whose initial embeddings have a standard deviation of 1 instead "
                f"of 0.1. {contrast('GA-SAM', new, others)}"
            )
            yield told.strip()


def overview(records: Sequence[RunRecord]) -> Table:
    """Each method in its most usual configuration, on each task in the size nearest to the paper's; the ablations are
    left to the page."""
    chosen: dict[str, dict[str, Group]] = {}
    notes = []
    for task in TASKS:
        groups = next(filter(None, (groups_of(records, task, size) for size in TASKS[task].sizes)), [])
        first = {group.method: group for group in reversed(groups) if group.method in SHOWN}
        if groups:
            metric = described(groups[0].metric)
            chosen[f"{task}, size {groups[0].size}: {metric}; {_seeds(list(first.values()))}"] = first
        if found := data_notes(groups):
            notes.append(f"{task}: {'; '.join(found)}.")
    rows = []
    for method in SHOWN:
        texts = [_brief(groups[method]) if method in groups else "not run" for groups in chosen.values()]
        if set(texts) != {"not run"}:
            rows.append((METHODS[method].title, *texts))
    return Table("Results", ("method", *chosen), tuple(rows), tuple(notes))


def _ga_sam(groups: Sequence[Group]) -> Group | None:
    return next((group for group in groups if group.method == "ga-sam" and group.usual), None)


def _mean(group: Group) -> str:
    return number(group.summary.mean) if group.summary else "no number"


def _brief(group: Group) -> str:
    """The mean, in brackets the gain and the paper's, and what sets the group apart."""
    mean = f"diverged ({counted(len(group.lost), 'seed')})" if group.summary is None else str(group.summary)
    if group.lost and group.scores:
        mean += f", {len(group.lost)} of {len(group.records)} diverged"
    paper, found = paper_of(group) if group.usual else None, group.difference(group.baseline)
    gains = [signed(found.mean)] if found and group.method != "baseline" else []
    if paper is not None:
        gains.append(f"paper {paper.mean}" if paper.difference is None else f"paper {paper.difference:+}")
    return named(named(mean, ", ".join(gains)), differing(group, group.other_walk()))


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.records) for group in groups}) or [0]
    return counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
