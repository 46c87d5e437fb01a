"""Statistics over seeds: a mean and its spread, the difference to a baseline seed by seed, that of two summaries."""

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

    @property
    def width(self) -> float:
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def holds(self, value: float) -> bool:
        """Whether the interval allows this difference."""
        return self.low is None or self.high is None or self.low <= value <= self.high


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


def welch_difference(ours: Summary, theirs: Summary, confidence: float = 0.95) -> Difference:
    """ours - theirs of runs that are not paired, with Welch's interval: their variances need not be the same.

    freedom = (a + b)^2 / (a^2 / (n - 1) + b^2 / (m - 1)) with a, b the variances of the two means (Satterthwaite).
    """
    mean = ours.mean - theirs.mean
    a, b = ((each.std or 0.0) ** 2 / each.seeds for each in (ours, theirs))
    if a + b == 0:
        return Difference(mean, mean, mean, min(ours.seeds, theirs.seeds))
    freedom = (a + b) ** 2 / (a**2 / (ours.seeds - 1) + b**2 / (theirs.seeds - 1))
    reach = student_quantile((1 + confidence) / 2, freedom) * math.sqrt(a + b)
    return Difference(mean, mean - reach, mean + reach, min(ours.seeds, theirs.seeds))


def student_quantile(probability: float, freedom: float) -> float:
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, probability))
