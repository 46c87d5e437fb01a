"""The norms and sums that a walk measures for each group; they stay on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from gasam.ball import inverse
from gasam.layout import Layout
from gasam.passes import Pass
from gasam.portions import Portion
from gasam.trace import AT_ZERO, CLIMBED, NO_GRADIENT, NOT_FINITE, Detail, GroupNorms


class Measurements:
    """Sums over the gradient, the weights and the offset of each group.

    `finite` is whether all losses, gradients and scales so far were finite. With `detailed`, the clean gradient is
    copied and the rounding error of the offset is measured.
    """

    def __init__(self, layout: Layout, *, detailed: bool, by_sign: bool) -> None:
        self.layout = layout
        self.detailed = detailed
        self._by_sign = by_sign
        self._weight_squares = torch.zeros_like(layout.sizes)
        self.epsilon = self.rise = torch.zeros_like(layout.sizes.sum())
        self.offset_norms = torch.zeros_like(layout.sizes)  # |a_i|
        self.capped = torch.zeros_like(layout.sizes, dtype=torch.bool)
        self._rises: dict[int, Tensor] = {}  # for each portion, in units of epsilon
        self._realised: list[tuple[Tensor, Tensor]] = []
        self.detail: Detail | None = None

    def clean_pass(self, seen: Pass, gradients: list[Tensor]) -> None:
        """Measure |g_i|^2, |w_i|^2 and, for ascent by the sign, |sign(g_i)|^2 and |g_i|_1, with one collective."""
        layout = self.layout
        of_gradient, of_sign, of_sizes = list[Tensor](), list[Tensor](), list[Tensor]()
        for portion in layout.portions:
            gradient = portion.read(gradients)
            of_gradient.append(portion.squares(gradient))
            if self._by_sign:
                sign = torch.sign(gradient, out=None if gradient is portion.scratch else portion.scratch)
                of_sizes.append(portion.products(gradient, sign))
                of_sign.append(portion.squares(sign))
            if self.detailed:
                portion.buffer("clean gradient").copy_(portion.read(gradients))
        flag = _nan_flag(seen.loss, layout.sizes)
        sums = layout.sum(of_gradient, of_sign, of_sizes, layout.weight_squares(), nan_flag=flag)
        self.gradient_squares, self.sign_squares, self.gradient_sums, self._weight_squares = sums
        self._use_scale(seen)
        self._clean_scale, self.loss_scale = self.gradient_scale, seen.loss_scale
        self.finite = self.gradient_squares.sum().isfinite() & seen.loss.to(layout.sizes).isfinite()

    def later_pass(self, seen: Pass, gradients: list[Tensor]) -> None:
        """Measure |g_i|^2 of a displaced pass."""
        layout = self.layout
        squares = [portion.squares(portion.read(gradients)) for portion in layout.portions]
        self.gradient_squares = layout.sum(squares, nan_flag=_nan_flag(seen.loss, layout.sizes))[0]
        self._use_scale(seen)
        self.finite = self.finite & self.gradient_squares.sum().isfinite() & seen.loss.to(layout.sizes).isfinite()

    def last_pass(self, seen: Pass) -> None:
        """Record whether its loss is finite. With `detailed`, compare its gradient, if known, with g_0."""
        self.finite = self.finite & seen.loss.to(self.layout.sizes).isfinite()
        if self.detailed:
            self.detail = self._measure_detail(seen)

    def weight_norms(self) -> Tensor:
        """|w_i|."""
        return self._weight_squares.sqrt()

    def rms_weight(self) -> Tensor:
        """The root mean square of all weights that take part, including rows without a gradient."""
        squares = self._weight_squares.sum() + self.layout.untouched_squares()
        return (squares / max(self.layout.total, 1)).sqrt()

    @property
    def norm(self) -> Tensor:
        """|a|_2."""
        return self.offset_norms.square().sum().sqrt()

    def add_rise(self, portion: Portion, slopes: Tensor) -> None:
        """Add g . T y of this portion to the predicted rise of a walk of several steps."""
        slopes = slopes / self.gradient_scale
        self._rises[portion.number] = slopes + self._rises.get(portion.number, 0.0)

    def realised(self, portion: Portion, offset: Tensor) -> None:
        """Compare the intended offset with the one that the displaced weights have after rounding to their type."""
        if portion.number == 0:
            self._realised = []
        difference = portion.read(self.layout.operands) - portion.saved_weights()
        self._realised.append((portion.squares(difference), portion.products(difference, offset)))

    def predicted_rise(self) -> Tensor:
        """The first-order rise of the mean loss: the sum of g_{k-1} . (a_k - a_{k-1})."""
        if not self._rises:
            return self.rise
        slopes = [self._rises[portion.number] for portion in self.layout.portions]
        return self.epsilon * self.layout.sum(slopes)[0].sum()

    @property
    def state(self) -> Tensor:
        """A code: CLIMBED, NO_GRADIENT, AT_ZERO or NOT_FINITE."""
        at_zero = (self._weight_squares.sum() == 0) & (self.gradient_squares.sum() > 0)
        still = torch.where(at_zero, AT_ZERO, NO_GRADIENT)
        return torch.where(self.finite, torch.where(self.norm > 0, CLIMBED, still), NOT_FINITE)

    def groups(self) -> GroupNorms:
        layout = self.layout
        measured = self.offset_norms, self.weight_norms(), layout.sizes, self.rms_weight(), self.capped
        return GroupNorms(layout.groups.labels, *measured)

    def _use_scale(self, seen: Pass) -> None:
        scale = seen.gradient_scale
        self.gradient_scale: Tensor | float = (
            scale.abs().to(self.layout.sizes) if isinstance(scale, Tensor) else abs(scale)
        )

    def _measure_detail(self, seen: Pass) -> Detail:
        layout, gradients = self.layout, self.layout.gradients()
        of_gradient, of_clean, products = list[Tensor](), list[Tensor](), list[Tensor]()
        for portion in layout.portions if seen.alone else ():
            gradient, clean = portion.read(gradients), portion.buffer("clean gradient")
            of_gradient.append(portion.squares(gradient))
            of_clean.append(portion.squares(clean))
            products.append(portion.products(gradient, clean))
        realised = [squares for squares, _ in self._realised], [product for _, product in self._realised]
        sums = layout.sum(*realised, of_gradient, of_clean, products)
        norm = sums[0].sum().sqrt()
        cosine = sums[1].sum() * inverse(norm * self.norm)
        if not seen.alone:
            return Detail(self.groups(), norm, cosine)
        self._use_scale(seen)
        self.finite = self.finite & sums[2].sum().isfinite()
        displaced, clean_norms = sums[2].sqrt(), sums[3].sqrt()
        ratios = displaced * inverse(clean_norms) * (self._clean_scale / self.gradient_scale)
        cosines = sums[4] * inverse(displaced * clean_norms)
        return Detail(self.groups(), norm, cosine, cosines, clean_norms / self._clean_scale, ratios)


def _nan_flag(loss: Tensor, like: Tensor) -> Tensor:
    """0, or NaN if the loss is not finite. Added to a sum over processes, it reaches every process."""
    loss = loss.to(like)
    return loss - loss
