"""Where data and caches lie: what the caller says, else what the environment says, else the user's own folders."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

APPLICATION = "gasam"


def data_directory(given: Path | None = None) -> Path:
    """The folder of the local layout: `given` (--data-dir), else GASAM_DATA, else the user's data folder."""
    return _chosen(given, "GASAM_DATA") or platformdirs.user_data_path(APPLICATION, appauthor=False)


def cache_directory() -> Path:
    """Where preprocessed corpora are kept: GASAM_CACHE, else the user's cache folder. All in it can be made again."""
    return _chosen(None, "GASAM_CACHE") or platformdirs.user_cache_path(APPLICATION, appauthor=False)


def _chosen(given: Path | None, variable: str) -> Path | None:
    """An empty variable counts as none."""
    if given is not None:
        return given.expanduser()
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else None
