"""Terminal output: tables, JSON, and the live progress of runs."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gasam.lab.engines.engine import Event, Job
from gasam.lab.output import Table
from gasam.lab.record import Record
from gasam.lab.training.loop import Update

# Markup is off, because file names and error messages may look like markup.
console = Console(markup=False, emoji=False, highlight=False)
errors = Console(stderr=True, markup=False, emoji=False, highlight=False)
COMMAND = re.compile(r"`[^`]*`")
SPACE = "\0"
"""Stands for a space where a line must not end: a command that is copied has to be in one piece."""
STYLES = {"done": "none", "failed": "red"}


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(table: Table) -> None:
    """On a terminal cells are folded to its width; elsewhere every row is one line."""
    say(table.title)
    wide = Console(width=10_000, markup=False, emoji=False, highlight=False)
    (console if console.is_terminal else wide).print(table.terminal())
    for note in table.notes:
        say(f"- {note}")


def wrapped(text: str, width: int) -> str:
    """The text in lines of this width at most. Words and commands in backticks that are longer stay whole."""
    joined = COMMAND.sub(lambda found: found[0].replace(" ", SPACE), text)
    indent = "  " if text.startswith("- ") else ""
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)
    return "\n".join(lines).replace(SPACE, " ")


def say(text: str, to: Console = console, style: str | None = None) -> None:
    """Print a sentence: on a terminal in lines that end between words, elsewhere in one line."""
    to.print(wrapped(text, to.width) if to.is_terminal else text, style=style, soft_wrap=True)


def label(job: Job) -> str:
    name = f"{job.plan.task_name} {job.plan.walk.method} seed {job.plan.seed}"
    return f"{name}, {job.detail}" if job.detail else name


def failed_because(job: Job) -> str:
    """Why a job failed, and where its whole message is, unless that could not be written."""
    return f"failed: {job.error}" if job.log is None else f"failed: {job.error} (full message: {job.log})"


def describe(job: Job, record: Record) -> str:
    if record.test is None:
        return f"diverged after {len(record.curve)} epochs"
    assert record.valid is not None, "a run has both scores or none"
    metric = record.metric
    return (
        f"{metric.name} valid {metric.shown(record.valid)}, test {metric.shown(record.test)}; "
        f"{record.gradient_evaluations} gradient evaluations, {seconds(record.seconds)}"
    )


def seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def describe_trial(job: Job, record: Record) -> str:
    """One line about a trial, which has only a validation score."""
    spent = f"{record.gradient_evaluations} gradient evaluations, {seconds(record.seconds)}"
    if record.valid is None:
        return f"diverged after {len(record.curve)} epochs; {spent}"
    return f"{record.metric.name} valid {record.metric.shown(record.valid)}; {spent}"


class Live:
    """Live progress: on a terminal, a bar for each running job.

    If the output is not a terminal, it prints a line when a run ends, and for a single run also after every epoch.
    `total` is the number of runs; None if it is not known.
    """

    def __init__(self, total: int | None, describe: Callable[[Job, Any], str] = describe) -> None:
        self.total, self.describe, self.ended, self.epoch = total, describe, 0, 1
        self.lines: dict[str, TaskID] = {}
        self.notes: set[str] = set()
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
        elif kind == "update" and value.note:
            self._note(value.note)
        elif kind == "update":
            self._update(job, value)
        elif kind == "moved":
            errors.print(f"{label(job)}: {value}", soft_wrap=True)
        else:
            self.progress.remove_task(self.lines.pop(job.name))
            self.ended += 1
            lost = failed_because(job) if kind == "failed" else "stopped early, among the worst quarter of the trials"
            result = self.describe(job, value) if kind == "done" else lost
            count = self.ended if self.total is None else f"{self.ended}/{self.total}"
            say(f"{count} {label(job)}: {result}", errors, STYLES.get(kind))

    def _note(self, text: str) -> None:
        """Print a note once, also if several runs send it."""
        if text not in self.notes:
            self.notes.add(text)
            say(f"- {text}", errors)

    def _update(self, job: Job, update: Update) -> None:
        metric = job.plan.definition.family.followed
        valid = "" if update.valid is None else f", validation {metric.name} {metric.shown(update.valid)}"
        state = f"epoch {min(update.epoch, update.epochs)}/{update.epochs}{valid}"
        self.progress.update(self.lines[job.name], completed=update.done, total=update.steps, state=state)
        if not errors.is_terminal and self.total == 1 and valid and self.epoch != update.epoch:
            self.epoch = update.epoch
            errors.print(f"{label(job)}: epoch {update.epoch - 1}/{update.epochs}{valid}", soft_wrap=True)
