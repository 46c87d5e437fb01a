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

ValuesOf = Callable[[Portion], Tensor]


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
            for portion in self._moving.portions:
                portion.buffer("position").zero_()

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
        pace = self._moving.to_entries(torch.where(self._finite, share * stride, 0.0))

        def updated(portion: Portion) -> Tensor:
            uphill = ball.finite(self._uphill(portion, gradients), out=portion.scratch)
            return portion.buffer("position").addcmul_(uphill, portion.spread(pace))

        self._project(updated, ball.shrinkage)

    @torch.no_grad()
    def jump(self, start: ball.Start) -> None:
        """Go to the ball's surface in the direction that `start` draws; for p = inf to the very point."""

        def drawn(portion: Portion) -> Tensor:
            position = portion.buffer("position")
            return position.copy_(start(position))

        self._project(drawn, ball.inverse)

    def _measure_gradient(self, seen: Pass, first: bool = False) -> Tensor:
        """The sums that a step needs, for each group and by one collective; return whether all is finite.

        |g_i|^2 always; the squares of the sign where the step is that; |w_i|^2 where asking later needs a collective.
        """
        moving, loss, gradients = self._moving, seen.loss.to(self._moving.sizes), self._moving.gradients()
        of_gradient, of_sign = list[Tensor](), list[Tensor]()
        by_sign = self.perturbation.norm == math.inf and not self.keeps_position and not self._by_element
        for portion in moving.portions:
            gradient = portion.read(gradients)
            of_gradient.append(portion.squares(gradient))
            if by_sign:
                of_sign.append(portion.squares(torch.sign(gradient, out=portion.scratch)))
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
            return moving.sum(element_scale(function, floor, moving, factor)).isfinite().all()
        gradient = self._gradient_squares.sqrt() / factor
        self._group_T = group_scale(function, floor, moving, gradient, self._group_weights)
        self._entry_T = moving.to_entries(self._group_T)
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

    def _uphill(self, portion: Portion, gradients: list[Tensor]) -> Tensor:
        """sgn(h) |h|^(1/(p-1)), h = T g. For p = 2 a T of each group is left out: it goes into the share."""
        p = self.perturbation.norm
        if p == math.inf:
            return torch.sign(portion.read(gradients), out=portion.scratch)
        if p == 2.0:
            return self._h(portion, gradients) if self._by_element else portion.read(gradients)
        return ball.uphill(self._h(portion, gradients), p, self._largest)

    def _h(self, portion: Portion, gradients: list[Tensor]) -> Tensor:
        """T g."""
        own = portion.buffer("scale") if self._by_element else portion.spread(self._entry_T)
        return torch.mul(portion.read(gradients), own, out=portion.scratch)

    def _project(self, position_of: ValuesOf, rescale: Callable[[Tensor], Tensor]) -> None:
        """Bring y into the unit ball, clipped for p = inf and otherwise along its ray, and take the weights there."""
        p, one = self.perturbation.norm, self._moving.sizes.new_ones(())
        if p == math.inf:
            _, squares = self._measure(lambda portion: position_of(portion).clamp_(-1.0, 1.0))
            self._displace(lambda portion: portion.buffer("position"), one, squares)
            return
        excess = one
        if p != 2.0:  # entries of at most one, because a power of large numbers overflows
            excess = self._largest_entry(position_of).clamp(min=1.0)
            position_of = lambda portion: portion.buffer("position").div_(excess)  # noqa: E731
        length, squares = self._measure(position_of)
        factor = excess * rescale(excess * length)
        self._displace(lambda portion: portion.buffer("position").mul_(factor), one, squares * factor.square())

    def _displace(self, values_of: ValuesOf, share: Tensor, squares: Tensor) -> None:
        """Take the weights to w + epsilon T y, with y = share * values; to w itself where the walk must stop.

        `squares` are those of the values in each group, times T where every weight has its own.
        """
        moving, p = self._moving, self.perturbation.norm
        reach = self.perturbation.epsilon * (share if self._by_element else share * self._group_T)
        reach = torch.where(self._finite, reach, 0.0)
        offset_squares = reach.square() * squares.nan_to_num(0.0)  # |a_i|^2
        self.norm = offset_squares.sum().sqrt()
        reaches, realised = moving.to_entries(reach), Realised(moving)
        for portion in moving.portions:
            values = self._times_own_scale(portion, values_of(portion))
            if self._by_element or (p != math.inf and not self.keeps_position):
                values = ball.finite(values, out=portion.scratch)
            own_reach = portion.spread(reaches)
            if self._detailed:
                offset = values * own_reach
            portion.displace(values, own_reach)
            if self._detailed:
                realised.add(portion, offset)
        self.weights.written()
        if self._detailed:
            self.detail = realised.detail(offset_squares, self._group_weights())

    def _times_own_scale(self, portion: Portion, values: Tensor) -> Tensor:
        """T * values where every weight has its own T; elsewhere T goes into the reach of each group."""
        if not self._by_element:
            return values
        return torch.mul(values, portion.buffer("scale"), out=portion.scratch)

    def _measure(self, values_of: ValuesOf) -> tuple[Tensor, Tensor]:
        """|values|_p, and the squares that `_displace` needs. For p = inf no length is needed."""
        p, moving = self.perturbation.norm, self._moving
        powers, squares = list[Tensor](), list[Tensor]()
        for portion in moving.portions:
            values = values_of(portion)
            if p != math.inf:
                powers.append(portion.squares(values) if p == 2.0 else portion.sums(values.abs().pow_(p)))
            squares.append(portion.squares(self._times_own_scale(portion, values)))
        sums = moving.sum(powers, squares)
        return sums[0].sum().pow(1 / p), sums[1]

    def _largest_entry(self, values_of: ValuesOf) -> Tensor:
        portions = [portion for portion in self._moving.portions if portion.size]
        return self._moving.largest([values_of(portion).abs().amax() for portion in portions])
