"""How a walk moves: T, the direction of each step, the projection, and the offset that the weights get."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gasam import ball
from gasam.parameters import check_names
from gasam.perturbation import Perturbation
from gasam.portions import Portion
from gasam.scales import element_scale, group_scale
from gasam.trace import CLIMBED, NO_GRADIENT, NOT_FINITE, Detail, Realised
from gasam.weights import Weights

ValuesOf = Callable[[Portion], list[Tensor]]


class Pass(NamedTuple):
    """What one evaluation saw: the loss, and by what its gradient was multiplied on the way to `.grad`."""

    loss: Tensor
    gradient_scale: Tensor | float = 1.0


class Ascent:
    """The state of a walk, in coordinates y = T^-1 a / epsilon: the ball has radius one, and nothing is divided by T.

    It begins after the clean pass, whose gradient is in `.grad` and determines T. It never synchronises with the host:
    instead of branching, moves that must not happen are multiplied by zero.
    """

    @torch.no_grad()
    def __init__(
        self, weights: Weights, perturbation: Perturbation, clean: Pass, *, keeps_position: bool, detailed: bool
    ) -> None:
        self.weights = weights
        self.perturbation = perturbation
        self.keeps_position = keeps_position
        self.norm = torch.zeros_like(clean.loss)  # |a|_2
        self.detail: Detail | None = None
        self._detailed = detailed
        check_names(perturbation, weights.names)
        self._moving = weights.taking_part(perturbation.granularity)
        self._by_element = perturbation.granularity == "element"
        self._weight_squares: Tensor | None = None
        self._finite = self._measure_gradient(clean, first=True)
        self._finite = self._finite & self._choose_scale(clean.gradient_scale)
        if keeps_position:
            self._position = self._moving.buffers("position")  # y
            for position in self._position:
                position.zero_()

    @property
    def state(self) -> Tensor:
        """CLIMBED, NO_GRADIENT or NOT_FINITE."""
        return torch.where(self._finite, torch.where(self.norm > 0, CLIMBED, NO_GRADIENT), NOT_FINITE)

    @torch.no_grad()
    def look(self, seen: Pass) -> None:
        """Read the gradient of another pass. The walk goes on only while everything is finite."""
        self._finite = self._finite & self._measure_gradient(seen)

    @torch.no_grad()
    def step(self) -> None:
        """y_k = project(y_{k-1} + eta / epsilon d_k), and the weights go to w + epsilon T y_k."""
        gradients, stride = self._moving.gradients(), self.perturbation.stride
        share, squares = self._direction(gradients)
        if not self.keeps_position:  # one step from the centre: the projection only shortens it
            self._displace(lambda portion: self._uphill(portion, gradients), share * min(1.0, stride), squares)
            return
        pace = self._moving.spread(torch.where(self._finite, share * stride, 0.0))

        def updated(portion: Portion) -> list[Tensor]:
            y, uphill = portion.of(self._position), self._uphill(portion, gradients)
            ball.make_finite_(portion.flat)
            torch._foreach_addcmul_(y, uphill, portion.of(pace))
            return y

        self._project(updated, ball.shrinkage)

    @torch.no_grad()
    def jump(self, start: ball.Start) -> None:
        """Go to the ball's surface in the direction that `start` draws; for p = inf to the very point."""
        for position in self._position:
            position.copy_(start(position))
        self._project(lambda portion: portion.of(self._position), ball.inverse)

    def _measure_gradient(self, seen: Pass, first: bool = False) -> Tensor:
        """The sums that a step needs, for each group and by one collective; return whether all is finite.

        |g_i|^2 always; the squares of the sign where the step is that; |w_i|^2 where asking later needs a collective.
        """
        moving, loss, gradients = self._moving, seen.loss.to(self._moving.sizes), self._moving.gradients()
        of_gradient, of_sign = list[Tensor](), list[Tensor]()
        by_sign = self.perturbation.norm == math.inf and not self.keeps_position and not self._by_element
        for portion in moving.portions:
            of_gradient.append(moving.powers(portion.widened(gradients), 2.0))
            if by_sign:
                of_sign.append(moving.powers(self._uphill(portion, gradients), 2.0))
        with_weights = first and (moving.sharded or self._detailed)
        of_weights = moving.weight_squares() if with_weights else []
        sums = moving.sum(of_gradient, of_sign, of_weights, doubt=loss - loss)
        self._gradient_squares, self._sign_squares = sums[0], sums[1]
        if with_weights:
            self._weight_squares = sums[2]
        return self._gradient_squares.sum().isfinite() & loss.isfinite()

    def _choose_scale(self, gradient_scale: Tensor | float) -> Tensor:
        """T from the weights and the gradient of the mean loss, for the whole walk; return whether it is finite."""
        moving, function, floor = self._moving, self.perturbation.scale_function, self.perturbation.floor
        factor = torch.as_tensor(gradient_scale, dtype=moving.sizes.dtype, device=moving.sizes.device).abs()
        if self._by_element:
            self._T = moving.buffers("scale")
            return moving.sum(element_scale(function, floor, moving, factor, self._T)).isfinite().all()
        gradient = self._gradient_squares.sqrt() / factor
        self._group_T = group_scale(function, floor, moving, gradient, self._group_weights)
        if self.perturbation.norm not in (2.0, math.inf):
            self._T = moving.spread(self._group_T)
        return self._group_T.isfinite().all()

    def _group_weights(self) -> Tensor:
        """|w_i| of each group."""
        if self._weight_squares is None:
            self._weight_squares = self._moving.sum(self._moving.weight_squares())[0]
        return self._weight_squares.sqrt()

    def _direction(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """(share, squares): the unit direction d is share times `_uphill`, whose squares are summed for each group."""
        p, one = self.perturbation.norm, self._moving.sizes.new_ones(())
        if p == 2.0 and not self._by_element:  # d = T g / |T g|: T goes into the share, and |T g| follows from |g_i|
            length = (self._group_T.square() * self._gradient_squares).sum().sqrt()
            return self._group_T * ball.inverse(length), self._gradient_squares
        if p == math.inf and (self.keeps_position or not self._by_element):
            return one, self._sign_squares
        if p not in (2.0, math.inf):
            self._largest = self._largest_entry(lambda portion: self._h(portion, gradients))
        length, squares = self._measure(lambda portion: self._uphill(portion, gradients))
        return ball.inverse(length), squares

    def _uphill(self, portion: Portion, gradients: list[Tensor]) -> list[Tensor]:
        """sgn(h) |h|^(1/(p-1)), h = T g. For p = 2 a T of each group is left out: it goes into the share."""
        p = self.perturbation.norm
        if p == math.inf:
            values = portion.read(gradients)
            portion.flat.sign_()
            return values
        if p == 2.0:
            return self._h(portion, gradients) if self._by_element else portion.read(gradients)
        return portion.copy([ball.uphill(each, p, self._largest) for each in self._h(portion, gradients)])

    def _h(self, portion: Portion, gradients: list[Tensor]) -> list[Tensor]:
        """T g."""
        values = portion.read(gradients)
        torch._foreach_mul_(values, portion.of(self._T))
        return values

    def _project(self, position_of: ValuesOf, rescale: Callable[[Tensor], Tensor]) -> None:
        """Bring y into the unit ball, clipped for p = inf and otherwise along its ray, and take the weights there."""
        p, one = self.perturbation.norm, self._moving.sizes.new_ones(())
        if p == math.inf:
            _, squares = self._measure(lambda portion: ball.clip_(position_of(portion)))
            self._displace(lambda portion: portion.of(self._position), one, squares)
            return
        excess = one
        if p != 2.0:  # entries of at most one, because a power of large numbers overflows
            excess = self._largest_entry(position_of).clamp(min=1.0)
            position_of = lambda portion: self._rescaled(portion, 1 / excess)  # noqa: E731
        length, squares = self._measure(position_of)
        factor = excess * rescale(excess * length)
        self._displace(lambda portion: self._rescaled(portion, factor), one, squares * factor.square())

    def _rescaled(self, portion: Portion, factor: Tensor) -> list[Tensor]:
        position = portion.of(self._position)
        torch._foreach_mul_(position, factor)
        return position

    def _displace(self, values_of: ValuesOf, share: Tensor, squares: Tensor) -> None:
        """Take the weights to w + epsilon T y, with y = share * values; to w itself where the walk must stop.

        `squares` are those of the values in each group, times T where every weight has its own.
        """
        moving = self._moving
        reach = self.perturbation.epsilon * (share if self._by_element else share * self._group_T)
        reach = torch.where(self._finite, reach, 0.0)
        offset_squares = reach.square() * squares.nan_to_num(0.0)  # |a_i|^2
        self.norm = offset_squares.sum().sqrt()
        reaches, realised = moving.spread(reach), Realised(moving)
        for portion in moving.portions:
            values = self._times_own_scale(portion, values_of(portion))
            if not self.keeps_position or self._by_element:
                ball.make_finite_(portion.flat)
            portion.displace(values, portion.of(reaches))
            if self._detailed:
                realised.add(portion, values, portion.of(reaches))
        self.weights.written()
        if self._detailed:
            self.detail = realised.detail(offset_squares, self._group_weights())

    def _times_own_scale(self, portion: Portion, values: list[Tensor]) -> list[Tensor]:
        """T * values where every weight has its own T; elsewhere T goes into the reach of each group."""
        if not self._by_element:
            return values
        scaled = portion.copy(values)
        torch._foreach_mul_(scaled, portion.of(self._T))
        return scaled

    def _measure(self, values_of: ValuesOf) -> tuple[Tensor, Tensor]:
        """|values|_p, and the squares that `_displace` needs. For p = inf no length is needed."""
        p, moving = self.perturbation.norm, self._moving
        powers, squares = list[Tensor](), list[Tensor]()
        for portion in moving.portions:
            values = values_of(portion)
            if p != math.inf:
                powers.append(moving.powers(values, p))
            squares.append(moving.powers(self._times_own_scale(portion, values), 2.0))
        sums = moving.sum(powers, squares)
        return sums[0].sum().pow(1 / p), sums[1]

    def _largest_entry(self, values_of: ValuesOf) -> Tensor:
        values = (each for portion in self._moving.portions for each in values_of(portion))
        return self._moving.largest([each.abs().amax() for each in values if each.numel()])
