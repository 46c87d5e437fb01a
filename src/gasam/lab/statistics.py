"""Statistics over seeds: means, differences with confidence intervals, and their formatting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

Standing = Literal["better", "worse", "no difference"]
FEW = 3
"""With fewer seeds nothing is decided, and the scores themselves are shown instead of an interval."""


class Summary(NamedTuple):
    """Mean and sample standard deviation (n - 1) over seeds; `std` is None for a single seed."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        return self.text()

    def text(self, decimals: int = 2) -> str:
        spread = "" if self.std is None else f" ± {number(self.std, decimals)}"
        return number(self.mean, decimals) + spread


class Difference(NamedTuple):
    """A mean difference and the bounds of its confidence interval, which are None for a single pair."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    def __str__(self) -> str:
        return self.text()

    def text(self, decimals: int = 2) -> str:
        ends = [] if self.low is None or self.high is None else [self.low, self.high]
        interval = ", ".join(signed(end, decimals) for end in ends)
        return signed(self.mean, decimals) + (f" [{interval}]" if interval else "")

    @property
    def width(self) -> float:
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def holds(self, value: float) -> bool:
        """Whether the interval contains this value; True without an interval."""
        return self.low is None or self.high is None or self.low <= value <= self.high

    def standing(self, higher_is_better: bool) -> Standing | None:
        """Whether the method is better or worse than its baseline; None without an interval."""
        if self.low is None:
            return None
        if self.holds(0):
            return "no difference"
        return "better" if (self.low > 0) == higher_is_better else "worse"


def summary(values: Collection[float]) -> Summary | None:
    """Mean and standard deviation of the values; None if there are none."""
    if not values:
        return None
    return Summary(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def paired_difference(
    values: Mapping[int, float], baseline: Mapping[int, float], confidence: float = 0.95
) -> Difference | None:
    """The mean of values - baseline over their common seeds, with Student's confidence interval.

    Pairing by seed cancels the effects that a seed has on both. The interval is that of `scipy.stats.ttest_rel`, which
    gives none if all differences are equal.

    Args:
        values: The scores of a method by seed.
        baseline: The scores of the baseline by seed.
        confidence: The confidence level of the interval.
    """
    found = summary([value - baseline[seed] for seed, value in values.items() if seed in baseline])
    if found is None or found.std is None:
        return None if found is None else Difference(found.mean, None, None, 1)
    reach = _student(confidence, found.seeds - 1) * found.std / math.sqrt(found.seeds)
    return Difference(found.mean, found.mean - reach, found.mean + reach, found.seeds)


def welch_difference(ours: Summary, theirs: Summary, confidence: float = 0.95) -> Difference:
    """The difference ours - theirs of unpaired runs, with Welch's confidence interval, which allows unequal variances.

    freedom = (a + b)^2 / (a^2 / (n - 1) + b^2 / (m - 1)) with a, b the variances of the two means (Satterthwaite).

    Args:
        ours: The summary to compare.
        theirs: The summary that is subtracted.
        confidence: The confidence level of the interval.
    """
    mean = ours.mean - theirs.mean
    a, b = ((each.std or 0.0) ** 2 / each.seeds for each in (ours, theirs))
    if a + b == 0:
        return Difference(mean, mean, mean, min(ours.seeds, theirs.seeds))
    freedom = (a + b) ** 2 / (a**2 / (ours.seeds - 1) + b**2 / (theirs.seeds - 1))
    reach = _student(confidence, freedom) * math.sqrt(a + b)
    return Difference(mean, mean - reach, mean + reach, min(ours.seeds, theirs.seeds))


def _student(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's distribution, as `scipy.stats.t.ppf` gives it."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # every run imports this file, none needs scipy

    return float(stdtrit(freedom, (1 + confidence) / 2))


def number(value: float, decimals: int = 2) -> str:
    return f"{value:.{decimals}f}" if abs(value) < 1000 else f"{value:,.0f}"


def signed(value: float, decimals: int = 2) -> str:
    return f"{round(value, decimals) + 0.0:+.{decimals}f}" if abs(value) < 1000 else f"{value:+,.0f}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
