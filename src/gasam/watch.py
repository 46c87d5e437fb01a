"""`Watch`, which warns once per run if its walks are too large, too small or not finite."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gasam.trace import Trace

WINDOW = 20
"""Walks that are judged together."""
MANY_TIMES = 10.0
"""A walk is too large if the measured rise is more than this many times the predicted one."""


class Totals(NamedTuple):
    """Sums over the walks of a window."""

    finite: float  # number of finite walks
    judged: float  # number of finite walks that the cap did not limit in every group
    predicted: float  # sum of the predicted rises of the judged walks
    measured: float  # sum of their measured rises
    measured_squares: float
    not_finite: float  # number of walks that were not finite
    too_far: float  # number of walks in which a group moved by more than its norm
    too_small: float  # number of walks whose predicted rise is below the rounding of the loss

    def rise_problem(self) -> str | None:
        """A message if the loss rises far more than predicted, and more than the noise of dropout masks explains.

        Walks that the cap limits in all groups are not judged: the cap determines their size, and close to a minimum
        the first-order prediction vanishes.
        """
        if self.judged < WINDOW:
            return None
        mean, predicted = self.measured / self.judged, self.predicted / self.judged
        error = math.sqrt(max(self.measured_squares / self.judged - mean**2, 0.0) / self.judged)
        if mean <= MANY_TIMES * max(predicted, 0.0) or mean <= 4 * error:
            return None
        return f"too large: the loss rises by {mean:.2g} on average, but {predicted:.2g} was predicted"


class Watch:
    """Sums up the walks of a run in windows of 20, and warns once if they are too large, too small or not finite.

    At the end of a window the sums are copied from the accelerator asynchronously, and read when they have arrived.
    """

    def __init__(self) -> None:
        self._walks = 0
        self._sums: Tensor | None = None
        self._window: Tensor | None = None  # the sums of the last complete window
        self._copy: Tensor | None = None
        self._arrived: torch.Event | None = None
        self._warned = False

    @torch.no_grad()
    def add(self, trace: Trace) -> Trace:
        """Count a walk; return its trace with the sums of the last complete window."""
        seen = _numbers_of(trace)
        self._sums = seen if self._sums is None else self._sums + seen
        self._walks += 1
        if self._walks % WINDOW == 0:
            self._window, self._sums = self._sums, None
            self._start_copy(self._window)
        if not self._warned and self._copy is not None and (self._arrived is None or self._arrived.query()):
            totals, self._copy, self._arrived = Totals(*self._copy.tolist()), None, None
            self._warn(totals, trace)
        return replace(trace, window=self._window)

    def _start_copy(self, sums: Tensor) -> None:
        self._copy, self._arrived = sums.to("cpu", non_blocking=True), None
        if sums.device.type != "cpu":
            self._arrived = torch.Event(sums.device)
            self._arrived.record()

    def _warn(self, totals: Totals, trace: Trace) -> None:
        problem = totals.rise_problem()
        cure = "give a cap and Schedule(progress=0.2), as in recommended(), or a smaller epsilon or budget"
        if totals.too_far >= WINDOW / 4:
            name, ratio = trace.groups.largest_ratio()  # type: ignore[union-attr]
            problem = (
                f"too large: in {totals.too_far:.0f} of the last {WINDOW} walks a group moved by more than its norm, "
                f"and in the last one {name} moved by {ratio:.2g} times its norm"
            )
        elif totals.not_finite > totals.finite:
            problem = f"not finite: {totals.not_finite:.0f} of the last {WINDOW} walks had a NaN or an infinity"
            cure = 'check plain training first, or give on_overflow="clean", which then uses the clean gradient'
        elif totals.too_small == WINDOW:
            problem = "too small to matter: the predicted rise is below the rounding of the loss"
            cure = "give a larger budget or epsilon"
        if problem is not None:
            self._warned = True
            warnings.warn(f"the walk is {problem}: {cure}", UserWarning, stacklevel=4)


def _numbers_of(trace: Trace) -> Tensor:
    """The numbers of one walk in the order of `Totals`."""
    assert trace.groups is not None
    assert trace.predicted_rise is not None
    like, groups = trace.predicted_rise, trace.groups
    finite = trace.climbed.to(like)
    judged = finite * ~groups.capped.all() if len(groups.capped) else torch.zeros_like(finite)
    predicted = judged * like.nan_to_num(0.0, 0.0, 0.0)
    rise = judged * (like if trace.rise is None else trace.rise.to(like)).nan_to_num(0.0, 0.0, 0.0)
    too_far = finite * groups.too_far.any()
    not_finite, too_small = trace.not_finite.to(like), trace.too_small.to(like)
    return torch.stack([finite, judged, predicted, rise, rise * rise, not_finite, too_far, too_small])
