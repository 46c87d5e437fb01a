"""The state of a walk: T, the direction of each step, the projection, and the offset that the weights get."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
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
    """A walk in the coordinates y = T^-1 a / epsilon: the ball has radius one, and nothing is divided by T.

    It begins after the clean pass, whose gradient is in `.grad` and determines T. No value is read back to the host
    (except by torch, for sparse gradients): instead of branching, moves that must not happen are multiplied by zero.

    A T of each group multiplies one number per group. A T of each weight is a vector in every portion.
    """

    @torch.no_grad()
    def __init__(
        self, weights: Weights, perturbation: Perturbation, clean: Pass, *, keeps_position: bool, detailed: bool
    ) -> None:
        check_names(perturbation, weights.names)
        self.weights = weights
        self.perturbation = perturbation
        self.keeps_position = keeps_position
        self.detail: Detail | None = None
        self._detailed = detailed
        self._by_element = perturbation.granularity == "element"
        self._moving = weights.taking_part(perturbation.granularity)
        self._one = self._moving.sizes.new_ones(())
        self.norm = torch.zeros_like(self._one)  # |a|_2
        self._largest = self._one  # magnitude of h, for p other than 2 and inf
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
    def read_gradient(self, seen: Pass) -> None:
        """Measure the gradient of another pass. The walk goes on only while everything is finite."""
        self.weights.check_in_place()
        self._finite = self._finite & self._measure_gradient(seen)

    @torch.no_grad()
    def step(self) -> None:
        """y_k = project(y_{k-1} + eta / epsilon d_k); the weights go to w + epsilon T y_k."""
        gradients, stride = self._moving.gradients(), self.perturbation.stride
        factor, squares = self._direction(gradients)
        if not self.keeps_position:  # from the centre, the projection can only shorten a step of length `stride` to 1
            values_of = partial(self._unnormalised_direction, gradients)
            self._displace(values_of, factor * min(1.0, stride), squares)
            return
        step_factor = self._moving.to_entries(torch.where(self._finite, factor * stride, 0.0))
        self._project(partial(self._stepped, gradients, step_factor), ball.shrinkage)

    @torch.no_grad()
    def move_to_start(self, start: ball.Start) -> None:
        """Move to the ball's surface in the direction that `start` draws; for p = inf to the drawn point itself."""
        self._project(partial(_drawn, start), ball.inverse)

    def _stepped(self, gradients: list[Tensor], step_factor: Sequence[Tensor], portion: Portion) -> Tensor:
        """Add eta / epsilon d to the position, in place."""
        direction = ball.finite(self._unnormalised_direction(gradients, portion), out=portion.scratch)
        return portion.buffer("position").addcmul_(direction, portion.spread(step_factor))

    def _measure_gradient(self, seen: Pass, first: bool = False) -> Tensor:
        """The sums that the next step needs, for each group and by one collective; return whether all is finite.

        Always |g_i|^2; also |sign(g_i)|^2 if the step is the sign, and |w_i|^2 if a later request would need another
        collective.
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
        sums = moving.sum(of_gradient, of_sign, of_weights, nan_flag=loss - loss)
        self._gradient_squares, self._sign_squares = sums[0], sums[1]
        if with_weights:
            self._weight_squares = sums[2]
        return self._gradient_squares.sum().isfinite() & loss.isfinite()

    def _choose_scale(self, gradient_scale: Tensor | float) -> Tensor:
        """T from the weights and the gradient of the mean loss, for the whole walk; return whether it is finite."""
        moving, function, floor = self._moving, self.perturbation.scale_function, self.perturbation.floor
        factor: Tensor | float = abs(gradient_scale)  # type: ignore[assignment]
        if isinstance(factor, Tensor):
            factor = factor.to(moving.sizes)
        if self._by_element:
            return moving.sum(element_scale(function, floor, moving, factor)).isfinite().all()
        gradient = self._gradient_squares.sqrt() / factor
        self._group_scale = group_scale(function, floor, moving, gradient, self._group_weights)
        self._entry_scale = moving.to_entries(self._group_scale)
        return self._group_scale.isfinite().all()

    def _group_weights(self) -> Tensor:
        """|w_i| of each group."""
        if self._weight_squares is None:
            self._weight_squares = self._moving.sum(self._moving.weight_squares())[0]
        return self._weight_squares.sqrt()

    def _direction(self, gradients: list[Tensor]) -> tuple[Tensor, Tensor]:
        """(factor, squares): d is the factor times `_unnormalised_direction`; the squares are for `_displace`."""
        p = self.perturbation.norm
        if p == 2.0 and not self._by_element:  # d = T g / |T g|, and |T g| follows from |g_i|
            length = (self._group_scale.square() * self._gradient_squares).sum().sqrt()
            return self._group_scale * ball.inverse(length), self._gradient_squares
        if p == math.inf and (self.keeps_position or not self._by_element):  # with a position, it is measured later
            return self._one, self._sign_squares
        if p not in (2.0, math.inf):
            self._largest = self._largest_magnitude(partial(self._scaled_gradient, gradients))
        length, squares = self._measure(partial(self._unnormalised_direction, gradients))
        return ball.inverse(length), squares

    def _unnormalised_direction(self, gradients: list[Tensor], portion: Portion) -> Tensor:
        """The steepest ascent along h = T g, before its length is made one: sgn(h) |h|^(1/(p-1)).

        For p = 2 that is h, or g where T is one number per group: `_direction` then has T in the factor.
        """
        p = self.perturbation.norm
        if p == math.inf:
            return torch.sign(portion.read(gradients), out=portion.scratch)
        if p == 2.0:
            return self._scaled_gradient(gradients, portion) if self._by_element else portion.read(gradients)
        return ball.steepest_ascent(self._scaled_gradient(gradients, portion), p, self._largest)

    def _scaled_gradient(self, gradients: list[Tensor], portion: Portion) -> Tensor:
        """h = T g."""
        scale = portion.buffer("scale") if self._by_element else portion.spread(self._entry_scale)
        return torch.mul(portion.read(gradients), scale, out=portion.scratch)

    def _project(self, new_position: ValuesOf, rescale: Callable[[Tensor], Tensor]) -> None:
        """Bring y into the unit ball, clipped for p = inf and otherwise along its ray; move the weights there.

        `new_position` changes the position of a portion and returns it. It is called once for each portion, which is
        then measured while it is still in the caches.
        """
        p, excess = self.perturbation.norm, self._one
        if p == math.inf:
            _, squares = self._measure(lambda portion: new_position(portion).clamp_(-1.0, 1.0))
            self._displace(_position, self._one, squares)
            return
        if p == 2.0:
            length, squares = self._measure(new_position)
        else:  # first make the entries at most one, because a power of large numbers overflows
            excess = self._largest_magnitude(new_position).clamp(min=1.0)
            length, squares = self._measure(partial(_multiplied, 1 / excess))
        factor = excess * rescale(excess * length)
        self._displace(partial(_multiplied, factor), self._one, squares * factor.square())

    def _displace(self, values_of: ValuesOf, factor: Tensor, squares: Tensor) -> None:
        """Move the weights to w + epsilon T y, with y = factor * values; to w itself where the walk must stop.

        `squares` are the sums of squares of the values in each group; of T * values if every weight has its own T.
        """
        moving, p = self._moving, self.perturbation.norm
        offset_factor = self.perturbation.epsilon * (factor if self._by_element else factor * self._group_scale)
        offset_factor = torch.where(self._finite, offset_factor, 0.0)
        offset_squares = offset_factor.square() * squares.nan_to_num(0.0)  # |a_i|^2
        self.norm = offset_squares.sum().sqrt()
        entries, realised = moving.to_entries(offset_factor), Realised(moving)
        for portion in moving.portions:
            values = self._times_element_scale(portion, values_of(portion))
            if self._by_element or (p != math.inf and not self.keeps_position):  # otherwise they are finite already
                values = ball.finite(values, out=portion.scratch)
            own_factor = portion.spread(entries)
            offset = values * own_factor if self._detailed else None
            portion.displace(values, own_factor)
            if offset is not None:
                realised.add(portion, offset)
        self.weights.written()
        if self._detailed:
            self.detail = realised.detail(offset_squares, self._group_weights())

    def _times_element_scale(self, portion: Portion, values: Tensor) -> Tensor:
        """T * values if every weight has its own T. A T of each group is in the factor of the offset."""
        if not self._by_element:
            return values
        return torch.mul(values, portion.buffer("scale"), out=portion.scratch)

    def _measure(self, values_of: ValuesOf) -> tuple[Tensor, Tensor]:
        """|values|_p, and the squares for `_displace`. For p = inf the length is not needed: it is returned as one."""
        p, moving = self.perturbation.norm, self._moving
        powers, squares = list[Tensor](), list[Tensor]()
        for portion in moving.portions:
            values = values_of(portion)
            if p != math.inf:
                powers.append(portion.squares(values) if p == 2.0 else portion.sums(values.abs().pow_(p)))
            squares.append(portion.squares(self._times_element_scale(portion, values)))
        sums = moving.sum(powers, squares)
        length = self._one if p == math.inf else sums[0].sum().pow(1 / p)
        return length, sums[1]

    def _largest_magnitude(self, values_of: ValuesOf) -> Tensor:
        portions = [portion for portion in self._moving.portions if portion.size]
        return self._moving.largest([values_of(portion).abs().amax() for portion in portions])


def _position(portion: Portion) -> Tensor:
    return portion.buffer("position")


def _drawn(start: ball.Start, portion: Portion) -> Tensor:
    position = portion.buffer("position")
    return position.copy_(start(position))


def _multiplied(factor: Tensor, portion: Portion) -> Tensor:
    return portion.buffer("position").mul_(factor.to(portion.scratch))
