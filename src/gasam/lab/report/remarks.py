"""What people add to the results: remarks on a table, a search or flatness and a task, in `results/remarks.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from gasam.lab.errors import InputError
from gasam.lab.paper import studies
from gasam.lab.tasks import TASKS

FILE = "remarks.toml"
Remarks = Mapping[str, Mapping[str, str]]
"""By table and task."""
SEARCH, FLATNESS = "search", "flatness"
"""Stand for a table: remarks on the search for epsilon, and on how flat minima are."""


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
        tables = (SEARCH, FLATNESS, *studies.names())
        if table not in tables:
            raise InputError(f"{file}: a table must be one of {', '.join(tables)}, got {table!r}")
        known = studies.load(table).tasks if table in studies.names() else tuple(TASKS)
        for task, text in remarks.items() if isinstance(remarks, dict) else [("", remarks)]:
            if task not in known or not isinstance(text, str):
                raise InputError(f'{file}: give {table}.TASK = "text" with one of {", ".join(known)}, got {task!r}')
    return found
