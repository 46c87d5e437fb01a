"""`Trace`, the report of one step, derived from sums on the device when somebody reads it; and one warning a run."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from gasam.scales import comparable_norms

OFF = "off: one plain pass"
WAITING = "waiting: one plain pass, because the schedule's strength is 0"
BETWEEN = "between walks: one plain pass"
NOT_FINITE = "not finite: a loss, gradient or scale was NaN or infinite"
NO_GRADIENT = "did not move: the gradient or the scale is zero"
AT_ZERO = "did not move: all weights are zero, and the cap or the scale is relative to them"
TOO_SMALL = "too small to matter: the predicted rise is below the rounding of the loss"
UNSEEN = (
    "without effect: the weights moved, and the loss did not change by one bit: if the model reads its weights by "
    "another name, such as a view of a flat buffer, give in_place=True"
)
SAMPLED = 20
"""The first walks are measured in full, and then one in as many. A warning judges as many measured walks together."""
MANY_TIMES = 10.0
"""A walk is too large if the measured rise is more than this many times the predicted one."""


@dataclass(eq=False, repr=False)
class Measured:
    """What a measured walk knows of each group in its last pass; of each tensor with granularity "element" or "model".

    The last three fields have only detailed walks, and not with per_worker, whose last gradient is not alone.
    """

    labels: list[str]  # the names of the groups
    offsets: Tensor  # |a_i|
    weights: Tensor  # |w_i|
    sizes: Tensor  # n_i
    rms_weight: Tensor  # the root mean square of all weights
    capped: Tensor  # whether the cap limited the offset
    predicted_rise: Tensor  # first-order rise of the mean loss in the first step
    at_zero: Tensor  # whether all weights are zero although there is a gradient
    gradient_norms: Tensor | None = None  # |g_0,i|
    gradient_ratios: Tensor | None = None  # |g_K,i| / |g_0,i|
    cosines: Tensor | None = None  # between the clean and the last gradient

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

    def too_large(self) -> str:
        name, ratio = self.largest_ratio()
        return f"too large: {name} moved by {ratio:.2g} times its norm"

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

    Attributes:
        losses: L(w + a_k) for k = 0..K, as the loss function returned them.
        offsets: |a_i| of each group for k = 1..K. FreeLB's noise has a length for k = 0 as well.
        finite: Whether all losses, gradients and scales were finite.
        plain: The reason for a plain pass; None for a walk.
        strength: The strength of the schedule in this step.
        loss_scale: The losses divided by the mean loss; None if it is not known.
        step: The number of the optimizer step.
        groups: What was measured; None in other steps.
    """

    losses: list[Tensor]
    offsets: list[Tensor] = field(default_factory=list)
    finite: Tensor | bool = True
    plain: str | None = None
    strength: float = 1.0
    loss_scale: Tensor | float | None = 1.0
    step: int = 0
    groups: Measured | None = None
    sampled: Trace | None = None  # of the last measured walk
    problem: str | None = None  # what the rises of the last 20 measured walks showed

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
    def rise(self) -> Tensor:
        """The measured rise of the mean loss in the first step; NaN if the unit of the losses is not known."""
        return (self.losses[:2][-1] - self.losses[0]) / (math.nan if self.loss_scale is None else self.loss_scale)

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

    def verdict(self) -> str:
        """One sentence: fine, waiting, between walks, too small, too large, not finite, or why nothing moved."""
        if self.plain is not None:
            return self.plain
        if self.not_finite:
            return NOT_FINITE
        if not self.climbed:
            return AT_ZERO if self.groups is not None and self.groups.at_zero else NO_GRADIENT
        if self.groups is None:
            last = self.sampled
            return "fine" if last is None else f"{last.verdict()} (measured in step {last.step})"
        if self.groups.too_far:
            return self.groups.too_large()
        if self.problem is None and _is_too_small(self, self.groups):
            return TOO_SMALL
        return self.problem or (UNSEEN if self.losses[-1] == self.losses[0] else "fine")

    def metrics(self) -> dict[str, float]:
        """Plain numbers of the last measured walk and its step, for loggers. Reading them synchronises.

        `loss` and `sharpness` are in units of the loss function; `rise` and `predicted_rise` are in units of the mean
        loss. A plain pass has its own numbers, with zeros because it does not move. What is not known is NaN.
        """
        groups = self.groups
        if self.plain is None and groups is None and self.sampled is not None:
            return self.sampled.metrics()
        found = {
            "step": float(self.step),
            "loss": float(self.losses[0]),
            "sharpness": float(self.sharpness),
            "rise": float(self.rise),
            "perturbation_norm": float(self.norms[-1]),
            "strength": self.strength,
        }
        if groups is None:
            names = "predicted_rise", "perturbation_ratio", "largest_ratio", "capped"
            return found | dict.fromkeys(names, math.nan if self.plain is None else 0.0)
        return found | {
            "predicted_rise": float(groups.predicted_rise),
            "perturbation_ratio": float(groups.offsets.norm() / groups.weights.norm().clamp(min=1e-30)),
            "largest_ratio": groups.largest_ratio()[1],
            "capped": fmean(groups.capped.double().tolist() or [0.0]),
        }

    def __repr__(self) -> str:
        parts = [self.verdict(), f"losses {', '.join(f'{float(loss):.6g}' for loss in self.losses)}"]
        if len(self.losses) > 1:
            predicted = "" if self.groups is None else f", predicted {float(self.groups.predicted_rise):.4g}"
            parts.append(f"rise {float(self.rise):.4g}{predicted}")
            parts.append(f"|a| {', '.join(f'{float(norm):.4g}' for norm in self.norms)}")
        if self.groups is not None:
            metrics, (name, ratio) = self.metrics(), self.groups.largest_ratio()
            parts.append(f"|a|/|w| {metrics['perturbation_ratio']:.2g}, largest {ratio:.2g} in {name}")
            parts.append(f"{metrics['capped']:.0%} of the groups capped")
        if self.strength != 1:
            parts.append(f"strength {self.strength:.2g}")
        line = "; ".join(parts)
        return line if self.detail is None else f"{line}\n{self.detail}"


