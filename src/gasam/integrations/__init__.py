"""At home in other trainers: one file a framework, each with an extra of its own; importing gasam imports none."""

from __future__ import annotations

from importlib.util import find_spec


def require(extra: str, *packages: str) -> None:
    """Say in one sentence what is missing, and which extra brings it."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ImportError(f"this integration needs {' and '.join(missing)}: run `pip install 'gasam[{extra}]'`")
