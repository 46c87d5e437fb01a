"""Integrations with other frameworks: one file and one extra for each; `import gasam` imports none of them."""

from __future__ import annotations

from importlib.util import find_spec


def require(extra: str, *packages: str) -> None:
    """Raise if a package is missing, and name the extra that installs it."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ImportError(f"this integration needs {' and '.join(missing)}: run `pip install 'gasam[{extra}]'`")
