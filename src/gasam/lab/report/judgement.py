"""Whether something went wrong with a method: it collapsed, learned nothing, never walked, or its seeds disagree."""

from __future__ import annotations

import math
from typing import NamedTuple

from gasam.lab.record import Metric
from gasam.lab.report.group import Group

SHARE = 0.1
"""A method that loses more than this share of what the baseline has learned, and more than twice the noise of the test
split, has collapsed."""

TORN = 5
"""How many times the baseline's spread over seeds a row's may be before its scores are shown one by one."""


class Worth(NamedTuple):
    """Compares scores such that more is better for every metric; `worthless` is the score of guessing."""

    metric: Metric
    worthless: float

    def gain(self, value: float, baseline: float) -> float:
        difference = value - baseline if self.metric.higher_is_better else baseline - value
        return difference / self.of(baseline)

    def of(self, baseline: float) -> float:
        return max(abs(baseline - self.worthless), 1e-12) if self.metric.higher_is_better else abs(baseline)

    def is_guessing(self, value: float, error: float) -> bool:
        better = value - self.worthless
        return bool((better if self.metric.higher_is_better else -better) <= 2 * error)


def collapsed(group: Group) -> bool:
    """Whether a method ends clearly below its baseline. Older records do not say how noisy their test split is."""
    plain = group.baseline
    if group.method == "baseline" or plain is None or plain.summary is None:
        return False
    error = test_error(plain)
    if error is None or group.summary is None:
        return error is not None
    worth = _worth(plain)
    noise = 2 * math.sqrt(2) * error / worth.of(plain.summary.mean)
    return worth.gain(group.summary.mean, plain.summary.mean) < -max(SHARE, noise)


def at_guessing_level(group: Group) -> bool:
    """Whether the mean is no better than guessing; False if its error is not known."""
    error = test_error(group)
    return bool(group.summary and error is not None and _worth(group).is_guessing(group.summary.mean, error))


def torn(group: Group) -> bool:
    """Whether some seeds learn and others do not: then a mean and its interval say little."""
    found, plain = group.summary, group.baseline.summary if group.baseline else None
    return bool(found and plain and found.std and plain.std and found.std > TORN * plain.std)


def never_walked(group: Group) -> bool:
    """Whether a method that waits for progress took as many gradients as updates."""
    waits = group.walk.get("walk_progress") is not None
    return waits and all(record.gradient_evaluations == record.updates for record in group.records)


def test_error(group: Group) -> float | None:
    """The standard error of the test score, from the choice of the split's examples."""
    return max((record.test_error for record in group.records if record.test_error is not None), default=None)


def _worth(group: Group) -> Worth:
    return Worth(group.metric, group.records[0].worthless or 0.0)
