"""The commands `gasam tasks`, `gasam methods` and `gasam data`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from gasam.lab.cli.options import command
from gasam.lab.data import published
from gasam.lab.data.corpus import data_directory
from gasam.lab.data.published import FileState
from gasam.lab.display import print_json, print_table
from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS
from gasam.lab.output import Table
from gasam.lab.tasks import TASKS, find
from gasam.lab.training.plan import make


@command
def tasks(*, json: bool = False) -> None:
    """List the tasks with their data and metrics; --json adds the settings of each size."""
    found = {
        name: {"about": task.about, "data": task.kind, "metric": task.family.metric.name}
        for name, task in TASKS.items()
    }
    if json:
        sizes = {name: {size: own.model_dump() for size, own in task.sizes.items()} for name, task in TASKS.items()}
        print_json({name: told | {"sizes": sizes[name]} for name, told in found.items()})
        return
    rows = [{"task": name} | told for name, told in found.items()]
    notes = (
        "Sizes: paper, small (default), tiny; ptb also has medium.",
        "A twin needs no download. `gasam data` shows the files that the paper's tasks need.",
    )
    print_table(Table("Tasks", rows, notes))


@command
def methods(*, task: str = "imdb", size: str | None = None, json: bool = False) -> None:
    """List the methods with the walk that each uses on a task, and the source of its size."""
    size = size or find(task).default_size
    find(task).settings(size)  # raises if there is no such size
    rows, found = list[dict[str, str]](), dict[str, dict[str, Any]]()
    for name, method in METHODS.items():
        try:
            walk = make(task, name, size).walk
            found[name] = {"about": method.about, "in_words": str(walk)} | walk.model_dump()
            told = f"{walk} ({walk.source})" if str(walk) else ""
        except InputError as error:  # the method cannot be used with this model
            told = str(error)
            found[name] = {"about": method.about, "source": told}
        rows.append({"method": name, "minimises": method.about, "walk (who chose its size)": told})
    if json:
        print_json(found)
    else:
        print_table(Table(f"Methods, as used for {task} in size {size}", rows))


@command
def data(*, get: str | None = None, data_dir: Path | None = None, json: bool = False) -> None:
    """Show the files that each task needs, and which of them exist, or download them.

    Args:
        get: Download the missing files of this task from the Hugging Face hub or the web. Needs gasam[download].
    """
    directory, known = (
        data_directory(data_dir),
        {name: task.published for name, task in TASKS.items() if task.published},
    )
    if get is not None:
        if get not in known:
            raise InputError(f"the data of {get!r} cannot be downloaded: name one of {', '.join(known)}")
        for file in published.get(get, known[get], directory):
            typer.echo(f"{file.path}: {file.size} bytes, content {file.checksum}")
        return
    states = {task: published.inspect(files, directory) for task, files in known.items()}
    if json:
        found = {task: [asdict(file) | {"path": str(file.path)} for file in files] for task, files in states.items()}
        print_json({"directory": str(directory), "tasks": found})
        return
    rows = [{"task": task, "file": file.name} | _state(file) for task, files in states.items() for file in files]
    notes = (
        f"searched in {directory}; --data-dir or GASAM_DATA sets another folder",
        "`gasam data --get TASK` downloads the files of a task; the twins and your own data do not need them",
    )
    print_table(Table("Data", rows, notes))


def _state(file: FileState) -> dict[str, str]:
    if file.size is None:
        return {"size": "optional" if file.substitute else "missing"}
    size = f"{file.size / 2**20:.1f} MB" if file.size >= 2**20 else f"{file.size / 2**10:.1f} kB"
    return {"size": size, "checksum": {"ok": "ok", "unknown": "not known"}.get(file.checksum, "different")}
