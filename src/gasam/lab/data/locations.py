"""Where data, caches and packages are: what the caller says, else the environment, else the user's own folders."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import platformdirs

from gasam.lab.errors import InputError

APPLICATION = "gasam"


def data_directory(given: Path | None = None) -> Path:
    """The folder of the local layout: `given` (--data-dir), else GASAM_DATA, else the user's data folder."""
    if given is not None:
        return given.expanduser()
    return _named_by("GASAM_DATA") or platformdirs.user_data_path(APPLICATION, appauthor=False)


def cache_directory() -> Path:
    """Where encoded corpora are kept: GASAM_CACHE, else the user's cache folder. All in it can be made again."""
    return _named_by("GASAM_CACHE") or platformdirs.user_cache_path(APPLICATION, appauthor=False)


def installed(task: str, module: str, extra: str = "lab") -> ModuleSpec:
    """Where a package is that a task reads or uses; it is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise InputError(f"{task} needs the package {module}, which is not installed: run `pip install gasam[{extra}]`")
    return spec


def _named_by(variable: str) -> Path | None:
    """An empty variable counts as none."""
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else None
