"""`Trace`, the report of one step, made from raw sums when somebody reads it; and one warning a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gasam.scales import comparable_norms, inverse

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
UNSEEN = (
    "without effect: the weights moved, and the loss did not change by one bit: if the model reads its weights by "
    "another name, such as a view of a flat buffer, give in_place=True"
)
SAMPLED = 20
"""The first walks are measured in full, and then one in as many. A warning judges as many measured walks together."""
MANY_TIMES = 10.0
"""A walk is too large if the measured rise is more than this many times the predicted one."""


@dataclass
class Walked:
    """What a step leaves: numbers on the device, in which nothing was computed for the report alone.

    Args:
        losses: L(w + a_k) of each pass, as the loss function returned them.
        offsets: |a_i| of each group, for k = 1..K; FreeLB's noise has a length for k = 0 as well.
        finite: Whether all losses, gradients and scales were finite.
        plain: The reason for a plain pass; None for a walk.
        strength: The strength of the schedule in this step.
        loss_scale: The losses divided by the mean loss; None if it is not known.
        step: The number of the optimizer step.
        measured: What only a sampled walk has; None for all others.
    """

    losses: list[Tensor]
    offsets: list[Tensor] = field(default_factory=list)
    finite: Tensor | bool = True
    plain: int | None = None
    strength: float = 1.0
    loss_scale: Tensor | float | None = 1.0
    step: int = 0
    measured: Measured | None = None


@dataclass
class Measured:
    """The sums over groups that a sampled walk has, and `compared`, those of a detailed one."""

    find_labels: Callable[[], list[str]]
    sizes: Tensor
    weight_squares: Tensor
    all_weight_squares: Tensor  # of all weights that take part, including rows without a gradient
    total: int  # their number
    gradient_squares: Tensor
    predicted_rise: Tensor
    capped: Tensor
    compared: Compared | None = None


@dataclass
class Compared:
    """Of the last offset: |fl(w + a) - w|^2, and its product with a. Of the gradients: see `Detail`."""

    realised: Tensor
    with_offset: Tensor
    clean_norms: Tensor | None = None  # of the mean loss
    last_norms: Tensor | None = None
    products: Tensor | None = None


class GroupNorms:
    """|a_i| and |w_i| of each group in the last pass; of each tensor with granularity "element" or "model"."""

    def __init__(self, walked: Walked, measured: Measured) -> None:
        self.find_labels = measured.find_labels
        self.offsets = walked.offsets[-1]  # |a_i|
        self.weights = measured.weight_squares.sqrt()  # |w_i|
        self.sizes = measured.sizes  # n_i
        self.rms_weight = (measured.all_weight_squares / max(measured.total, 1)).sqrt()  # of all weights
        self.capped = measured.capped  # whether the cap limited the offset

    @property
    def ratios(self) -> Tensor:
        """|a_i| / max(|w_i|, 0.01 sqrt(n_i) rms(w)), as in the cap."""
        return self.offsets / comparable_norms(self.weights, self.sizes, self.rms_weight)

    @property
    def too_far(self) -> Tensor:
        """Whether |a_i| > max(|w_i|, sqrt(n_i) rms(w)).

        Without the second term, every bias that is still close to zero would count.
        """
        return self.offsets > torch.maximum(self.weights, self.sizes.sqrt() * self.rms_weight)

    @property
    def share_capped(self) -> Tensor:
        return self.capped.double().mean() if len(self.capped) else torch.zeros(())

    @property
    def ratio(self) -> float:
        """|a| / |w|."""
        return float(self.offsets.square().sum().sqrt() / self.weights.square().sum().sqrt().clamp(min=1e-30))

    def largest_ratio(self) -> tuple[str, float]:
        """The name of the group with the largest ratio, and this ratio."""
        ratios = self.ratios.nan_to_num(0.0, posinf=0.0)
        if not len(ratios):
            return "no group", 0.0
        where = int(ratios.argmax())
        return self.find_labels()[where], float(ratios[where])


class Detail:
    """The offset and gradient of the last pass for each group, and the offset after rounding to the weights' type."""

    def __init__(self, groups: GroupNorms, compared: Compared) -> None:
        self.groups = groups
        self.realised_norm = compared.realised.sum().sqrt()  # |fl(w + a) - w|
        norm = groups.offsets.square().sum().sqrt()
        self.realised_cosine = compared.with_offset.sum() * inverse(self.realised_norm * norm)  # with a
        # Of the clean and the last gradient of each group; None with per_worker, where the last one is not alone.
        self.cosines: Tensor | None = None
        self.gradient_norms: Tensor | None = compared.clean_norms  # |g_0,i|
        self.gradient_ratios: Tensor | None = None  # |g_K,i| / |g_0,i|
        if compared.clean_norms is not None:
            assert compared.last_norms is not None
            assert compared.products is not None
            self.cosines = compared.products * inverse(compared.clean_norms * compared.last_norms)
            self.gradient_ratios = compared.last_norms * inverse(compared.clean_norms)

    @property
    def with_signal(self) -> Tensor:
        """Whether a group's clean gradient is more than rounding noise, relative to that of the whole model."""
        assert self.gradient_norms is not None
        sizes = self.groups.sizes
        usual = (self.gradient_norms.square().sum() / sizes.sum().clamp(min=1)).sqrt()
        return self.gradient_norms > 1e-5 * usual * sizes.sqrt()

    @property
    def labels(self) -> list[str]:
        return self.groups.find_labels()

    @property
    def ratios(self) -> Tensor:
        """|a_i|/|w_i|."""
        return self.groups.ratios

    def __str__(self) -> str:
        nothing = torch.full_like(self.groups.offsets, torch.nan)
        cosines = nothing if self.cosines is None else self.cosines
        growth = nothing if self.gradient_ratios is None else self.gradient_ratios
        columns = torch.stack([self.groups.offsets, self.groups.weights, self.ratios, cosines, growth]).T.tolist()
        rows = [
            f"{a:10.3e} {f'{ratio:10.3e}' if w > 0 else '      zero'} {cosine:7.3f} {growth:8.3f}  {label}"
            for label, (a, w, ratio, cosine, growth) in zip(self.labels, columns, strict=True)
        ]
        head = f"realised |a| {self.realised_norm.item():.4g}, cosine {self.realised_cosine.item():.4f}"
        return "\n".join([head, "       |a|    |a|/|w|  cosine  |g'|/|g|  (of the last and the clean gradient)", *rows])


