"""Terminal output: tables, JSON, and the live progress of runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from gasam.lab.engines.local import Event, Job
from gasam.lab.records import RunRecord
from gasam.lab.search.outcome import Outcome
from gasam.lab.tables import Table, holds_numbers
from gasam.lab.training.progress import Update

# Markup is off, because file names and error messages may look like markup.
console = Console(markup=False, emoji=False, highlight=False)
errors = Console(stderr=True, markup=False, emoji=False, highlight=False)
STYLES = {"done": "none", "failed": "red"}


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(table: Table) -> None:
    shown = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if holds_numbers(table, number) else "left")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(f"- {note}", soft_wrap=not console.is_terminal)


def label(job: Job) -> str:
    name = f"{job.plan.task} {job.plan.choice.method} seed {job.plan.seed}"
    return f"{name}, {job.detail}" if job.detail else name


def describe(record: RunRecord) -> str:
    if record.test is None:
        return f"diverged after {len(record.curve)} epochs"
    return (
        f"{record.metric} valid {record.valid:.2f}, test {record.test:.2f}; "
        f"{record.gradient_evaluations} gradient evaluations, {record.seconds:.0f} s"
    )


def describe_trial(outcome: Outcome) -> str:
    """One line about a trial, which has only a validation score."""
    spent = f"{outcome.gradient_evaluations} gradient evaluations, {outcome.seconds:.0f} s"
    if outcome.valid is not None:
        return f"valid {outcome.valid:.2f}; {spent}"
    return f"{'diverged' if outcome.diverged else 'stopped early'} after {len(outcome.curve)} epochs; {spent}"


class Live:
    """Live progress: on a terminal, a bar for each running job.

    If the output is not a terminal, it prints a line when a run ends, and for a single run also after every epoch.
    `total` is the number of runs; None if it is not known.
    """

    def __init__(self, total: int | None, describe: Callable[[Any], str] = describe) -> None:
        self.total, self.describe, self.ended, self.epoch = total, describe, 0, 1
        self.lines: dict[str, TaskID] = {}
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=errors,
            transient=True,
        )

    def __enter__(self) -> Live:
        if errors.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def watch(self, job: Job, event: Event) -> None:
        kind, value = event
        if kind == "start":
            self.lines[job.name] = self.progress.add_task(label(job), total=None, state="starting")
        elif kind == "update":
            self._update(job, value)
        else:
            self.progress.remove_task(self.lines.pop(job.name))
            self.ended += 1
            result = self.describe(value) if kind == "done" else f"failed: {value} (full message: {job.log})"
            count = self.ended if self.total is None else f"{self.ended}/{self.total}"
            errors.print(f"{count} {label(job)}: {result}", style=STYLES[kind], soft_wrap=True)

    def _update(self, job: Job, update: Update) -> None:
        valid = "" if update.valid is None else f", valid {update.valid:.2f}"
        state = f"epoch {min(update.epoch, update.epochs)}/{update.epochs}{valid}"
        self.progress.update(self.lines[job.name], completed=update.done, total=update.steps, state=state)
        if not errors.is_terminal and self.total == 1 and valid and self.epoch != update.epoch:
            self.epoch = update.epoch
            errors.print(f"{label(job)}: epoch {update.epoch - 1}/{update.epochs}{valid}")
