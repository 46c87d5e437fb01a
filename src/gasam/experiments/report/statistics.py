"""Statistics over seeds: a mean and its spread, and the difference to a baseline, seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Summary(NamedTuple):
    """`std` is that of a sample (n - 1), so one value has none."""

    mean: float
    std: float | None
    seeds: int


class Difference(NamedTuple):
    """`low` and `high` bound Student's confidence interval of the mean; one pair has none."""

    mean: float
    low: float | None
    high: float | None
    pairs: int


def summary(values: Collection[float]) -> Summary | None:
    """None of nothing: what nobody measured has no mean."""
    if not values:
        return None
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> Difference | None:
    """values - baseline over the seeds that both have: what a seed does to both of them cancels."""
    found = summary([value - baseline[seed] for seed, value in values.items() if seed in baseline])
    if found is None:
        return None
    if found.std is None:
        return Difference(found.mean, None, None, 1)
    reach = student_quantile((1 + confidence) / 2, found.seeds - 1) * found.std / math.sqrt(found.seeds)
    return Difference(found.mean, found.mean - reach, found.mean + reach, found.seeds)


def student_quantile(probability: float, freedom: int) -> float:
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, probability))
