"""What people see on a terminal: tables, JSON, sentences, and the live progress of jobs on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gasam.lab.engines.engine import Event, Job
from gasam.lab.output import Table
from gasam.lab.record import Record
from gasam.lab.training.loop import Update

QUIET = os.environ.get("RANK", "0") != "0"
"""Of the processes of torchrun only the first prints."""
# Markup is off, because file names and error messages may look like markup. Only a terminal folds cells to its width.
WIDTH = None if sys.stdout.isatty() else 10_000
console = Console(width=WIDTH, quiet=QUIET, markup=False, emoji=False, highlight=False)
errors = Console(stderr=True, quiet=QUIET, markup=False, emoji=False, highlight=False)


def say(text: str, to: Console = errors, style: str | None = None) -> None:
    """Print a sentence in one line, so that what it names can be copied."""
    to.print(text, style=style, soft_wrap=True)


def print_table(table: Table, files: Iterable[Path] = ()) -> None:
    say(table.title, console)
    console.print(table.terminal())
    for note in table.notes:
        say(f"- {note}", console)
    for file in files:
        say(f"saved: {file}", console)


def print_json(value: Any) -> None:
    if not QUIET:
        print(json.dumps(value, indent=1, ensure_ascii=False))


def label(job: Job) -> str:
    name = f"{job.plan.task_name} {job.plan.walk.method} seed {job.plan.seed}"
    return f"{name}, {job.detail}" if job.detail else name


def outcome(record: Any) -> str:
    """The scores and the cost of a run; a trial has only a validation score."""
    if not isinstance(record, Record):
        return "done"
    scores = {"valid": record.valid, "test": record.test}
    shown = [f"{split} {record.metric.shown(score)}" for split, score in scores.items() if score is not None]
    told = f"{record.metric.name} {', '.join(shown)}" if shown else f"diverged after {len(record.curve)} epochs"
    return f"{told}; {record.gradient_evaluations} gradient evaluations, {record.seconds:.1f} s"


class Live:
    """Live progress on standard error: a line when a job ends, and on a terminal a bar for each running job.

    `total` is the number of jobs; None if it is not known.
    """

    def __init__(self, total: int | None) -> None:
        self.total, self.ended, self.epoch = total, 0, 1
        self.bars: dict[str, TaskID] = {}
        self.notes: set[str] = set()
        columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
        self.progress = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)

    def __enter__(self) -> Live:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def watch(self, job: Job, event: Event) -> None:
        kind, value = event
        if job.name not in self.bars:
            self.bars[job.name] = self.progress.add_task(label(job), total=None, state="starting")
        if kind == "update":
            self._update(job, value)
        elif kind == "moved":
            say(f"{label(job)}: {value}")
        elif kind != "start":
            self.progress.remove_task(self.bars.pop(job.name))
            self.ended += 1
            log = "" if job.log is None else f" (full message: {job.log})"
            told, style = (outcome(value), None) if kind == "done" else (f"failed: {value}{log}", "red")
            say(f"{self.ended}{'' if self.total is None else f'/{self.total}'} {label(job)}: {told}", style=style)

    def _update(self, job: Job, update: Update | str) -> None:
        """Show the progress of a run, or of an analysis, which sends texts. A note is printed once for all runs."""
        bar = self.bars[job.name]
        if isinstance(update, str):
            self.progress.update(bar, state=update)
        elif update.note:
            if update.note not in self.notes:
                say(f"- {update.note}")
            self.notes.add(update.note)
        else:
            metric = job.plan.definition.family.followed
            valid = "" if update.valid is None else f", validation {metric.name} {metric.shown(update.valid)}"
            state = f"epoch {min(update.epoch, update.epochs)}/{update.epochs}{valid}"
            self.progress.update(bar, completed=update.done, total=update.steps, state=state)
            if not errors.is_terminal and self.total == 1 and valid and self.epoch != update.epoch:
                self.epoch = update.epoch
                say(f"{label(job)}: epoch {update.epoch - 1}/{update.epochs}{valid}")
