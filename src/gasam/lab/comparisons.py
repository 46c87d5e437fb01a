"""The plans of a comparison: every method with every seed on one task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gasam.lab.errors import InputError
from gasam.lab.search import with_tuned_walk
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import Plan, make


def comparison_plans(
    task: str | Path,
    methods: Sequence[str],
    *,
    seeds: int,
    size: str | None = None,
    origin: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    walks: Mapping[str, Mapping[str, Any]] | None = None,
    tuned: Path | None = None,
) -> list[Plan]:
    """Make the plans of a comparison, ordered by seed.

    Args:
        task: The name of a task, or the path of a Python file that defines one.
        methods: The names of the methods.
        seeds: The number of runs of each method, with the seeds 1, 2, ...
        size: The size; by default `small`, or the only size of a task file.
        origin: Where the data is.
        settings: Settings of the task to change, such as {"epochs": 3}.
        walks: Options of walks to change, by method, such as {"ga-sam": {"cap": 0.02}}.
        tuned: Use the walks that `tune` chose in this output folder.
    """
    if seeds < 1:
        raise InputError(f"seeds must be a whole number >= 1, got {seeds}")
    task = str(task)
    plans = [
        make(task, method, size, seed, origin=origin, settings=settings, walk=(walks or {}).get(method))
        for seed in range(1, seeds + 1)
        for method in methods
    ]
    return plans if tuned is None else [with_tuned_walk(plan, tuned) for plan in plans]
