"""Ranges of settings that a search may try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gasam.lab.errors import InputError


@dataclass(frozen=True)
class Span:
    """All numbers from `low` to `high`: whole numbers if both are; evenly spread over orders of magnitude if `log`."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def rounded(self, value: float) -> float:
        """The value with two significant digits, which is as exact as a search can be, inside the span."""
        return value if self.whole else min(max(float(f"{value:.2g}"), self.low), self.high)


Space = Mapping[str, Span | tuple[Any, ...]]
"""A span or a tuple of choices for each setting."""


def around(value: float, factor: float) -> Span:
    """From the value divided by the factor to the value times the factor."""
    return Span(float(f"{value / factor:.2g}"), float(f"{value * factor:.2g}"), log=True)


def parsed_span(name: str, value: Any) -> Span | tuple[Any, ...]:
    """A span from text such as "0.001..0.1" (add ",log" for orders of magnitude), or choices from a list or a value.

    Raises:
        InputError: If the text is no span. It names the setting.
    """
    if not isinstance(value, str) or ".." not in value:
        return value if isinstance(value, tuple) else (value,)
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
