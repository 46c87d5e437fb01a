"""The sharpness-aware family: one file for each method, with a preset of the same name. Files are found by folder."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from gasam.perturbation import Perturbation


class Member(NamedTuple):
    """A method of the family: the title and the sentence from the first line of its file, and its preset."""

    title: str
    about: str
    preset: Callable[..., Perturbation]


def members() -> dict[str, Member]:
    """The methods of this folder by name."""
    found = {}
    for each in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{each.name}")
        title, _, about = str(module.__doc__).partition("\n")[0].partition(": ")
        found[each.name] = Member(title, about.rstrip("."), getattr(module, each.name))
    return found
