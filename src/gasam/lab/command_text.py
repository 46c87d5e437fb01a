"""Parsers that turn the text of command-line options into numbers."""

from __future__ import annotations

import math

from gasam.lab.errors import InputError


def parsed_norm(text: str, option: str = "--norm", allowed: str = "a number > 1 or inf") -> float:
    try:
        return math.inf if text.lower() in ("inf", "infinity", "max") else float(text)
    except ValueError:
        raise InputError(f"{option} must be {allowed}, got {text!r}") from None


def parsed_numbers(option: str, text: str, allowed: str = "numbers separated by commas") -> tuple[float, ...]:
    parts = [part for part in text.split(",") if part.strip()]
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        numbers = ()
    if not numbers:
        raise InputError(f"{option} must be {allowed}, got {text!r}")
    return numbers
