"""Checks of arguments; each error says what is allowed and what was given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

from torch import Tensor


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        allowed = f">= {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number {allowed}, got {value!r}")


def check_number(
    name: str, value: object, allowed: str = "", is_allowed: Callable[[float], bool] = lambda value: True
) -> None:
    """`allowed` describes in words the condition that `is_allowed` checks for a finite number."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not is_allowed(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} must be a finite number{allowed and ' ' + allowed}, got {value!r}")


def check_radius(value: object, name: str = "radius") -> None:
    check_number(name, value, "> 0", lambda radius: radius > 0)


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


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
                f"parameter {name!r} has type {weight.dtype}, but only real floating-point weights can be moved: "
                "make torch.view_as_real of it the parameter"
            )
