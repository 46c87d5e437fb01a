"""What a score is worth beside the baseline's, and when a trial is too far behind to go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gasam.lab.families import Metric

HOPELESS = 3
"""How many times the tolerance a trial may be behind the baseline."""


class Worth(NamedTuple):
    """Compares scores so that more is better for every metric; `worthless` is the score of guessing."""

    metric: Metric
    worthless: float

    def gain(self, value: float, baseline: float) -> float:
        """0 is as good as the baseline, -1 is worth nothing (for a perplexity: twice as high)."""
        difference = value - baseline if self.metric.higher_is_better else baseline - value
        return difference / self.of(baseline)

    def of(self, baseline: float) -> float:
        """What the baseline has learned: accuracy or BLEU above guessing, or its perplexity."""
        return max(abs(baseline - self.worthless), 1e-12) if self.metric.higher_is_better else abs(baseline)

    def is_guessing(self, value: float, error: float) -> bool:
        """Whether a score is no better than guessing by two standard errors."""
        better = value - self.worthless
        return bool((better if self.metric.higher_is_better else -better) <= 2 * error)


class BehindBaseline(NamedTuple):
    """Gives a trial up that is far behind the baseline after half of the epochs, and does not catch up.

    `baseline` is the baseline's curve, with a score for each epoch.
    """

    worth: Worth
    baseline: Sequence[float | None]
    tolerance: float

    def hopeless(self, curve: Sequence[float | None]) -> bool:
        """Whether a trial with this curve should be given up now."""
        if not curve or curve[-1] is None or 2 * len(curve) < len(self.baseline):
            return False
        gap = self._gap(curve)
        return gap > HOPELESS * self.tolerance and gap >= self._gap(curve[:-1])

    def _gap(self, curve: Sequence[float | None]) -> float:
        """How much less the best score so far is worth than the baseline's best after as many epochs."""
        best = max if self.worth.metric.higher_is_better else min
        ours = [score for score in curve if score is not None]
        baselines = [score for score in self.baseline[: len(curve)] if score is not None]
        if not baselines:
            return 0.0
        return -self.worth.gain(best(ours), best(baselines)) if ours else math.inf
