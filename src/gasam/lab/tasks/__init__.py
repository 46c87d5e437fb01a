"""All tasks by name, discovered from the `TASKS` of the modules in this folder."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from gasam.lab.errors import InputError
from gasam.lab.tasks.own_model import is_file, load_task
from gasam.lab.tasks.task import SIZE_NAMES, Origin, Task

__all__ = [
    "SIZE_NAMES",
    "TASKS",
    "Origin",
    "Task",
    "find",
    "name_of",
]


PAPER_ORDER = ("imdb", "ptb", "en-vi", "de-en", "mnist")


def _discovered() -> dict[str, Task]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found: list[Task] = [task for module in modules for task in getattr(module, "TASKS", ())]
    return {task.name: task for task in sorted(found, key=_place)}


def _place(task: Task) -> tuple[int, int, str]:
    """The paper's tasks in its order, then their twins, then the user's own; any others follow by name."""
    original = task.name if task.kind == "paper" else task.kind.removeprefix("twin of ")
    known = PAPER_ORDER.index(original) if original in PAPER_ORDER else len(PAPER_ORDER)
    return ("paper", "twin", "yours").index(task.kind.split()[0]), known, task.name


TASKS = _discovered()


def find(reference: str) -> Task:
    """The task with this name, or the task that this Python file defines."""
    if is_file(reference):
        return load_task(reference)
    if reference not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, or a Python file such as task.py, got {reference!r}")
    return TASKS[reference]


def name_of(reference: str) -> str:
    """The name of a task in records, without loading its file."""
    return Path(reference).stem if is_file(reference) else find(reference).name
