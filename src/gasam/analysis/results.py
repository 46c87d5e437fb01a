"""`Result`, the base class of results that can be written as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


class Result:
    """A frozen dataclass that can be written as JSON."""

    def as_json(self) -> dict[str, Any]:
        """Plain values. Infinity and NaN become "inf", "-inf" and "nan", which `float` reads; None was not measured."""
        return {field.name: plain_value(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def plain_value(value: object) -> Any:
    """The value in a form that JSON can hold. A function becomes its name."""
    if isinstance(value, Result):
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return getattr(value, "__name__", repr(value)) if callable(value) else value
