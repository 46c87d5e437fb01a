"""`Trace`, the report of one step, derived from sums on the device when somebody reads it; and one warning a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gasam.scales import comparable_norms

OFF, CLIMBED, NO_GRADIENT, NOT_FINITE, WAITING, AT_ZERO, BETWEEN = 0, 1, 2, 3, 4, 5, 6

MEANING = {
    OFF: "off: one plain pass",
    CLIMBED: "fine",
    NO_GRADIENT: "did not move: the gradient or the scale is zero",
    NOT_FINITE: "not finite: a loss, gradient or scale was NaN or infinite",
    WAITING: "waiting: one plain pass, because the schedule's strength is 0",
    BETWEEN: "between walks: one plain pass",
    AT_ZERO: "did not move: all weights are zero, and the cap or the scale is relative to them",
}
UNSEEN = "without effect: the weights moved, and the loss did not change by one bit"
UNSEEN_CURE = "if the model reads its weights by another name, such as a view of a flat buffer, give in_place=True"
SAMPLED = 20
"""The first walks are measured in full, and then one in as many. A warning judges as many measured walks together."""
MANY_TIMES = 10.0
"""A walk is too large if the measured rise is more than this many times the predicted one."""


@dataclass(eq=False, repr=False)
class Measured:
    """What a measured walk knows of each group in its last pass; of each tensor with granularity "element" or "model".

    Args:
        find_labels: Returns the names of the groups.
        offsets: |a_i|.
        weights: |w_i|.
        sizes: n_i.
        rms_weight: The root mean square of all weights.
        capped: Whether the cap limited the offset.
        predicted_rise: First-order rise of the mean loss.
        at_zero: Whether all weights are zero although there is a gradient.
        realised_norm: |fl(w + a) - w|, and the cosine between this and a. The rest has only a detailed walk.
        realised_cosine: See there.
        gradient_norms: |g_0,i|; None also with per_worker, where the last gradient is not alone.
        gradient_ratios: |g_K,i| / |g_0,i|.
        cosines: Between the clean and the last gradient.
    """

    find_labels: Callable[[], list[str]]
    offsets: Tensor
    weights: Tensor
    sizes: Tensor
    rms_weight: Tensor
    capped: Tensor
    predicted_rise: Tensor
    at_zero: Tensor
    realised_norm: Tensor | None = None
    realised_cosine: Tensor | None = None
    gradient_norms: Tensor | None = None
    gradient_ratios: Tensor | None = None
    cosines: Tensor | None = None

    @property
    def labels(self) -> list[str]:
        return self.find_labels()

    @property
    def ratios(self) -> Tensor:
        """|a_i| / max(|w_i|, 0.01 sqrt(n_i) rms(w)), as in the cap."""
        return self.offsets / comparable_norms(self.weights, self.sizes, self.rms_weight)

    @property
    def too_far(self) -> Tensor:
        """Whether |a_i| > max(|w_i|, sqrt(n_i) rms(w)): without the second term, every bias near zero would count."""
        return self.offsets > torch.maximum(self.weights, self.sizes.sqrt() * self.rms_weight)

    @property
    def with_signal(self) -> Tensor:
        """Whether a group's clean gradient is more than rounding noise, relative to that of the whole model."""
        assert self.gradient_norms is not None
        usual = (self.gradient_norms.square().sum() / self.sizes.sum().clamp(min=1)).sqrt()
        return self.gradient_norms > 1e-5 * usual * self.sizes.sqrt()

    def largest_ratio(self) -> tuple[str, float]:
        """The name of the group with the largest ratio, and this ratio."""
        ratios = self.ratios.nan_to_num(0.0, posinf=0.0)
        if not len(ratios):
            return "no group", 0.0
        where = int(ratios.argmax())
        return self.labels[where], float(ratios[where])

    def summary(self) -> dict[str, float]:
        ratio = self.offsets.square().sum().sqrt() / self.weights.square().sum().sqrt().clamp(min=1e-30)
        return {
            "predicted_rise": float(self.predicted_rise),
            "perturbation_ratio": float(ratio),
            "largest_ratio": self.largest_ratio()[1],
            "capped": float(self.capped.double().mean()) if len(self.capped) else 0.0,
        }

    def __str__(self) -> str:
        nothing = torch.full_like(self.offsets, torch.nan)
        known = [nothing if each is None else each for each in (self.cosines, self.gradient_ratios)]
        columns = torch.stack([self.offsets, self.weights, self.ratios, *known]).T.tolist()
        lines = ["       |a|    |a|/|w|  cosine  |g'|/|g|  (of the last and the clean gradient)"]
        if self.realised_norm is not None and self.realised_cosine is not None:
            lines.insert(0, f"realised |a| {float(self.realised_norm):.4g}, cosine {float(self.realised_cosine):.4f}")
        for label, (a, w, ratio, cosine, growth) in zip(self.labels, columns, strict=True):
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
        window: Sums over the last 20 measured walks; None before that.
    """

    losses: list[Tensor]
    offsets: list[Tensor] = field(default_factory=list)
    finite: Tensor | bool = True
    plain: int | None = None
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

    @cached_property
    def active(self) -> Tensor:
        """A code for the outcome; MEANING translates it into words."""
        if self.plain is not None:
            return torch.tensor(self.plain)
        moved, still = self.norms[-1] > 0, torch.tensor(NO_GRADIENT)
        if self.groups is not None:
            still = torch.where(self.groups.at_zero, AT_ZERO, NO_GRADIENT)
        finite = torch.as_tensor(self.finite, device=moved.device)
        return torch.where(finite, torch.where(moved, CLIMBED, still), NOT_FINITE)

    @property
    def predicted_rise(self) -> Tensor | None:
        """First-order rise of the mean loss; None if it was not measured."""
        return None if self.groups is None else self.groups.predicted_rise

    @property
    def detail(self) -> Measured | None:
        """The same as `groups`; None without `detailed=True`."""
        return None if self.groups is None or self.groups.realised_norm is None else self.groups

    @property
    def sharpness(self) -> Tensor:
        """L(w + a_K) - L(w)."""
        return self.losses[-1] - self.losses[0]

    @property
    def rise(self) -> Tensor | None:
        """The measured rise of the mean loss; None if the unit of the losses is not known."""
        return None if self.loss_scale is None else self.sharpness / self.loss_scale

    @property
    def climbed(self) -> Tensor:
        """Whether the weights moved and everything was finite."""
        return self.active == CLIMBED

    @property
    def not_finite(self) -> Tensor:
        return self.active == NOT_FINITE

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
        code = int(self.active)
        if code != CLIMBED or (self.groups is None and self.sampled is None):
            return MEANING[code]
        if self.groups is None:
            assert self.sampled is not None
            return f"{self.sampled.verdict()} (measured in step {self.sampled.step})"
        if self.groups.too_far.any():
            name, ratio = self.groups.largest_ratio()
            return f"too large: {name} moved by {ratio:.2g} times its norm"
        problem = None if self.window is None or self.rise is None else Totals(*self.window.tolist()).rise_problem()
        if problem is not None:
            return problem
        if self.too_small:
            return f"too small to matter: the predicted rise {_text(self.predicted_rise)} is below the loss's rounding"
        return f"{UNSEEN}: {UNSEEN_CURE}" if self.losses[-1] == self.losses[0] else MEANING[code]

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


class Totals(NamedTuple):
    """Sums over the measured walks of a window."""

    finite: float  # number of finite walks
    judged: float  # number of finite walks that the cap did not limit in every group
    predicted: float  # sum of the predicted rises of the judged walks
    measured: float  # sum of their measured rises
    measured_squares: float
    too_far: float  # number of walks in which a group moved by more than its norm
    too_small: float  # number of walks whose predicted rise is below the rounding of the loss
    unseen: float  # number of walks that moved the weights and changed the loss by not one bit

    def rise_problem(self) -> str | None:
        """A message if the loss rises far more than predicted, and more than the noise of dropout masks explains.

        Walks that the cap limits in all groups are not judged: the cap determines their size, and close to a minimum
        the first-order prediction vanishes.
        """
        if self.judged < SAMPLED:
            return None
        mean, predicted = self.measured / self.judged, self.predicted / self.judged
        error = math.sqrt(max(self.measured_squares / self.judged - mean**2, 0.0) / self.judged)
        if mean <= MANY_TIMES * max(predicted, 0.0) or mean <= 4 * error:
            return None
        return f"too large: the loss rises by {mean:.2g} on average, but {predicted:.2g} was predicted"


class Watch:
    """Sums up the measured walks of a run in windows of 20, and warns once if they are too large, too small or odd.

    At the end of a window the sums are copied from the accelerator asynchronously, and read when they have arrived.
    Whether walks are finite is counted for all of them, in `walks` and `not_finite`.
    """

    def __init__(self) -> None:
        self.walks = 0
        self.not_finite: Any = 0  # walks since the last window, on the device
        self.last: Trace | None = None  # the last measured walk
        self.window: Tensor | None = None  # the sums of the last complete window
        self._sums: Any = 0
        self._measured = self._before = self._walks_of_copy = 0
        self._copy: Tensor | None = None
        self._arrived: torch.Event | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    @torch.no_grad()
    def add(self, trace: Trace) -> None:
        """Count a measured walk."""
        self.last, trace.window = trace, self.window
        self._sums = self._sums + _numbers_of(trace)
        self._measured += 1
        if self._measured % SAMPLED == 0:
            self.window = trace.window = self._sums
            sums = torch.cat([self._sums, self._sums.new_zeros(1) + self.not_finite])
            self._copy, self._arrived = sums.to("cpu", non_blocking=True), None
            if sums.device.type != "cpu":
                self._arrived = torch.Event(sums.device)
                self._arrived.record()
            self._walks_of_copy, self._before = self.walks - self._before, self.walks
            self._sums = self.not_finite = 0
        if not self._warned and self._copy is not None and (self._arrived is None or self._arrived.query()):
            *totals, not_finite = self._copy.tolist()
            self._copy = self._arrived = None
            self._warn(Totals(*totals), not_finite, trace)

    def _warn(self, totals: Totals, not_finite: float, trace: Trace) -> None:
        problem = totals.rise_problem()
        cure = "give a cap and Schedule(progress=0.2), as in recommended(), or a smaller epsilon or budget"
        if totals.too_far >= SAMPLED / 4:
            name, ratio = trace.groups.largest_ratio()  # type: ignore[union-attr]
            problem = (
                f"too large: in {totals.too_far:.0f} of the last {SAMPLED} walks a group moved by more than its norm, "
                f"and in the last one {name} moved by {ratio:.2g} times its norm"
            )
        elif 2 * not_finite > self._walks_of_copy:
            problem = f"not finite: {not_finite:.0f} of the last {self._walks_of_copy} walks had a NaN or an infinity"
            cure = 'check plain training first, or give on_overflow="clean", which then uses the clean gradient'
        elif totals.too_small == SAMPLED:
            problem = "too small to matter: the predicted rise is below the rounding of the loss"
            cure = "give a larger budget or epsilon"
        elif totals.unseen == SAMPLED:
            problem, cure = UNSEEN, UNSEEN_CURE
        if problem is not None:
            self._warned = True
            warnings.warn(f"the walk is {problem}: {cure}", UserWarning, stacklevel=4)


def _numbers_of(trace: Trace) -> Tensor:
    """The numbers of one walk in the order of `Totals`."""
    groups: Any = trace.groups
    like = groups.predicted_rise
    finite = trace.climbed.to(like)
    judged = finite * ~groups.capped.all() if len(groups.capped) else torch.zeros_like(finite)
    predicted = judged * like.nan_to_num(0.0, 0.0, 0.0)
    rise = judged * (like if trace.rise is None else trace.rise.to(like)).nan_to_num(0.0, 0.0, 0.0)
    too_far, too_small = finite * groups.too_far.any(), trace.too_small.to(like)
    unseen = finite * (1 - too_small) * (trace.sharpness == 0)
    return torch.stack([finite, judged, predicted, rise, rise * rise, too_far, too_small, unseen])


def _text(value: Tensor | None) -> str:
    return "unknown" if value is None else f"{float(value):.4g}"
