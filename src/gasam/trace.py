"""`Trace`, the report of one step, derived from sums on the device when somebody reads it; and one warning a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gasam.scales import comparable_norms

OFF = "off: one plain pass"
WAITING = "waiting: one plain pass, because the schedule's strength is 0"
BETWEEN = "between walks: one plain pass"
NOT_FINITE = "not finite: a loss, gradient or scale was NaN or infinite"
NO_GRADIENT = "did not move: the gradient or the scale is zero"
AT_ZERO = "did not move: all weights are zero, and the cap or the scale is relative to them"
UNSEEN = "without effect: the weights moved, and the loss did not change by one bit"
UNSEEN_CURE = "if the model reads its weights by another name, such as a view of a flat buffer, give in_place=True"
SAMPLED = 20
"""The first walks are measured in full, and then one in as many. A warning judges as many measured walks together."""
MANY_TIMES = 10.0
"""A walk is too large if the measured rise is more than this many times the predicted one."""


@dataclass(eq=False, repr=False)
class Measured:
    """What a measured walk knows of each group in its last pass; of each tensor with granularity "element" or "model".

    The last three fields have only detailed walks, and not with per_worker, whose last gradient is not alone.
    """

    find_labels: Callable[[], list[str]]  # the names of the groups
    offsets: Tensor  # |a_i|
    weights: Tensor  # |w_i|
    sizes: Tensor  # n_i
    rms_weight: Tensor  # the root mean square of all weights
    capped: Tensor  # whether the cap limited the offset
    predicted_rise: Tensor  # first-order rise of the mean loss
    at_zero: Tensor  # whether all weights are zero although there is a gradient
    gradient_norms: Tensor | None = None  # |g_0,i|
    gradient_ratios: Tensor | None = None  # |g_K,i| / |g_0,i|
    cosines: Tensor | None = None  # between the clean and the last gradient

    @property
    def labels(self) -> list[str]:
        return self.find_labels()

    @property
    def ratios(self) -> Tensor:
        """|a_i| / max(|w_i|, 0.01 sqrt(n_i) rms(w)), as in the cap."""
        return self.offsets / comparable_norms(self.weights, self.sizes, self.rms_weight)

    @property
    def too_far(self) -> Tensor:
        """Whether |a_i| > max(|w_i|, sqrt(n_i) rms(w)) for a group: otherwise every bias near zero would count."""
        return (self.offsets > torch.maximum(self.weights, self.sizes.sqrt() * self.rms_weight)).any()

    def largest_ratio(self) -> tuple[str, float]:
        """The name of the group with the largest ratio, and this ratio."""
        ratios = self.ratios.nan_to_num(0.0, posinf=0.0).tolist()
        return max(zip(self.labels, ratios, strict=True), key=lambda each: each[1], default=("no group", 0.0))

    def summary(self) -> dict[str, float]:
        ratio = self.offsets.square().sum().sqrt() / self.weights.square().sum().sqrt().clamp(min=1e-30)
        return {
            "predicted_rise": float(self.predicted_rise),
            "perturbation_ratio": float(ratio),
            "largest_ratio": self.largest_ratio()[1],
            "capped": float(self.capped.double().mean()) if len(self.capped) else 0.0,
        }

    def __str__(self) -> str:
        columns = [self.offsets, self.weights, self.ratios, self.cosines, self.gradient_ratios]
        unknown = torch.full_like(self.offsets, torch.nan)
        rows = torch.stack([unknown if each is None else each for each in columns]).T.tolist()
        lines = ["       |a|    |a|/|w|  cosine  |g'|/|g|  (of the last and the clean gradient)"]
        for label, (a, w, ratio, cosine, growth) in zip(self.labels, rows, strict=True):
            share = f"{ratio:10.3e}" if w > 0 else "      zero"
            lines.append(f"{a:10.3e} {share} {cosine:7.3f} {growth:8.3f}  {label}")
        return "\n".join(lines)


@dataclass(eq=False, repr=False)
class Trace:
    """The report of one training step. Its tensors stay on the device; printing it synchronises.

    Always known are the losses, |a| and whether everything was finite. The rest is measured in the first 20 walks, then
    in one of 20, and with `detailed=True`; `verdict()` and `metrics()` report the last measured walk and its step.

    Args:
        losses: L(w + a_k) for k = 0..K, as the loss function returned them.
        offsets: |a_i| of each group for k = 1..K. FreeLB's noise has a length for k = 0 as well.
        finite: Whether all losses, gradients and scales were finite.
        plain: The reason for a plain pass; None for a walk.
        strength: The strength of the schedule in this step.
        loss_scale: The losses divided by the mean loss; None if it is not known.
        step: The number of the optimizer step.
        groups: What was measured; None in other steps.
        sampled: The trace of the last measured walk; None before the first one.
        window: Numbers of 20 measured walks up to this one; None before that.
    """

    losses: list[Tensor]
    offsets: list[Tensor] = field(default_factory=list)
    finite: Tensor | bool = True
    plain: str | None = None
    strength: float = 1.0
    loss_scale: Tensor | float | None = 1.0
    step: int = 0
    groups: Measured | None = None
    sampled: Trace | None = None
    window: Tensor | None = None

    @cached_property
    def norms(self) -> list[Tensor]:
        """|a_k|_2 for k = 0..K."""
        norms = [offsets.square().sum().sqrt() for offsets in self.offsets]
        return [torch.zeros_like((norms or self.losses)[0])] * (len(self.losses) - len(norms)) + norms

    @property
    def detail(self) -> Measured | None:
        """The same as `groups`; None without `detailed=True`."""
        return None if self.groups is None or self.groups.cosines is None else self.groups

    @property
    def sharpness(self) -> Tensor:
        """L(w + a_K) - L(w)."""
        return self.losses[-1] - self.losses[0]

    @property
    def rise(self) -> Tensor | None:
        """The measured rise of the mean loss; None if the unit of the losses is not known."""
        return None if self.loss_scale is None else self.sharpness / self.loss_scale

    @property
    def predicted_rise(self) -> Tensor | None:
        """First-order rise of the mean loss; None if it was not measured."""
        return None if self.groups is None else self.groups.predicted_rise

    @property
    def climbed(self) -> Tensor:
        """Whether the weights moved and everything was finite."""
        return ~self.not_finite & (self.norms[-1] > 0)

    @property
    def not_finite(self) -> Tensor:
        return ~torch.as_tensor(self.finite, device=self.losses[0].device)

    @property
    def between_walks(self) -> bool:
        """Whether the schedule's `every` skipped the walk of this step."""
        return self.plain == BETWEEN

    @property
    def too_small(self) -> Tensor:
        """Whether the predicted rise is smaller than the rounding error of the loss."""
        if self.predicted_rise is None or self.loss_scale is None:
            return torch.tensor(False)
        rounding = (self.losses[0] / self.loss_scale).abs() * torch.finfo(self.losses[0].dtype).eps
        return self.climbed & (self.predicted_rise.to(rounding) < rounding)

    def verdict(self) -> str:
        """One sentence: fine, waiting, between walks, too small, too large, not finite, or why nothing moved."""
        if self.plain is not None:
            return self.plain
        if self.not_finite:
            return NOT_FINITE
        if not self.climbed:
            return AT_ZERO if self.groups is not None and self.groups.at_zero else NO_GRADIENT
        if self.groups is None:
            return (
                "fine" if self.sampled is None else f"{self.sampled.verdict()} (measured in step {self.sampled.step})"
            )
        if self.groups.too_far:
            name, ratio = self.groups.largest_ratio()
            return f"too large: {name} moved by {ratio:.2g} times its norm"
        if self.window is not None and self.rise is not None and (problem := _problem_of_rises(_read(self.window))):
            return problem
        if self.too_small:
            return f"too small to matter: the predicted rise {_text(self.predicted_rise)} is below the loss's rounding"
        return f"{UNSEEN}: {UNSEEN_CURE}" if self.losses[-1] == self.losses[0] else "fine"

    def metrics(self) -> dict[str, float]:
        """Plain numbers of the last measured walk and its step, for loggers. Reading them synchronises.

        `loss` and `sharpness` are in units of the loss function; `rise` and `predicted_rise` are in units of the mean
        loss. A plain pass has its own numbers, with zeros because it does not move. What is not known is NaN.
        """
        if self.plain is None and self.groups is None and self.sampled is not None:
            return self.sampled.metrics()
        names = "predicted_rise", "perturbation_ratio", "largest_ratio", "capped"
        unknown = dict.fromkeys(names, math.nan if self.plain is None else 0.0)
        return {
            "step": float(self.step),
            "loss": float(self.losses[0]),
            "sharpness": float(self.sharpness),
            "rise": math.nan if self.rise is None else float(self.rise),
            "perturbation_norm": float(self.norms[-1]),
            "strength": self.strength,
        } | (unknown if self.groups is None else self.groups.summary())

    def __repr__(self) -> str:
        parts = [self.verdict(), f"losses {', '.join(f'{float(loss):.6g}' for loss in self.losses)}"]
        if len(self.losses) > 1:
            norms = ", ".join(f"{float(norm):.4g}" for norm in self.norms)
            parts += [f"rise {_text(self.rise)}, predicted {_text(self.predicted_rise)}", f"|a| {norms}"]
        if self.groups is not None:
            summary, (name, ratio) = self.groups.summary(), self.groups.largest_ratio()
            parts.append(f"|a|/|w| {summary['perturbation_ratio']:.2g}, largest {ratio:.2g} in {name}")
            parts.append(f"{summary['capped']:.0%} of the groups capped")
        if self.strength != 1:
            parts.append(f"strength {self.strength:.2g}")
        line = "; ".join(parts)
        return line if self.detail is None else f"{line}\n{self.detail}"


