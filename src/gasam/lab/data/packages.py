"""Packages that a task reads or uses, found without importing them."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

from gasam.lab.errors import InputError


def installed(task: str, module: str, extra: str = "lab") -> ModuleSpec:
    """Where the module is, once it is there."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise InputError(f"{task} needs the package {module}, which is not installed: run `pip install gasam[{extra}]`")
    return spec
