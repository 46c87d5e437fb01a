"""The commands that only list: tasks, methods and data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gasam.lab.cli.display import print_json, print_table
from gasam.lab.data import download
from gasam.lab.data.locations import data_directory
from gasam.lab.data.manifest import MANIFESTS
from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS
from gasam.lab.tables import Table
from gasam.lab.tasks import TASKS, find
from gasam.lab.tasks.sizes import for_users, in_records
from gasam.lab.training.plan import make


def list_tasks(json: bool) -> None:
    if json:
        print_json({name: _task(name) for name in TASKS})
        return
    rows = [(name, task.kind, task.about, task.family.metric.name) for name, task in TASKS.items()]
    notes = (
        "Sizes: paper, small (default), small@1 (its first version), tiny.",
        "A twin needs no download; `gasam data` shows what the others need.",
    )
    print_table(Table("Tasks", ("task", "data", "what", "metric"), tuple(rows), notes))


def _task(name: str) -> dict[str, Any]:
    task = TASKS[name]
    sizes = {for_users(name, size): asdict(settings) for size, settings in task.sizes.items()}
    return {"about": task.about, "data": task.kind, "metric": task.family.metric.name, "sizes": sizes}


def list_methods(task: str, size: str, json: bool) -> None:
    find(task).settings(in_records(task, size))
    found: dict[str, dict[str, Any]] = {}
    for name, method in METHODS.items():
        try:
            choice = make(task, name, in_records(task, size)).choice
            found[name] = {"about": method.about, "epsilon_source": str(choice.epsilon_source)} | choice.identity()
        except InputError as error:
            found[name] = {"about": method.about, "epsilon_source": str(error)}
    if json:
        print_json(found)
        return
    rows = tuple((name, entry["about"], _walk(entry), entry["epsilon_source"]) for name, entry in found.items())
    print_table(
        Table(f"Methods, as used for {task} in size {size}", ("method", "minimises", "walk", "where from"), rows, ())
    )


def _walk(entry: dict[str, Any]) -> str:
    if not entry.get("epsilon") and not entry.get("budget"):
        return ""
    late = f", from epoch {entry['start_epoch']}" if entry["start_epoch"] > 1 else ""
    budget, cap = entry.get("budget"), entry.get("cap")
    size = f"budget {budget:g}" if budget else f"{entry['epsilon']:.3g}"
    capped = f", cap {cap:g}" if cap else ""
    return f"L{entry['norm']} {size}{capped}, K={entry['steps']}{late}".replace("Linf", "L-inf")


def list_data(given: Path | None, json: bool) -> None:
    directory = data_directory(given)
    states = {task: download.inspect(task, directory) for task in MANIFESTS}
    if json:
        found = {task: [asdict(file) | {"path": str(file.path)} for file in files] for task, files in states.items()}
        print_json({"directory": str(directory), "tasks": found})
        return
    rows = [(task, file.name, *_state(file)) for task, files in states.items() for file in files]
    notes = (
        f"looked in {directory}: --data-dir or GASAM_DATA name another folder",
        "`gasam data get TASK` downloads; the embedded tasks and your own files need nothing of this",
    )
    print_table(Table("Data", ("task", "file", "size", "checksum"), tuple(rows), notes))


def _state(file: download.FileState) -> tuple[str, str]:
    if not file.found:
        return "optional" if file.substitute else "missing", ""
    return f"{file.size / 2**20:.1f} MB", {"ok": "as known", "unknown": "none known"}.get(file.checksum, "different")