class _Walk(NamedTuple):
    """The numbers of a measured walk from which a run is judged."""

    judged: float  # finite, and not limited by the cap in every group
    predicted: float
    rise: float
    too_far: float
    too_small: float
    unseen: float  # moved the weights and changed the loss by not one bit


def _numbers_of(trace: Trace, groups: Measured) -> Tensor:
    """The numbers of one walk in the order of `_Walk`."""
    climbed, predicted = trace.climbed, groups.predicted_rise
    judged = climbed & ~groups.capped.all() if len(groups.capped) else torch.zeros_like(climbed)
    rise = predicted if trace.rise is None else trace.rise
    unseen = climbed & ~trace.too_small & (trace.sharpness == 0)
    numbers = judged, predicted, rise, climbed & groups.too_far, trace.too_small, unseen
    return torch.stack([number.to(predicted) for number in numbers]).nan_to_num(0.0, 0.0, 0.0)


def _read(window: Tensor) -> list[_Walk]:
    return [_Walk(*row) for row in window.tolist()]


def _problem_of_rises(walks: list[_Walk]) -> str | None:
    """A message if the loss rises far more than predicted, and more than the noise of dropout masks explains.

    Walks that the cap limits in all groups are not judged: the cap determines their size, and close to a minimum the
    first-order prediction vanishes.
    """
    if not all(walk.judged for walk in walks):
        return None
    rises = [walk.rise for walk in walks]
    mean, predicted = fmean(rises), fmean(walk.predicted for walk in walks)
    if mean <= MANY_TIMES * max(predicted, 0.0) or mean <= 4 * pstdev(rises) / math.sqrt(len(rises)):
        return None
    return f"too large: the loss rises by {mean:.2g} on average, but {predicted:.2g} was predicted"


