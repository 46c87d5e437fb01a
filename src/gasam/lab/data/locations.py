"""The folders of data and caches, and the check for installed packages."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path

import platformdirs

from gasam.lab.errors import InputError

APPLICATION = "gasam"


def data_directory(given: Path | None = None) -> Path:
    """The folder of the paper's data: `given` (--data-dir), else GASAM_DATA, else the user's data folder."""
    if given is not None:
        return given.expanduser()
    return _named_by("GASAM_DATA") or platformdirs.user_data_path(APPLICATION, appauthor=False)


def cache_directory() -> Path:
    """The cache of encoded corpora: GASAM_CACHE, else the user's cache folder. It can be deleted at any time."""
    return _named_by("GASAM_CACHE") or platformdirs.user_cache_path(APPLICATION, appauthor=False)


def installed(task: str, module: str, extra: str = "lab") -> ModuleSpec:
    """Find a package that a task needs, without importing it; raise if it is not installed.

    Args:
        task: The name of the task, for the error message.
        module: The name of the package.
        extra: The extra of gasam that installs it.
    """
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise InputError(f"{task} needs the package {module}, which is not installed: run `pip install gasam[{extra}]`")
    return spec


def _named_by(variable: str) -> Path | None:
    """The path in an environment variable; None if it is empty or not set."""
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else None
