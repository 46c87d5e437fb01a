"""All tasks by name. A new task is a module of this folder, named in `MODULES` below."""

from __future__ import annotations

from pathlib import Path

from gasam.lab.errors import InputError
from gasam.lab.tasks import embedded, imdb, mnist, own_data, ptb, translation
from gasam.lab.tasks.own_model import is_file, load_task
from gasam.lab.tasks.task import SIZE_NAMES, Origin, Task

__all__ = ["SIZE_NAMES", "TASKS", "Origin", "Task", "find", "name_of"]

MODULES = (imdb, ptb, translation, mnist, embedded, own_data)
TASKS: dict[str, Task] = {task.name: task for module in MODULES for task in module.TASKS}


def find(reference: str) -> Task:
    if is_file(reference):
        return load_task(reference)
    if reference not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, or a Python file such as task.py, got {reference!r}")
    return TASKS[reference]


def name_of(reference: str) -> str:
    """The name of a task in records, without loading its file."""
    return Path(reference).stem if is_file(reference) else find(reference).name
