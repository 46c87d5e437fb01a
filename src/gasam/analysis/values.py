"""Numbers that come in are checked here, and results that go out become JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

from torch import Tensor

Watch = Callable[[int, int], None]
"""Told how many evaluations are done, and of how many."""


class Result:
    """A frozen record that becomes JSON."""

    def as_json(self) -> dict[str, Any]:
        """Plain values. What is not finite is "inf", "-inf" or "nan", which `float` reads; None was not measured."""
        return {field.name: plain_value(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]


def plain_value(value: object) -> Any:
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


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {allowed}, got {value!r}")


def check_number(name: str, value: object, allowed: str, is_allowed: Callable[[float], bool]) -> None:
    """`allowed` says in words what `is_allowed` asks of a finite number."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not is_allowed(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} must be a finite number{allowed and ' ' + allowed}, got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_radius(value: object, name: str = "radius") -> None:
    check_number(name, value, "> 0", lambda radius: radius > 0)


def check_shape(argument: str, name: str, values: object, like: Tensor) -> None:
    if not isinstance(values, Tensor) or values.shape != like.shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{argument}[{name!r}] must be a tensor of the weight's shape {tuple(like.shape)}, got {found}"
        )


def check_real(weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        if weight.is_complex():
            raise TypeError(
                f"parameter {name!r} has type {weight.dtype}, and only real floating-point weights can be moved: "
                "let torch.view_as_real of it be the parameter"
            )
