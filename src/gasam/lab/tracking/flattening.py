"""The configuration and the curve of a run as flat dictionaries, the form that all trackers accept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Hyperparameter = bool | int | float | str


def hyperparameters(config: Mapping[str, Any], seed: int) -> dict[str, Hyperparameter]:
    """The configuration of a record with names such as `settings/batch`. Lists become text; None becomes "none"."""
    found: dict[str, Hyperparameter] = {"seed": seed}
    for name, value in _leaves(config):
        found[name] = "none" if value is None else json.dumps(value) if isinstance(value, list) else value
    return found


def metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of the curve, except its epoch; nested ones with names such as `gradient_norms/bias`."""
    return {
        name: value
        for name, value in _leaves(row)
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "epoch"
    }


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", list(inner) if isinstance(inner, tuple) else inner
