"""The gain of a score over the baseline's, and the rule that stops trials early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gasam.lab.families.family import Recipe
from gasam.lab.record import Metric

HOPELESS = 3
"""A trial is stopped early if it is behind the baseline by more than this multiple of the tolerance."""


class Pruner(Protocol):
    """A rule that stops trials early."""

    def hopeless(self, curve: Sequence[float | None], epochs: int) -> bool:
        """Whether a trial should be stopped now. `curve` has a score for each epoch so far, of `epochs` in all."""


def stops(pruner: Pruner, curve: Sequence[float | None], settings: Recipe) -> bool:
    """Whether a trial is stopped now. Its rate must have been halved twice, if its schedule halves it."""
    halved_twice = settings.halve_after + 2 if settings.schedule == "halving" else 0
    return len(curve) >= halved_twice and pruner.hopeless(curve, settings.epochs)


class Worth(NamedTuple):
    """Compares scores such that more is better for every metric; `worthless` is the score of guessing."""

    metric: Metric
    worthless: float

    def gain(self, value: float, baseline: float) -> float:
        """The gain over the baseline: 0 for an equal score, -1 for guessing or for twice the perplexity."""
        difference = value - baseline if self.metric.higher_is_better else baseline - value
        return difference / self.of(baseline)

    def of(self, baseline: float) -> float:
        """The worth of the baseline: its accuracy or BLEU above guessing, or its perplexity."""
        return max(abs(baseline - self.worthless), 1e-12) if self.metric.higher_is_better else abs(baseline)

    def is_guessing(self, value: float, error: float) -> bool:
        """Whether a score is better than guessing by at most two standard errors."""
        better = value - self.worthless
        return bool((better if self.metric.higher_is_better else -better) <= 2 * error)


class BehindBaseline(NamedTuple):
    """Stops a trial that is far behind the baseline after half of the epochs and does not catch up.

    `baseline` is the baseline's curve, with a score for each epoch.
    """

    worth: Worth
    baseline: Sequence[float | None]
    tolerance: float

    def hopeless(self, curve: Sequence[float | None], epochs: int) -> bool:
        if not curve or curve[-1] is None or 2 * len(curve) < epochs:
            return False
        gap = self._gap(curve)
        return gap > HOPELESS * self.tolerance and gap >= self._gap(curve[:-1])

    def _gap(self, curve: Sequence[float | None]) -> float:
        """The gap between the best score so far and the baseline's best after the same number of epochs."""
        best = max if self.worth.metric.higher_is_better else min
        ours = [score for score in curve if score is not None]
        baselines = [score for score in self.baseline[: len(curve)] if score is not None]
        if not baselines:
            return 0.0
        return -self.worth.gain(best(ours), best(baselines)) if ours else math.inf