class Trace:
    """The report of one training step. Its tensors stay on the device; printing it synchronises.

    Always known are the losses, |a| and whether everything was finite. The rest is measured in the first 20 walks, then
    in one of 20, and with `detailed=True`; `verdict()` and `metrics()` report the last measured walk.

    Attributes:
        losses: L(w + a_k) for k = 0..K, as the loss function returned them.
        norms: |a_k|_2 for k = 0..K.
        active: A code for the outcome; MEANING translates it into words.
        strength: The strength of the schedule in this step.
        step: The number of the optimizer step.
        predicted_rise: First-order rise of the mean loss; None if it was not measured.
        loss_scale: The losses divided by the mean loss; None if it is not known.
        groups: Norms of each group; None if they were not measured.
        detail: Comparison of the gradients and rounding errors; None without `detailed=True`.
        sampled: The trace of the last measured walk; None before the first one.
        window: Sums over the last 20 measured walks; None before that.
    """

    def __init__(self, walked: Walked, sampled: Trace | None = None, window: Tensor | None = None) -> None:
        self._walked = walked
        self.losses = tuple(walked.losses)
        self.strength, self.loss_scale, self.step = walked.strength, walked.loss_scale, walked.step
        self.sampled = self if walked.measured is not None else sampled
        self.window = window

    @cached_property
    def norms(self) -> tuple[Tensor, ...]:
        norms = [offsets.square().sum().sqrt() for offsets in self._walked.offsets]
        missing = len(self.losses) - len(norms)  # the clean pass
        return *[torch.zeros_like(norms[0] if norms else self.losses[0])] * missing, *norms

    @cached_property
    def active(self) -> Tensor:
        walked, measured, moved = self._walked, self._walked.measured, self.norms[-1] > 0
        if walked.plain is not None:
            return torch.tensor(walked.plain)
        still: Any = NO_GRADIENT
        if measured is not None:
            at_zero = (measured.weight_squares.sum() == 0) & (measured.gradient_squares.sum() > 0)
            still = torch.where(at_zero, AT_ZERO, NO_GRADIENT)
        finite = torch.as_tensor(walked.finite, device=moved.device)
        return torch.where(finite, torch.where(moved, CLIMBED, still), NOT_FINITE)

    @cached_property
    def predicted_rise(self) -> Tensor | None:
        return None if self._walked.measured is None else self._walked.measured.predicted_rise

    @cached_property
    def groups(self) -> GroupNorms | None:
        measured = self._walked.measured
        return None if measured is None else GroupNorms(self._walked, measured)

    @cached_property
    def detail(self) -> Detail | None:
        measured = self._walked.measured
        return None if measured is None or measured.compared is None else Detail(self.groups, measured.compared)  # type: ignore[arg-type]

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
    def between_walks(self) -> bool:
        """Whether the schedule's `every` skipped the walk of this step."""
        return self._walked.plain == BETWEEN

    @property
    def not_finite(self) -> Tensor:
        return self.active == NOT_FINITE

    @property
    def too_small(self) -> Tensor:
        """Whether the predicted rise is smaller than the rounding error of the loss."""
        if self.predicted_rise is None or self.loss_scale is None:
            return torch.tensor(False)
        rounding = (self.losses[0] / self.loss_scale).abs() * torch.finfo(self.losses[0].dtype).eps
        return self.climbed & (self.predicted_rise.to(rounding) < rounding)

    def verdict(self) -> str:
        """One sentence: fine, waiting, between walks, too small, too large, not finite, or why nothing moved."""
        code = int(self.active.item())
        if code != CLIMBED or self.sampled is None:
            return MEANING[code]
        if self.sampled is not self:
            return f"{self.sampled.verdict()} (measured in step {self.sampled.step})"
        assert self.groups is not None
        if self.groups.too_far.any():
            name, ratio = self.groups.largest_ratio()
            return f"too large: {name} moved by {ratio:.2g} times its norm"
        problem = None if self.window is None or self.rise is None else Totals(*self.window.tolist()).rise_problem()
        if problem is not None:
            return problem
        if self.too_small.item():
            return (
                f"too small to matter: the predicted rise {_number(self.predicted_rise)} is below the loss's rounding"
            )
        return UNSEEN if bool(self.losses[-1] == self.losses[0]) else MEANING[code]

    def metrics(self) -> dict[str, float]:
        """Plain numbers of the last measured walk and its step, for loggers. Reading them synchronises.

        `loss` and `sharpness` are in units of the loss function; `rise` and `predicted_rise` are in units of the mean
        loss. A plain pass has its own numbers. What is not known is NaN.
        """
        if self._walked.plain is None and self.sampled is not None and self.sampled is not self:
            return self.sampled.metrics()
        groups, rise = self.groups, self.rise
        unknown = 0.0 if self._walked.plain is not None else math.nan  # a plain pass does not move
        return {
            "step": float(self.step),
            "loss": float(self.losses[0]),
            "sharpness": float(self.sharpness),
            "rise": math.nan if rise is None else float(rise),
            "predicted_rise": unknown if self.predicted_rise is None else float(self.predicted_rise),
            "perturbation_norm": float(self.norms[-1]),
            "perturbation_ratio": unknown if groups is None else groups.ratio,
            "largest_ratio": unknown if groups is None else groups.largest_ratio()[1],
            "capped": unknown if groups is None else float(groups.share_capped),
            "strength": self.strength,
        }

    def __repr__(self) -> str:
        losses = ", ".join(f"{loss.item():.6g}" for loss in self.losses)
        norms = ", ".join(f"{norm.item():.4g}" for norm in self.norms)
        parts = [self.verdict(), f"losses {losses}"]
        if len(self.losses) > 1:
            parts += [f"rise {_number(self.rise)}, predicted {_number(self.predicted_rise)}", f"|a| {norms}"]
        if self.groups is not None:
            name, ratio = self.groups.largest_ratio()
            parts.append(f"|a|/|w| {self.groups.ratio:.2g}, largest {ratio:.2g} in {name}")
            parts.append(f"{float(self.groups.share_capped):.0%} of the groups capped")
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
    Whether walks are finite is counted for all of them.
    """

    def __init__(self) -> None:
        self.last: Trace | None = None  # the last measured walk
        self._window: Tensor | None = None  # the sums of the last complete window
        self._sums: Tensor | None = None
        self.walks = 0
        self.not_finite: Any = 0  # walks since the last window, on the device
        self._measured = self._before = self._walks_of_copy = 0
        self._copy: Tensor | None = None
        self._arrived: torch.Event | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def trace(self, walked: Walked) -> Trace:
        """The trace of a step that was not measured."""
        return Trace(walked, self.last, self._window)

    @torch.no_grad()
    def add(self, walked: Walked) -> Trace:
        """Count a measured walk; return its trace."""
        self.last = trace = Trace(walked, window=self._window)
        seen = _numbers_of(trace)
        self._sums = seen if self._sums is None else self._sums + seen
        self._measured += 1
        if self._measured % SAMPLED == 0:
            self._window = trace.window = self._sums
            self._start_copy(torch.cat([self._sums, self._sums.new_zeros(1) + self.not_finite]))
            self._walks_of_copy, self._before = self.walks - self._before, self.walks
            self._sums, self.not_finite = None, 0
        if not self._warned and self._copy is not None and (self._arrived is None or self._arrived.query()):
            *totals, not_finite_walks = self._copy.tolist()
            self._copy = self._arrived = None
            self._warn(Totals(*totals), not_finite_walks, trace)
        return trace

    def _start_copy(self, sums: Tensor) -> None:
        self._copy, self._arrived = sums.to("cpu", non_blocking=True), None
        if sums.device.type != "cpu":
            self._arrived = torch.Event(sums.device)
            self._arrived.record()

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
            problem, _, cure = UNSEEN.rpartition(": ")
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
    too_far, too_small = finite * groups.too_far.any(), trace.too_small.to(like)
    unseen = finite * (1 - too_small) * (trace.sharpness == 0)
    return torch.stack([finite, judged, predicted, rise, rise * rise, too_far, too_small, unseen])


def _number(value: Tensor | None) -> str:
    return "unknown" if value is None else f"{value.item():.4g}"
