"""Ranges of settings that a search may try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gasam.lab.errors import InputError


@dataclass(frozen=True)
class Span:
    """All numbers from `low` to `high`; only whole ones if `whole`; spread over orders of magnitude if `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def fitted(self, name: str, own: Any) -> Span:
        """The span for a setting with this value: of whole numbers if the value is one.

        Raises:
            InputError: If the setting is a whole number and the span's ends are not. It names the setting.
        """
        ends_are_whole = isinstance(self.low, int) and isinstance(self.high, int)
        whole = (isinstance(own, int) and not isinstance(own, bool)) or (own is None and ends_are_whole)
        if whole and not ends_are_whole:
            raise InputError(f"the range of {name} must be whole numbers, got {self.low:g}..{self.high:g}")
        return replace(self, whole=whole)

    def rounded(self, value: float) -> float:
        """The value with two significant digits, which is as exact as a search can be, inside the span."""
        return value if self.whole else min(max(float(f"{value:.2g}"), self.low), self.high)


Space = Mapping[str, Span | tuple[Any, ...]]
"""A span or a tuple of choices for each setting."""


def around(value: float, factor: float) -> Span:
    """From the value divided by the factor to the value times the factor."""
    return Span(float(f"{value / factor:.2g}"), float(f"{value * factor:.2g}"), log=True)


def parsed_space(given: Mapping[str, Any]) -> dict[str, Span | tuple[Any, ...] | None]:
    """The ranges that a user gives by name; None leaves a setting out."""
    return {name: None if value is None else parsed_span(name, value) for name, value in given.items()}


def parsed_span(name: str, value: Any) -> Span | tuple[Any, ...]:
    """A span from text such as "0.001..0.1" (add ",log" for orders of magnitude), or choices from a list or a value.

    Raises:
        InputError: If the text is no span. It names the setting.
    """
    if not isinstance(value, str) or ".." not in value:
        if isinstance(value, Span):
            return value
        choices = tuple(value) if isinstance(value, tuple | list) else (value,)
        if not choices:
            raise InputError(f"the choices of {name} must not be empty")
        return choices
    text, _, kind = value.partition(",")
    try:
        low, high = (_number(end) for end in text.split(".."))
        if kind not in ("", "log") or not low < high or (kind and low <= 0):
            raise ValueError
    except ValueError:
        allowed = "LOW..HIGH, or LOW..HIGH,log with LOW > 0, or a list such as [0,0.1]"
        raise InputError(f"the range of {name} must be {allowed}, got {value!r}") from None
    return Span(low, high, kind == "log")


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