class Watch:
    """Collects the measured walks of a run in windows of 20, and warns once if they are too large, too small or odd.

    At the end of a window its numbers are copied from the accelerator asynchronously, and read when they have arrived.
    Whether walks are finite is counted for all of them, in `walks` and `not_finite`.
    """

    def __init__(self) -> None:
        self.walks = 0
        self.not_finite: Any = 0  # walks since the last window, on the device
        self.last: Trace | None = None  # the last measured walk
        self._window: Tensor | None = None  # the numbers of the last complete window
        self._numbers: list[Tensor] = []
        self._before = 0  # walks at the end of the last window
        self._copy: tuple[Tensor, Tensor, int] | None = None  # the window, the walks not finite, and all walks
        self._arrived: torch.Event | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    @property
    def measures_next(self) -> bool:
        """Whether the next walk is measured in full."""
        return self.walks < SAMPLED or self.walks % SAMPLED == 0

    @torch.no_grad()
    def add(self, trace: Trace) -> None:
        """Count a walk, and judge it if it was measured."""
        self.walks += 1
        self.not_finite += ~trace.finite if isinstance(trace.finite, Tensor) else not trace.finite
        if trace.groups is None:
            trace.sampled = self.last
            return
        self._numbers.append(_numbers_of(trace, trace.groups))
        if len(self._numbers) == SAMPLED:
            self._end_window()
        self.last, trace.window = trace, self._window
        if self._copy is not None and (self._arrived is None or self._arrived.query()):
            window, not_finite, walks = self._copy
            self._copy = self._arrived = None
            self._warn(_read(window), int(not_finite), walks, trace.groups)

    def _end_window(self) -> None:
        self._window, self._numbers = torch.stack(self._numbers), []
        not_finite = torch.as_tensor(self.not_finite)
        here = [tensor.to("cpu", non_blocking=True) for tensor in (self._window, not_finite)]
        if self._window.device.type != "cpu":
            self._arrived = torch.Event(self._window.device)
            self._arrived.record()
        self._copy = here[0], here[1], self.walks - self._before
        self._before, self.not_finite = self.walks, 0

    def _warn(self, window: list[_Walk], not_finite: int, walks: int, groups: Measured) -> None:
        if self._warned:
            return
        problem, far = _problem_of_rises(window), sum(walk.too_far for walk in window)
        cure = "give a cap and Schedule(progress=0.2), as in recommended(), or a smaller epsilon or budget"
        if far >= SAMPLED / 4:
            name, ratio = groups.largest_ratio()
            problem = (
                f"too large: in {far:.0f} of the last {SAMPLED} walks a group moved by more than its norm, and in the "
                f"last one {name} moved by {ratio:.2g} times its norm"
            )
        elif 2 * not_finite > walks:
            problem = f"not finite: {not_finite} of the last {walks} walks had a NaN or an infinity"
            cure = 'check plain training first, or give on_overflow="clean", which then uses the clean gradient'
        elif all(walk.too_small for walk in window):
            problem = "too small to matter: the predicted rise is below the rounding of the loss"
            cure = "give a larger budget or epsilon"
        elif all(walk.unseen for walk in window):
            problem, cure = UNSEEN, UNSEEN_CURE
        if problem is not None:
            self._warned = True
            warnings.warn(f"the walk is {problem}: {cure}", UserWarning, stacklevel=4)


def _text(value: Tensor | None) -> str:
    return "unknown" if value is None else f"{float(value):.4g}"
