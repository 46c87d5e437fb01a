"""`Trace`, the report of one walk; its numbers stay on the device until they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gasam.watch import Totals

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


SMALLEST_WEIGHTS = 0.01
"""Lower bound on a group's weights, relative to the model's root-mean-square weight, so that zeros can move."""


def comparable_norms(weights: Tensor, sizes: Tensor, rms_weight: Tensor) -> Tensor:
    """max(|w_i|, 0.01 sqrt(n_i) rms(w)), with which |a_i| is compared."""
    return torch.maximum(weights, SMALLEST_WEIGHTS * sizes.sqrt() * rms_weight)


@dataclass(frozen=True)
class GroupNorms:
    """|a_i| and |w_i| of each group in the last pass; of each tensor with granularity "element" or "model"."""

    find_labels: Callable[[], list[str]]
    offsets: Tensor  # |a_i|
    weights: Tensor  # |w_i|
    sizes: Tensor  # n_i
    rms_weight: Tensor  # of all weights
    capped: Tensor  # whether the cap limited the offset

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

    def largest_ratio(self) -> tuple[str, float]:
        """The name of the group with the largest ratio, and this ratio."""
        ratios = self.ratios.nan_to_num(0.0, posinf=0.0)
        if not len(ratios):
            return "no group", 0.0
        where = int(ratios.argmax())
        return self.find_labels()[where], float(ratios[where])


@dataclass(frozen=True)
class Detail:
    """The offset and gradient of the last pass for each group, and the offset after rounding to the weights' type."""

    groups: GroupNorms
    realised_norm: Tensor  # |fl(w + a) - w|
    realised_cosine: Tensor  # between a and fl(w + a) - w
    cosines: Tensor | None = None  # of the clean and the last gradient of each group; None with per_worker
    gradient_norms: Tensor | None = None  # |g_0,i|
    gradient_ratios: Tensor | None = None  # |g_K,i| / |g_0,i|

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


@dataclass(frozen=True, repr=False)
class Trace:
    """The report of one training step. Its tensors stay on the device; printing it synchronises.

    Args:
        losses: L(w + a_k) for k = 0..K, as the loss function returned them.
        norms: |a_k|_2 for k = 0..K.
        active: A code for the outcome; MEANING translates it into words.
        strength: The strength of the schedule in this step.
        predicted_rise: First-order rise of the mean loss; None if it was not measured.
        loss_scale: The losses divided by the mean loss; None if it is not known.
        groups: Norms of each group; None if they were not measured.
        detail: Comparison of the gradients and rounding errors; None without `detailed=True`.
        window: Sums over the last complete window of 20 walks; None before the first one.
    """

    losses: tuple[Tensor, ...]
    norms: tuple[Tensor, ...]
    active: Tensor
    strength: float = 1.0
    predicted_rise: Tensor | None = None
    loss_scale: Tensor | float | None = 1.0
    groups: GroupNorms | None = None
    detail: Detail | None = None
    window: Tensor | None = None

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
        return len(self.losses) == 1 and int(self.active) == BETWEEN

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
        if code != CLIMBED or self.groups is None:
            return MEANING[code]
        if self.groups.too_far.any():
            name, ratio = self.groups.largest_ratio()
            return f"too large: {name} moved by {ratio:.2g} times its norm"
        if self.window is not None and self.rise is not None:
            problem = Totals(*self.window.tolist()).rise_problem()
            if problem is not None:
                return problem
        if self.too_small.item():
            return (
                f"too small to matter: the predicted rise {_number(self.predicted_rise)} is below the loss's rounding"
            )
        return MEANING[code]

    def metrics(self) -> dict[str, float]:
        """Plain numbers for loggers, always with the same keys. Reading them synchronises with the device.

        `loss` and `sharpness` are in units of the loss function; `rise` and `predicted_rise` are in units of the mean
        loss.
        """
        groups, predicted, rise = self.groups, self.predicted_rise, self.rise
        return {
            "loss": float(self.losses[0]),
            "sharpness": float(self.sharpness),
            "rise": math.nan if rise is None else float(rise),
            "predicted_rise": 0.0 if predicted is None else float(predicted),
            "perturbation_norm": float(self.norms[-1]),
            "perturbation_ratio": 0.0 if groups is None else _ratio(groups),
            "largest_ratio": 0.0 if groups is None else groups.largest_ratio()[1],
            "capped": 0.0 if groups is None else float(groups.share_capped),
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
            parts.append(f"|a|/|w| {_ratio(self.groups):.2g}, largest {ratio:.2g} in {name}")
            parts.append(f"{float(self.groups.share_capped):.0%} of the groups capped")
        if self.strength != 1:
            parts.append(f"strength {self.strength:.2g}")
        line = "; ".join(parts)
        return line if self.detail is None else f"{line}\n{self.detail}"


def plain_trace(
    loss: Tensor, strength: float = 1.0, loss_scale: Tensor | float | None = 1.0, *, reason: int = OFF
) -> Trace:
    """The trace of a pass without a walk. The reason is OFF, WAITING or BETWEEN."""
    loss = loss.detach().reshape(())
    return Trace((loss,), (torch.zeros_like(loss),), torch.tensor(reason), strength, loss_scale=loss_scale)


def _ratio(groups: GroupNorms) -> float:
    return float(groups.offsets.square().sum().sqrt() / groups.weights.square().sum().sqrt().clamp(min=1e-30))


def _number(value: Tensor | None) -> str:
    return "unknown" if value is None else f"{value.item():.4g}"
