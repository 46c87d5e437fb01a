"""The check of settings against the types of their fields, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

WORDS = {int: "a whole number", float: "a finite number", str: "text", NoneType: "null"}


def check_settings(
    settings: Any, *, zero: Collection[str], below_one: Collection[str], free: Collection[str] = ()
) -> None:
    """Raise `ValueError` unless every value has the type of its field and is > 0.

    An int in a float field becomes a float, so that 1 and 1.0 give the same run.

    Args:
        settings: The dataclass to check.
        zero: Names of the fields that may be 0.
        below_one: Names of the fields that must be in [0, 1).
        free: Names of the fields that are not checked here.
    """
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        if field.name in free:
            continue
        value, kind = getattr(settings, field.name), hints[field.name]
        if not _is(value, kind):
            raise ValueError(f"{field.name} must be {_in_words(kind)}, got {value!r}")
        numbers = [n for n in (value if isinstance(value, tuple) else (value,)) if isinstance(n, int | float)]
        if field.name in below_one:
            if not all(0 <= number < 1 for number in numbers):
                raise ValueError(f"{field.name} must be in [0, 1), got {value!r}")
        elif not all(number > 0 or (number == 0 and field.name in zero) for number in numbers):
            raise ValueError(f"{field.name} must be {'>=' if field.name in zero else '>'} 0, got {value!r}")
        if kind in (float, float | None) and isinstance(value, int):
            object.__setattr__(settings, field.name, float(value))


def _is(value: Any, kind: Any) -> bool:
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in options
    if isinstance(kind, UnionType):
        return any(_is(value, option) for option in options)
    if get_origin(kind) is tuple:
        kinds = [options[0]] * len(value) if isinstance(value, tuple) and Ellipsis in options else options
        return isinstance(value, tuple) and 0 < len(value) == len(kinds) and all(map(_is, value, kinds))
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and not isinstance(value, bool)


def _in_words(kind: Any) -> str:
    options = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(options)}"
    if isinstance(kind, UnionType):
        return " or ".join(map(_in_words, options))
    if get_origin(kind) is tuple:
        count = "" if Ellipsis in options else f"{len(options)} "
        return f"a list of {count}{WORDS[options[0]].partition(' ')[2]}s"
    return WORDS[kind]
