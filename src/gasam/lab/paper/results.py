"""The paper's tables beside our runs: row by row, with a verdict for each cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.methods import Walk, Walks
from gasam.lab.output import Table
from gasam.lab.paper.studies import Row, Study
from gasam.lab.paper.verdicts import Verdict, judge, paper_difference
from gasam.lab.record import Record
from gasam.lab.report import comparison
from gasam.lab.report.comparison import Comparison, described

SIZE = {"epsilon", "budget", "cap", "norm", "walk_progress", "source"}
"""What a search for the size of a walk may set."""


def paper_table(study: Study, records: Sequence[Record], size: str, tuned: Path | None = None) -> Table:
    """A table of the paper, task by task, with our runs of every walk: the paper's, the recommended and the tuned one.

    Args:
        study: The table.
        records: Our runs; those of other sizes are left out.
        size: The size of the runs.
        tuned: A folder with searches, if the runs of a row that sets an epsilon used their sizes.
    """
    found = {c.records[0].task: c for c in Comparison.of(record for record in records if record.size == size)}
    shown = [task for task in study.tasks if task in found] or study.tasks
    lines = [line for task in shown for line in _lines(study, task, found.get(task), size, tuned)]
    notes = [f"{task}: {described(tasks.find(task).family.metric)}." for task in shown]
    if left_out := [task for task in study.tasks if task not in shown]:
        notes.append(f"Not run in this size: {', '.join(left_out)}.")
    return Table(f"{study.title}, size {size}", [text for text, _ in lines], notes, [value for _, value in lines])


def _lines(
    study: Study, task: str, found: Comparison | None, size: str, tuned: Path | None
) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    for row in study.rows_on(task):
        ours = runs_of(row, found, size, tuned) if found is not None else []
        yield from (_line(row, each, verdict_of(row, each)) for each in ours)
        if not ours:
            yield _line(row, None, verdict_of(row, None))


def _line(row: Row, ours: comparison.Row | None, verdict: Verdict | None) -> tuple[dict[str, str], dict[str, Any]]:
    printed, slip = row.expected.difference, row.expected.slip
    cost = None if ours is None else ours.relative_cost
    source = "" if ours is None or ours.method == "baseline" else _source(ours.walk)
    text = {
        "task": row.task,
        "row": row.label,
        "paper": row.expected.text,
        "paper's difference": "" if printed is None else f"{printed:+}" + (f" (printed {slip})" if slip else ""),
        "walk": source,
        "ours": "not run" if ours is None else ours.score,
        "difference [95% interval]": "" if ours is None else ours.versus(ours.baseline),
        "evaluations": "" if cost is None else f"{cost:.2f}x",
        "verdict": "" if verdict is None else str(verdict),
    }
    difference = None if ours is None else ours.difference(ours.baseline)
    value: dict[str, Any] = {
        "task": row.task, "row": row.label, "method": row.method, "paper": row.expected.text, "walk": source,
        "key": None if ours is None else ours.key,
        "test": None if ours is None else {"mean": ours.mean, "std": ours.spread, "seeds": ours.scores},
        "difference": None if difference is None else difference._asdict(),
        "verdict": None if verdict is None else verdict._asdict(),
    }  # fmt: skip
    return text, value


def _source(walk: Walk) -> str:
    """Whose walk it is; one that the user gave is in a row because it is the paper's or the recommended one."""
    kind = "epsilon" if walk.budget is None else "budget"
    given = {"epsilon": "paper", "budget": "recommended"}[kind]
    return {"tuned": f"tuned {kind}", "given": given}.get(walk.source, walk.source)


def verdict_of(row: Row, ours: comparison.Row | None) -> Verdict | None:
    """The baseline has none."""
    if row.expected.baseline is None:
        return None
    claim = paper_difference(row.expected, row.expected.baseline)
    return judge(claim, ours, higher_is_better=tasks.find(row.task).family.metric.higher_is_better)


def runs_of(row: Row, found: Comparison, size: str, tuned: Path | None = None) -> list[comparison.Row]:
    """Our configurations of a row: with the task's own settings, and one of the walks that stand for the paper's."""
    wanted = [walk.identity() for walk in _walks(row, size, tuned)]
    settings = row.plan(size, 1).settings.model_dump(mode="json")
    usual = [each for each in found.rows if each.first.settings == settings and each.method == row.method]
    if row.method == "baseline":
        return usual[:1]
    return [each for each in usual if each.walk.identity() in wanted or _is_tuned(each.walk, wanted, row)]


def _walks(row: Row, size: str, tuned: Path | None) -> Iterator[Walk]:
    kinds: tuple[Walks, ...] = ("paper", "recommended")
    for walks in kinds:
        try:
            yield row.plan(size, 1, walks=walks).walk
        except InputError:  # the appendix has no epsilon for it
            continue
    if tuned is not None:
        yield row.plan(size, 1, tuned=tuned).walk


def _is_tuned(walk: Walk, wanted: Sequence[dict[str, object]], row: Row) -> bool:
    """Whether it is the walk of a row that sets no size, with a size that was found on validation."""
    own = {name: value for name, value in walk.identity().items() if name not in SIZE}
    alike = any(own == {name: value for name, value in each.items() if name not in SIZE} for each in wanted)
    return walk.source == "tuned" and row.times is None and alike
