"""The list of runs for a terminal that is too narrow for its table: two lines for each run."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from gasam.lab.report.run_list import ListedRun, data_names, metric_of, walk_in_words

TITLES = ("valid", "test", "seconds", "epochs", "seed", "method and walk")
INDENT, GAP = 4, 2


def run_lines(runs: Sequence[ListedRun], width: int) -> list[str]:
    """The lines of the list: scores, cost, method and walk of a run, and below them the path of its record.

    Runs of the same task, size and data are together under a heading, in the given order. A path is never broken.
    """
    cells = {run.file: _cells(run) for run in runs}
    widths = [max(map(len, column)) for column in zip(TITLES[:-1], *(row[:-1] for row in cells.values()), strict=True)]
    lines = _row(TITLES, widths, width)
    for heading, some in _groups(runs).items():
        lines += ["", *textwrap.wrap(heading, width, break_long_words=False, break_on_hyphens=False)]
        for run in some:
            lines += [*_row(cells[run.file], widths, width), " " * INDENT + str(run.file)]
    return lines


def _groups(runs: Sequence[ListedRun]) -> dict[str, list[ListedRun]]:
    """The runs by their heading, such as "classify, size small@2, data a.csv: accuracy (higher is better)"."""
    data = data_names(runs)
    found: dict[str, list[ListedRun]] = {}
    for run in runs:
        record = run.record
        name = data[record.data.hash]
        of_data = f", data {name}" if name else ""
        metric = metric_of(record)
        better = "higher" if metric.higher_is_better else "lower"
        heading = f"{record.task}, size {record.size}{of_data}: {metric.name} ({better} is better)"
        found.setdefault(heading, []).append(run)
    return found


def _cells(run: ListedRun) -> tuple[str, ...]:
    record, metric = run.record, metric_of(run.record)
    scores = ("diverged" if score is None else metric.shown(score) for score in (record.valid, record.test))
    walk = walk_in_words(record.walk)
    spent = (f"{record.seconds:,.1f} s", str(record.settings["epochs"]), str(record.seed))
    return (*scores, *spent, f"{record.method}, {walk}" if walk else record.method)


def _row(cells: Sequence[str], widths: Sequence[int], width: int) -> list[str]:
    """The numbers in columns, and beside them the method and its walk, in as many lines as it needs."""
    numbers = "".join(f"{cell:>{wide}}" + " " * GAP for cell, wide in zip(cells, widths, strict=False))
    room = max(width - len(numbers), 1)
    first, *others = textwrap.wrap(cells[-1], room, break_long_words=False, break_on_hyphens=False)
    return [numbers + first, *(" " * len(numbers) + other for other in others)]
