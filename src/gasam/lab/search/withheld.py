"""Encoded data without its test split, which a search must not see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn


class WithheldError(LookupError):
    """A trial asked for the test split: the walk that it was to choose would be worth nothing."""


class Withheld(dict[str, Any]):
    """Encoded data; asking for any part of the test split raises `WithheldError`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__()
        for key, part in data.items():
            if not _of_test_split(key):
                self[key] = Withheld(part) if isinstance(part, dict) else part

    def __missing__(self, key: str) -> NoReturn:
        if not _of_test_split(key):
            raise KeyError(key)
        raise WithheldError(f"{key!r} belongs to the test split, which tuning must not see")


def _of_test_split(key: str) -> bool:
    """Translation names its parts test_0 and test_1; its copied source is the test split's."""
    return key == "copied" or key.partition("_")[0] == "test"