def _is_too_small(trace: Trace, groups: Measured) -> Tensor:
    """Whether the predicted rise is smaller than the rounding of the mean loss."""
    loss = trace.losses[0] / (math.nan if trace.loss_scale is None else trace.loss_scale)
    rounding = loss.abs() * torch.finfo(loss.dtype).eps
    return trace.climbed & (groups.predicted_rise.to(rounding) < rounding)


def _numbers_of(trace: Trace, groups: Measured) -> Tensor:
    """What a run is judged by: a row of a window. Walks that the cap limits in all groups are not `judged`."""
    climbed, too_small = trace.climbed, _is_too_small(trace, groups)
    judged = climbed & ~groups.capped.all() & (len(groups.capped) > 0)
    unseen = climbed & ~too_small & (trace.sharpness == 0)
    of_rise = judged, groups.predicted_rise, trace.rise
    numbers = *of_rise, trace.not_finite, climbed & groups.too_far, too_small, unseen
    return torch.stack([number.to(groups.predicted_rise) for number in numbers]).nan_to_num(0.0, 0.0, 0.0)


def _problem_of_rises(window: Tensor) -> str | None:
    """A message if the loss rises far more than predicted, and more than the noise of dropout masks explains.

    Walks that the cap limits in all groups are not judged: the cap determines their size, and close to a minimum the
    first-order prediction vanishes.
    """
    judged, predictions, rises, *_ = window.T.tolist()
    mean, predicted = fmean(rises), fmean(predictions)
    is_noise = mean <= 4 * pstdev(rises) / math.sqrt(len(rises))
    if not all(judged) or is_noise or mean <= MANY_TIMES * max(predicted, 0.0):
        return None
    return f"too large: the loss rises by {mean:.2g} on average, but {predicted:.2g} was predicted"


class Watch:
    """Collects the measured walks of a run in windows of 20, and warns once if they are too large, too small or odd.

    At the end of a window its numbers are copied from the accelerator asynchronously, and read when they have arrived.
    """

    def __init__(self) -> None:
        self.walks = 0
        self.last: Trace | None = None  # the last measured walk
        self._numbers: list[Tensor] = []
        self._window: Tensor | None = None  # the numbers of a complete window, until they are read
        self._arrived: torch.Event | None = None
        self._problem: str | None = None
        self._warned = False

    def __reduce__(self) -> Any:  # copies and pickles begin anew
        return Watch, ()

    @property
    def measures_next(self) -> bool:
        """Whether the next walk is measured in full."""
        return self.walks < SAMPLED or self.walks % SAMPLED == 0

    @torch.no_grad()
    def add(self, trace: Trace) -> None:
        """Count a walk, and judge it if it was measured."""
        self.walks += 1
        if trace.groups is None:
            trace.sampled = self.last
            return
        self._numbers.append(_numbers_of(trace, trace.groups))
        if len(self._numbers) == SAMPLED:
            numbers, self._numbers = torch.stack(self._numbers), []
            self._window = numbers.to("cpu", non_blocking=True)
            if numbers.device.type != "cpu":
                self._arrived = torch.Event(numbers.device)
                self._arrived.record()
        if self._window is not None and (self._arrived is None or self._arrived.query()):
            self._judge(self._window, trace.groups)
            self._window = self._arrived = None
        self.last, trace.problem = trace, self._problem

    def _judge(self, window: Tensor, groups: Measured) -> None:
        not_finite, too_far, too_small, unseen = map(int, window.sum(0).tolist()[3:])
        problem = self._problem = _problem_of_rises(window)
        cure = "give a cap and Schedule(progress=0.2), as in recommended(), or a smaller epsilon or budget"
        if too_far >= SAMPLED / 4:
            problem = f"{groups.too_large()}, and a group moved too far in {too_far} of the last {SAMPLED} walks"
        elif not_finite > SAMPLED / 2:
            problem = f"{NOT_FINITE} in {not_finite} of the last {SAMPLED} walks"
            cure = "check plain training first, and with float16 the loss scale"
        elif too_small == SAMPLED:
            problem, cure = TOO_SMALL, "give a larger budget or epsilon"
        elif unseen == SAMPLED:
            problem, _, cure = UNSEEN.rpartition(": ")
        if problem is not None and not self._warned:
            self._warned = True
            warnings.warn(f"the walk is {problem}: {cure}", UserWarning, stacklevel=5)
