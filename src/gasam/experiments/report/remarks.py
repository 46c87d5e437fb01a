"""What people add to the results: remarks on a table or a search and a task, read from `results/remarks.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from gasam.experiments import studies
from gasam.experiments.errors import InputError
from gasam.experiments.tasks import TASKS

FILE = "remarks.toml"
Remarks = Mapping[str, Mapping[str, str]]
"""By table and task."""
SEARCH = "search"
"""Stands for a table: remarks on the search for epsilon."""


def read(folder: Path) -> Remarks:
    """Of a folder of results; nothing where nobody wrote anything."""
    file = folder / FILE
    if not file.exists():
        return {}
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}") from None
    for table, remarks in found.items():
        if table not in (SEARCH, *studies.names()):
            raise InputError(f"{file}: a table must be {SEARCH} or one of {', '.join(studies.names())}, got {table!r}")
        known = tuple(TASKS) if table == SEARCH else studies.load(table).tasks
        for task, text in remarks.items() if isinstance(remarks, dict) else [("", remarks)]:
            if task not in known or not isinstance(text, str):
                raise InputError(f'{file}: give {table}.TASK = "text" with one of {", ".join(known)}, got {task!r}')
    return found
