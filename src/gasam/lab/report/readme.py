"""README's table: what was measured on the paper's tasks, a method a row and a task a column."""

from __future__ import annotations

from collections.abc import Sequence

from gasam.lab import tasks
from gasam.lab.methods import METHODS, TABLE1
from gasam.lab.records import RunRecord
from gasam.lab.report import cells
from gasam.lab.report.comparison import data_notes, described
from gasam.lab.report.groups import Group, baseline_of, grouped, labels
from gasam.lab.report.headline import headline
from gasam.lab.report.matching import paper_of, usual_settings
from gasam.lab.tables import Table, markdown
from gasam.lab.tasks import RECORDED_SIZES, TASKS

SHOWN = (*TABLE1, "freelb")
NOTHING = "Nothing has been measured on the paper's tasks yet: no record is in `results/`."


def block(found: Sequence[RunRecord]) -> str:
    """README's part: for each task the size nearest to the paper's, a row for each method of which there is a run; the
    ablations are left to the page."""
    if not (shown := evidence(found)):
        return f"{NOTHING}\n"
    kinds = {task: size for size in reversed(RECORDED_SIZES) for task in TASKS if of_kind(shown, task, size)}
    columns = {(task, kinds[task]): grouped(of_kind(shown, task, kinds[task])) for task in TASKS if task in kinds}
    differing = {task: "; ".join(data_notes(groups)) for (task, _), groups in columns.items()}
    notes = [
        *(f"{task}: {text}." for task, text in differing.items() if text),
        "`small` models are a fraction of the paper's: all numbers that differ, intervals, cost and every run are on "
        "the [results page](docs/results.md).",
    ]
    return "\n\n".join([*headline(found), markdown(_overview(columns, notes))])


def evidence(found: Sequence[RunRecord]) -> list[RunRecord]:
    """Without the embedded twins and the user's own data."""
    return [record for record in found if tasks.find(record.task).kind == "paper"]


def of_kind(found: Sequence[RunRecord], task: str, size: str) -> list[RunRecord]:
    return [record for record in found if (record.task, record.size) == (task, size)]


def _overview(columns: dict[tuple[str, str], list[Group]], notes: Sequence[str]) -> Table:
    """A method a row and a task a column, as in the paper's Table 1; each method in its most usual configuration."""
    chosen: dict[str, dict[str, Group]] = {task: {} for task, _ in columns}
    texts: dict[tuple[str, str], str] = {}
    for (task, _), groups in columns.items():
        for group, name in zip(groups, labels(groups), strict=True):
            if group.method in SHOWN and group.method not in chosen[task]:
                chosen[task][group.method] = group
                differing = name.removeprefix(METHODS[group.method].title)
                texts[group.method, task] = _brief(group, groups) + differing
    heads = [
        f"{task}, size {size}: {described(TASKS[task].family.metric)}; {_seeds(list(chosen[task].values()))}"
        for task, size in columns
    ]
    rows = tuple(
        (METHODS[name].title, *(texts.get((name, task), "not run") for task in chosen))
        for name in SHOWN
        if any(name in some for some in chosen.values())
    )
    return Table("Results", ("method", *heads), rows, tuple(notes))


def _brief(group: Group, groups: Sequence[Group]) -> str:
    baseline, paper = baseline_of(group, groups), paper_of(group) if usual_settings(group, groups) else None
    mean = cells.result(group).text.partition(" (")[0]
    if lost := len(group.runs) - len(group.scores):
        mean += f", {lost} of {len(group.runs)} diverged" if group.scores else ""
    if group.method == "baseline":
        return mean if paper is None else f"{mean} (paper {paper.expected.mean})"
    gain = cells.difference(group, baseline).text.partition(" ")[0] if baseline else ""
    theirs = f"paper {paper.difference:+}" if paper and paper.difference is not None else ""
    return f"{mean} ({', '.join(filter(None, (gain, theirs)))})" if gain or theirs else mean


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups}) or [0]
    return cells.counted(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
