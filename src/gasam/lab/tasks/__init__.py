"""All tasks by name, discovered from the `TASKS` of the modules in this folder."""

from __future__ import annotations

import importlib
import pkgutil

from gasam.lab.errors import InputError
from gasam.lab.tasks.task import SIZE_NAMES, Origin, Radius, Task

__all__ = ["SIZE_NAMES", "TASKS", "Origin", "Radius", "Task", "asked_size", "find", "recorded_size"]


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


def find(name: str) -> Task:
    if name not in TASKS:
        raise InputError(f"task must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]


def recorded_size(task: str, asked: str) -> str:
    return find(task).recorded_size(asked)


def asked_size(task: str, recorded: str) -> str:
    return find(task).asked_size(recorded)
