"""The experiments: tasks, training, tuning, analyses and reports; needs `pip install gasam[lab]`.

`compare`, `tune`, `runs` and `load` do what the commands of the same names do. They are imported when they are first
used, because that takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gasam.lab.api import Origin, RunFailedError, compare, runs, tune
    from gasam.lab.training.finished import load

__all__ = ["Origin", "RunFailedError", "compare", "load", "runs", "tune"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "gasam.lab.training.finished" if name == "load" else "gasam.lab.api"
    return getattr(importlib.import_module(module), name)
