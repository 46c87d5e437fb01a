"""The commands `gasam tasks`, `gasam methods` and `gasam data`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gasam.lab.cli import options as opt
from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.data.published import FileState

data_app = typer.Typer(
    no_args_is_help=False,
    invoke_without_command=True,
    help="Show which data files of each task exist, or download them.",
)


def tasks(json: opt.Json = False) -> None:
    """List the tasks with their data and metrics; --json adds the settings of each size."""
    from gasam.lab.cli.display import print_json, print_table
    from gasam.lab.output import Table
    from gasam.lab.tasks import TASKS

    if json:
        print_json({name: _task(name) for name in TASKS})
        return
    rows = [
        {"task": name, "data": task.kind, "what": task.about, "metric": task.family.metric.name}
        for name, task in TASKS.items()
    ]
    notes = (
        "Sizes: paper, small (default), tiny; ptb also has medium.",
        "A twin needs no download. `gasam data` shows the files that the paper's tasks need.",
    )
    print_table(Table("Tasks", rows, notes))


def methods(
    task: Annotated[str, typer.Option(help="Task whose walks to show.")] = "imdb",
    size: opt.Size = None,
    json: opt.Json = False,
) -> None:
    """List the methods with the walk that each uses on a task, and the source of its size."""
    from gasam.lab.cli.display import print_json, print_table
    from gasam.lab.methods import METHODS
    from gasam.lab.output import Table
    from gasam.lab.tasks import find
    from gasam.lab.training.plan import make

    size = size or find(task).default_size
    find(task).settings(size)
    found: dict[str, dict[str, Any]] = {}
    for name, method in METHODS.items():
        try:
            walk = make(task, name, size).walk
            found[name] = {"about": method.about, "in_words": str(walk)} | walk.model_dump()
        except InputError as error:
            found[name] = {"about": method.about, "source": str(error)}
    if json:
        print_json(found)
        return
    rows = [
        {"method": name, "minimises": entry["about"], "walk (who chose its size)": _walk(entry)}
        for name, entry in found.items()
    ]
    print_table(Table(f"Methods, as used for {task} in size {size}", rows))


@data_app.callback()
def data(context: typer.Context, data_dir: opt.DataDir = None, json: opt.Json = False) -> None:
    """Show the files that each task needs, and which of them exist. `gasam data get TASK` downloads them."""
    if context.invoked_subcommand is not None:
        return
    from gasam.lab.cli.display import print_json, print_table
    from gasam.lab.data.corpus import data_directory
    from gasam.lab.data.published import inspect
    from gasam.lab.output import Table
    from gasam.lab.tasks import TASKS

    directory = data_directory(data_dir)
    states = {task.name: inspect(task.published, directory) for task in TASKS.values() if task.published}
    if json:
        found = {task: [asdict(file) | {"path": str(file.path)} for file in files] for task, files in states.items()}
        print_json({"directory": str(directory), "tasks": found})
        return
    columns = ("task", "file", "size", "checksum")
    rows = [
        dict(zip(columns, (task, file.name, *_state(file)), strict=True))
        for task, files in states.items()
        for file in files
    ]
    notes = (
        f"searched in {directory}; --data-dir or GASAM_DATA sets another folder",
        "`gasam data get TASK` downloads the files of a task; the twins and your own data do not need them",
    )
    print_table(Table("Data", rows, notes))


@data_app.command()
def get(task: opt.TaskName, data_dir: opt.DataDir = None) -> None:
    """Download the missing files of a task from the Hugging Face hub or the web. Needs gasam[download]."""
    for file in get_data(task, data_dir):
        typer.echo(f"{file.path}: {file.size} bytes, content {file.checksum}")


def get_data(name: str, given: Path | None) -> list[FileState]:
    """Download the missing files of a task."""
    from gasam.lab.data import published
    from gasam.lab.data.corpus import data_directory
    from gasam.lab.tasks import TASKS

    known = {task.name: task.published for task in TASKS.values() if task.published}
    if name not in known:
        raise InputError(f"the data of {name!r} cannot be downloaded: name one of {', '.join(known)}")
    return published.get(name, known[name], data_directory(given))


def _task(name: str) -> dict[str, Any]:
    from gasam.lab.tasks import TASKS

    task = TASKS[name]
    sizes = {size: settings.model_dump() for size, settings in task.sizes.items()}
    return {"about": task.about, "data": task.kind, "metric": task.family.metric.name, "sizes": sizes}


def _walk(entry: dict[str, Any]) -> str:
    if "in_words" not in entry:  # the source is the reason why the method cannot be used
        return str(entry["source"])
    return f"{entry['in_words']} ({entry['source']})" if entry["in_words"] else ""


def _state(file: FileState) -> tuple[str, str]:
    if not file.found:
        return "optional" if file.substitute else "missing", ""
    size = f"{file.size / 2**20:.1f} MB" if file.size >= 2**20 else f"{file.size / 2**10:.1f} kB"
    return size, {"ok": "ok", "unknown": "not known"}.get(file.checksum, "different")
