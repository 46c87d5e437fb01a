"""What the walks of a run have in common: sums that stay on the device, and one warning per run."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gasam.trace import Trace

ENOUGH_WALKS = 20
MANY_TIMES = 10.0
_CURE = "give the walk a cap and a gentle start, as recommended() does, or a smaller size"


@dataclass(frozen=True)
class Averages:
    """Sums over the finite walks of a run."""

    walks: float
    predicted: float
    measured: float
    measured_squares: float

    def rise_problem(self) -> str | None:
        """Whether the loss rises far more than predicted, beyond the noise of fresh dropout masks."""
        if self.walks < ENOUGH_WALKS:
            return None
        mean, predicted = self.measured / self.walks, self.predicted / self.walks
        error = math.sqrt(max(self.measured_squares / self.walks - mean**2, 0.0) / self.walks)
        if mean <= MANY_TIMES * max(predicted, 0.0) or mean <= 4 * error:
            return None
        times = f"{mean / predicted:.0f} times" if predicted > 0 else "not"
        return f"too large: the loss rises by {mean:.2g} on average, {times} the predicted rise"


class Watch:
    """Adds up the walks of a run, and warns once if they are too large, too small or not finite.

    It looks every 20 walks. The numbers are then copied from an accelerator without waiting, and read when they have
    arrived.
    """

    def __init__(self) -> None:
        self._walks = 0
        self._sums: Tensor | None = None
        self._copy: Tensor | None = None
        self._arrived: torch.Event | None = None
        self._warned = False

    @torch.no_grad()
    def add(self, trace: Trace) -> Trace:
        """Count a walk; return its trace, with the averages in it."""
        assert trace.groups is not None
        assert trace.predicted_rise is not None
        like = trace.predicted_rise
        finite = trace.climbed.to(like)
        rise = torch.zeros_like(like) if trace.rise is None else trace.rise.to(like).nan_to_num(0.0, 0.0, 0.0) * finite
        largest = trace.groups.ratios.nan_to_num(0.0, posinf=0.0).amax() if len(trace.groups.ratios) else like * 0
        numbers = [
            finite,
            finite * like.nan_to_num(0.0, 0.0, 0.0),
            rise,
            rise * rise,
            trace.not_finite.to(like),
            (largest.to(like) > 1) * finite,
            trace.too_small.to(like),
        ]
        seen = torch.stack(numbers)
        self._sums = seen if self._sums is None else self._sums + seen
        self._walks += 1
        if not self._warned and (self._copy is not None or self._walks % ENOUGH_WALKS == 0):
            self._look(trace)
        return replace(trace, watched=self._sums)

    def _look(self, trace: Trace) -> None:
        numbers = self._numbers()
        if numbers is None:
            return
        finite, _, _, _, not_finite, too_far, too_small = numbers
        problem = averages(numbers).rise_problem() if trace.rise is not None else None
        if too_far:
            name, ratio = trace.groups.largest_ratio()  # type: ignore[union-attr]
            problem = (
                f"too large: in {too_far:.0f} of {self._walks} walks some group moved by more than its own norm (now "
                f"{ratio:.2g} times in {name})"
            )
        elif not_finite > finite:
            problem = f"not finite: {not_finite:.0f} of {self._walks} walks met a NaN or an infinity"
        elif too_small == self._walks:
            problem = "too small to matter: the predicted rise is below the rounding of the loss in every walk"
        if problem is not None:
            self._warned = True
            cure = "give a larger budget or epsilon" if problem.startswith("too small") else _CURE
            warnings.warn(f"the walk is {problem}: {cure}", UserWarning, stacklevel=4)

    def _numbers(self) -> list[float] | None:
        assert self._sums is not None
        if self._sums.device.type == "cpu":
            return self._sums.tolist()
        if self._arrived is None:
            self._copy = self._sums.to("cpu", non_blocking=True)
            self._arrived = torch.Event(self._sums.device)
            self._arrived.record()
            return None
        if not self._arrived.query():
            return None
        numbers, self._copy, self._arrived = self._copy.tolist(), None, None  # type: ignore[union-attr]
        return numbers


def averages(sums: list[float]) -> Averages:
    return Averages(*sums[:4])
