"""Integrations: one file for each framework, each with its own extra. Importing gasam imports none of them."""

from __future__ import annotations

from importlib.util import find_spec


def require(extra: str, *packages: str) -> None:
    """Say in one sentence what is missing, and which extra brings it."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ImportError(f"this integration needs {' and '.join(missing)}: run `pip install 'gasam[{extra}]'`")
