"""The list of the runs in a folder: what each run was, what it scored and what it cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gasam.lab import record as records
from gasam.lab.errors import InputError
from gasam.lab.record import DataOfRun, Record
from gasam.lab.report.frame import names_of_data
from gasam.lab.tables import Cell, Column, Table, tabulated

FOLDERS = (".", "gradient-norms")
"""Where a folder of runs holds records: `gasam reproduce figure4` keeps those with gradient norms apart."""


class ListedRun(NamedTuple):
    file: Path
    record: Record


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list; an empty condition accepts all runs.

    Args:
        tasks: The names of tasks.
        methods: The names of methods.
        seeds: The seeds.
        best: List only the run with the best validation score of each task, size and data.
    """

    tasks: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: Sequence[int] = ()
    best: bool = False

    def applied(self, runs: Sequence[ListedRun]) -> list[ListedRun]:
        some = [run for run in runs if self._accepts(run.record)]
        if not self.best:
            return some
        kinds: dict[tuple[str, ...], list[ListedRun]] = {}
        for run in some:
            if run.record.valid is not None:
                kinds.setdefault((run.record.task, run.record.size, run.record.data.hash), []).append(run)
        return [min(alike, key=lambda run: _rank(run.record, run.record.valid)) for alike in kinds.values()]

    def _accepts(self, record: Record) -> bool:
        chosen = ((self.tasks, record.task), (self.methods, record.method), (self.seeds, record.seed))
        return all(not allowed or value in allowed for allowed, value in chosen)


def read_runs(folder: Path) -> tuple[list[ListedRun], list[str]]:
    """The runs of a folder by name, and a sentence about each file that cannot be read; raise if there is no run."""
    found: list[ListedRun] = []
    faults: list[str] = []
    for file in (file for each in FOLDERS for file in sorted((folder / each).glob("*.json"))):
        try:
            found.append(ListedRun(file, records.read(file)))
        except InputError as error:
            faults.append(str(error))
    if not found:
        raise InputError(
            faults[0] if faults else f"no records in {folder}: train something first, or name another folder"
        )
    return found, faults


def walk_in_words(walk: Mapping[str, Any]) -> str:
    """The size of a walk, such as "L-inf budget 0.1, cap 0.01, K = 2"; empty for plain training."""
    if not walk.get("epsilon") and not walk.get("budget"):
        return ""
    norm = "L-inf" if walk["norm"] == "inf" else f"L{walk['norm']:g}"
    parts = [f"{norm} budget {walk['budget']:g}" if walk.get("budget") else f"{norm} {walk['epsilon']:.3g}"]
    parts += [f"cap {walk['cap']:g}"] if walk.get("cap") else []
    parts += [f"K = {walk['steps']}"] if walk["steps"] > 1 else []
    parts += [f"from epoch {walk['start_epoch']}"] if walk.get("start_epoch", 1) > 1 else []
    return ", ".join(parts)


def _score(name: str) -> Callable[[ListedRun], Cell]:
    def cell(run: ListedRun) -> Cell:
        value = getattr(run.record, name)
        return Cell("diverged") if value is None else Cell(run.record.metric.shown(value), value)

    return cell


def _own(text: Callable[[Record], Any], form: str = "{}") -> Callable[[ListedRun], Cell]:
    return lambda run: Cell(form.format(text(run.record)), text(run.record))


COLUMNS: tuple[Column[ListedRun], ...] = (
    Column("task", _own(lambda record: record.task), "task"),
    Column("size", _own(lambda record: record.size), "size"),
    Column("data", _own(lambda record: ", ".join(record.data.files)), "data"),
    Column("", lambda run: Cell("", run.record.data.hash), "data_hash"),
    Column("method", _own(lambda record: record.method), "method"),
    Column("size of the walk", _own(lambda record: walk_in_words(record.walk)), "walk"),
    Column("epochs", _own(lambda record: record.settings["epochs"]), "epochs"),
    Column("seed", _own(lambda record: record.seed), "seed"),
    Column("metric", _own(lambda record: record.metric.name), "metric"),
    Column("valid", _score("valid"), "valid"),
    Column("test", _score("test"), "test"),
    Column("gradient evaluations", _own(lambda record: record.gradient_evaluations, "{:,}"), "gradient_evaluations"),
    Column("seconds", _own(lambda record: record.seconds, "{:,.1f} s"), "seconds"),
    Column("record", lambda run: Cell(str(run.file), str(run.file.resolve())), "path"),
)
KEYS = tuple(column.key for column in COLUMNS)


def run_table(runs: Sequence[ListedRun], folder: Path) -> Table:
    """A numbered row for each run. The numbers lead from one part of a wide table to the next."""
    numbers = {run.file: number for number, run in enumerate(runs, start=1)}
    first: Column[ListedRun] = Column("run", lambda run: str(numbers[run.file]))
    data = data_names(runs)
    told: Column[ListedRun] = Column(
        "data", lambda run: Cell(data[run.record.data.hash], run.record.data.files), "data"
    )
    columns = (first, *(told if column.key == "data" else column for column in COLUMNS))
    return tabulated(f"Runs in {folder}", columns, runs)


def data_names(runs: Sequence[ListedRun]) -> dict[str, str]:
    """A name for the data of each hash: it has a part of the hash where two runs of a task have different data."""
    kinds: dict[tuple[str, str], list[DataOfRun]] = {}
    for run in runs:
        kinds.setdefault((run.record.task, run.record.size), []).append(run.record.data)
    return {key: name for some in kinds.values() for key, name in names_of_data(some).items()}


def runs_as_csv(table: Table) -> str:
    """All columns of the rows as CSV; a score that does not exist is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, KEYS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"data": ", ".join(row["data"])} for row in table.values)
    return text.getvalue()


def sorted_runs(runs: Sequence[ListedRun], by: str) -> list[ListedRun]:
    """The runs in the order of a column: the best score first, the smallest of other numbers first."""
    if by not in KEYS:
        raise InputError(f"--sort must be one of {', '.join(KEYS)}, got {by!r}")
    if by in ("valid", "test"):
        return sorted(runs, key=lambda run: (run.record.metric.name, _rank(run.record, getattr(run.record, by))))
    [column] = [column for column in COLUMNS if column.key == by]
    return sorted(runs, key=lambda run: _value(column.cell(run)))


def _value(cell: Cell | str) -> Any:
    return cell.value if isinstance(cell, Cell) else cell


def _rank(record: Record, score: float | None) -> tuple[bool, float]:
    """Smaller is better; runs without a score come last."""
    value = 0.0 if score is None else score
    return score is None, -value if record.metric.higher_is_better else value
