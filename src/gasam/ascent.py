"""The state of a walk: the scale T, the direction of each ascent step, the projection and the offset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gasam import ball
from gasam.measurements import Measurements
from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.portions import Portion
from gasam.scales import element_scale, group_scale
from gasam.step import MethodState, Step, result_of, space_of, unscaled
from gasam.trace import comparable_norms
from gasam.vectors import Vector
from gasam.weights import Weights

Values = Iterable[tuple[Portion, Tensor]]
"""One vector per portion, computed lazily so that each is used while it is still in the CPU's caches."""


class Direction(NamedTuple):
    """The unit direction d of the next ascent step is `factor` times the unnormalised direction u.

    `squares` holds |u_i|^2 and `slopes` holds c_i . u_i for each group. Here c is what the walk climbs: the gradient g,
    or what the `ascent` function returns. `rises` holds g_i . u_i, or None if c is g. If each weight has its own T, all
    three have T_i u_i in place of u_i.
    """

    factor: Tensor
    squares: Tensor
    slopes: Tensor
    rises: Tensor | None = None


class Ascent:
    """A walk in the coordinates y = T^-1 a / epsilon, where the ball has radius one and nothing is divided by T.

    Create it after the clean pass: T is computed from the gradient in `.grad`. It never synchronises with the host
    (only torch does, for sparse gradients). Instead of branching, invalid moves are multiplied by zero.

    If groups of weights share a T, it is one number per group. If each weight has its own T, it is a buffer of each
    portion.
    """

    @torch.no_grad()
    def __init__(
        self,
        weights: Weights,
        perturbation: Perturbation,
        clean: Pass,
        *,
        strength: float = 1.0,
        keeps_position: bool,
        detailed: bool,
        state: MethodState,
    ) -> None:
        self.weights = weights
        self.perturbation = perturbation
        self.keeps_position = keeps_position
        self._by_element = perturbation.granularity == "element"
        self._layout = weights.taking_part(perturbation.granularity)
        self._one = self._layout.sizes.new_ones(())
        self._largest = self._one  # magnitude of h, for p other than 2 and inf
        self._gradients = self._layout.gradients()  # of the last pass; dropped when the weights move
        self._passes = 0  # displaced passes whose gradient was read
        by_sign = perturbation.norm == math.inf and not self._by_element
        self.seen = Measurements(self._layout, detailed=detailed, by_sign=by_sign)
        self.seen.clean_pass(clean, self._gradients)
        self._choose_scale()
        self._strength, self._state = strength, state
        self._step: Step | None = None
        self._climb = self._find_climb(0)
        self._direction = self._find_direction()
        self._epsilon = self.seen.epsilon = self._radius(strength)
        self.seen.finite = self.seen.finite & self._epsilon.isfinite()
        self._limits: Tensor | None = None  # the largest |a_i| that each group may have
        if perturbation.cap is not None:
            norms, sizes, rms = self.seen.weight_norms(), self._layout.sizes, self.seen.rms_weight()
            self._limits = perturbation.cap * comparable_norms(norms, sizes, rms)
        if keeps_position:
            for portion in self._layout.portions:
                portion.buffer("position").zero_()

    @torch.no_grad()
    def read_gradient(self, seen: Pass) -> None:
        """Measure the gradient of a displaced pass. If anything is not finite, the weights stop moving."""
        self.weights.check_in_place()
        self._gradients = self._layout.gradients()
        self.seen.later_pass(seen, self._gradients)
        self._passes += 1
        self._climb = self._find_climb(self._passes)
        self._direction = self._find_direction()

    @torch.no_grad()
    def step(self) -> None:
        """Compute y_k = project(y_{k-1} + eta / epsilon d_k), and move the weights to w + epsilon T y_k."""
        stride = self.perturbation.stride
        if self.keeps_position:
            self._project(self._stepped_positions(stride), ball.shrinkage)
            return
        # A single step starts at the centre, so projecting it only limits its length `stride` to 1.
        factor = self._epsilon * self._capped(self._direction.factor * min(1.0, stride), self._direction.squares)
        slopes = self._direction.slopes if self._direction.rises is None else self._direction.rises
        self.seen.rise = (self._with_group_scale(factor) * slopes).sum() / self.seen.gradient_scale
        self._displace(self._unnormalised_directions(), factor)

    @torch.no_grad()
    def move_to_start(self, start: ball.Start) -> None:
        """Move to the ball's surface in the direction that `start` draws; for p = inf, move to the drawn point."""
        self._project(self._drawn_positions(start), ball.inverse)

    def _choose_scale(self) -> None:
        """Compute T from the weights and the gradient of the mean loss; it stays fixed during the walk."""
        layout, function, floor = self._layout, self.perturbation.scale_function, self.perturbation.floor
        if self._by_element:
            finite = layout.sum(element_scale(function, floor, layout, self.seen.gradient_scale)).isfinite().all()
        else:
            gradient = self.seen.gradient_squares.sqrt() / self.seen.gradient_scale
            self._group_scale = group_scale(function, floor, layout, gradient, self.seen.weight_norms)
            self._entry_scale = layout.to_entries(self._group_scale)
            finite = self._group_scale.isfinite().all()
        self.seen.finite = self.seen.finite & finite

    def _radius(self, strength: float) -> Tensor:
        """epsilon; with a budget, budget / |T g_0|_q for the gradient g_0 of the mean loss, and 0 if that norm is 0."""
        direction = self._direction
        slope = (direction.slopes * self._with_group_scale(direction.factor)).sum() / self.seen.gradient_scale
        size = torch.full_like(slope, self.perturbation.size * strength)
        return size if self.perturbation.budget is None else size * ball.inverse(slope)

    def _find_climb(self, k: int) -> Vector | None:
        """What the `ascent` function climbs instead of the gradient, with the gradient's factor; None without one."""
        if self.perturbation.ascent is None:
            return None
        space = space_of(self._layout.parameters, self._one)
        gradient = unscaled(space, self._gradients, self.seen.gradient_scale)
        self._step = Step(self._layout.parameters, [gradient], k=k, strength=self._strength, state=self._state)
        return result_of(self.perturbation.ascent, self._step, "ascent") * self.seen.gradient_scale

    def _climbed(self, portion: Portion) -> Tensor:
        """This portion of what the walk climbs. As with `Portion.read`, do not write to it."""
        if self._climb is None:
            return portion.read(self._gradients)
        entries = [self._climb.entry(i, portion.rows) for i in range(portion.start, portion.stop)]
        return portion.joined([_or_zeros(entry, like) for entry, like in zip(entries, portion.operands, strict=True)])

    def _find_direction(self) -> Direction:
        if self._climb is not None:
            return self._direction_of_climb()
        p, squares = self.perturbation.norm, self.seen.gradient_squares
        if p == 2.0 and not self._by_element:  # d = T g / |T g|, and |T g| follows from |g_i|
            length = (self._group_scale.square() * squares).sum().sqrt()
            return Direction(self._group_scale * ball.inverse(length), squares, squares)
        if p == math.inf and not self._by_element:
            return Direction(self._one, self.seen.sign_squares, self.seen.gradient_sums)
        if p not in (2.0, math.inf):
            scaled = (self._scaled(portion.read(self._gradients), portion) for portion in self._layout.portions)
            self._largest = self._layout.largest_magnitude(scaled)
        return self._measured_direction()

    def _direction_of_climb(self) -> Direction:
        """The direction along what an `ascent` function climbs; the predicted rise is still that of the loss."""
        p = self.perturbation.norm
        if p not in (2.0, math.inf):
            scaled = (self._scaled(self._climbed(portion), portion) for portion in self._layout.portions)
            self._largest = self._layout.largest_magnitude(scaled)
        powers, squares, slopes, rises = (list[Tensor]() for _ in range(4))
        for portion in self._layout.portions:
            climbed = self._climbed(portion).clone()
            values = self._unnormalised_direction(climbed, portion).clone()
            if p != math.inf:
                powers.append(_powers(portion, values, p))
            values = self._times_element_scale(portion, values).clone()
            squares.append(portion.squares(values))
            slopes.append(portion.products(climbed, values))
            rises.append(portion.products(portion.read(self._gradients), values))
        sums = self._layout.sum(powers, squares, slopes, rises)
        self.seen.finite = self.seen.finite & sums[1].sum().isfinite()
        factor = self._one
        if p == 2.0 and not self._by_element:
            factor = self._group_scale * ball.inverse((self._group_scale.square() * sums[1]).sum().sqrt())
        elif p != math.inf:
            factor = ball.inverse(sums[0].sum().pow(1 / p))
        return Direction(factor, sums[1], sums[2], sums[3])

    def _measured_direction(self) -> Direction:
        """Measure |u|_p, |u_i|^2 and the slopes.

        With h = T g, h . u = largest * sum |h / largest|^q, which is largest * |u|_p^p for p < inf.
        """
        p, powers, squares = self.perturbation.norm, list[Tensor](), list[Tensor]()
        for portion in self._layout.portions:
            if p == math.inf:
                powers.append(portion.sums(self._scaled(portion.read(self._gradients), portion).abs_()))
            values = self._unnormalised_direction(portion.read(self._gradients), portion)
            if p != math.inf:
                powers.append(_powers(portion, values, p))
            squares.append(portion.squares(self._times_element_scale(portion, values)))
        sums = self._layout.sum(powers, squares)
        slopes = self._largest * sums[0]
        if not self._by_element:
            slopes = slopes * ball.inverse(self._group_scale)
        length = self._one if p == math.inf else sums[0].sum().pow(1 / p)
        return Direction(ball.inverse(length), sums[1], slopes)

    def _unnormalised_directions(self) -> Iterator[tuple[Portion, Tensor]]:
        for portion in self._layout.portions:
            yield portion, self._unnormalised_direction(self._climbed(portion), portion)

    def _unnormalised_direction(self, gradient: Tensor, portion: Portion) -> Tensor:
        """The direction of steepest ascent along h = T g, before normalisation: sgn(h) |h|^(1/(p-1)).

        For p = 2 this is h. If T is one number per group, it is g, and T is part of the direction's factor.
        """
        p = self.perturbation.norm
        if p == math.inf:
            return torch.sign(gradient, out=portion.scratch)
        if p == 2.0:
            return self._scaled(gradient, portion) if self._by_element else gradient
        return ball.steepest_ascent(self._scaled(gradient, portion), p, self._largest)

    def _stepped_positions(self, stride: float) -> Iterator[tuple[Portion, Tensor]]:
        """Add eta / epsilon d to the positions, in place."""
        factor = torch.where(self.seen.finite, self._direction.factor * stride, 0.0)
        entries = self._layout.to_entries(factor)
        for portion in self._layout.portions:
            gradient = portion.read(self._gradients)
            self.seen.add_rise(portion, -self._slope(gradient, portion))
            climbed = gradient if self._climb is None else self._climbed(portion)
            direction = ball.finite(self._unnormalised_direction(climbed, portion), out=portion.scratch)
            yield portion, portion.buffer("position").addcmul_(direction, portion.spread(entries))

    def _drawn_positions(self, start: ball.Start) -> Iterator[tuple[Portion, Tensor]]:
        for portion in self._layout.portions:
            position = portion.buffer("position")
            yield portion, position.copy_(start(position))

    def _multiplied_positions(self, factor: Tensor) -> Iterator[tuple[Portion, Tensor]]:
        """Multiply the positions by a number for each group, or by one for all, in place."""
        entries = self._layout.to_entries(factor)
        for portion in self._layout.portions:
            yield portion, portion.buffer("position").mul_(portion.spread(entries))

    def _project(self, positions: Values, rescale: Callable[[Tensor], Tensor]) -> None:
        """Project y onto the unit ball (clip for p = inf, else rescale), and move the weights there."""
        p, factor = self.perturbation.norm, self._one
        if p == math.inf:
            clipped = ((portion, position.clamp_(-1.0, 1.0)) for portion, position in positions)
            _, squares = self._measure(clipped)
        elif p == 2.0:
            length, squares = self._measure(positions)
            factor = rescale(length)
        else:  # first scale the entries to at most one, because powers of large numbers overflow
            excess = self._layout.largest_magnitude(position for _, position in positions).clamp(min=1.0)
            length, squares = self._measure(self._multiplied_positions(1 / excess))
            factor = excess * rescale(excess * length)
        factor = self._capped(factor, squares)
        self._displace(self._multiplied_positions(factor), self._epsilon)

    def _measure(self, vectors: Values) -> tuple[Tensor, Tensor]:
        """|values|_p, and |values_i|^2 of each group. For p = inf the length is not used, and 1 is returned."""
        p, powers, squares = self.perturbation.norm, list[Tensor](), list[Tensor]()
        for portion, values in vectors:
            if p != math.inf:
                powers.append(_powers(portion, values, p))
            squares.append(portion.squares(self._times_element_scale(portion, values)))
        sums = self._layout.sum(powers, squares)
        return self._one if p == math.inf else sums[0].sum().pow(1 / p), sums[1]

    def _capped(self, factor: Tensor, squares: Tensor) -> Tensor:
        """Reduce the factor of groups whose offset exceeds the cap; `squares` are |values_i|^2 without the factor."""
        norms = (self._epsilon * self._with_group_scale(factor)).abs() * squares.nan_to_num(0.0).sqrt()  # |a_i|
        if self._limits is not None:
            self.seen.capped = norms > self._limits
            shrinking = torch.where(self.seen.capped, self._limits * ball.inverse(norms), 1.0)
            factor, norms = factor * shrinking, norms * shrinking
        self.seen.offset_norms = torch.where(self.seen.finite, norms, 0.0)
        return factor

    def _displace(self, vectors: Values, factor: Tensor) -> None:
        """Move the weights to w + factor T values, or to w if something is not finite."""
        p, seen = self.perturbation.norm, self.seen
        entries = self._layout.to_entries(torch.where(seen.finite, self._with_group_scale(factor), 0.0))
        for portion, values in vectors:
            if self.keeps_position:
                seen.add_rise(portion, self._slope(portion.read(self._gradients), portion))
            values = self._times_element_scale(portion, values)
            if self._by_element or (p != math.inf and not self.keeps_position):  # otherwise already finite
                values = ball.finite(values, out=portion.scratch)
            own_factor = portion.spread(entries)
            offset = values * own_factor if seen.detailed else None
            portion.displace(values, own_factor)
            if offset is not None:
                seen.realised(portion, offset)
        self._keep_state()
        self._gradients = []  # the next pass may free them
        self.weights.written()

    def _keep_state(self) -> None:
        """Write what the `ascent` function keeps, before the gradients that it is computed from are dropped."""
        if self._step is not None:
            if self._step.keeps:
                for i in range(len(self._layout.parameters)):
                    self._step.write(i, self.seen.finite)
            self._climb = self._step = None  # they hold the gradients

    def _with_group_scale(self, factor: Tensor) -> Tensor:
        """The factor of the offset, which includes T if T is one number per group."""
        return factor if self._by_element else factor * self._group_scale

    def _times_element_scale(self, portion: Portion, values: Tensor) -> Tensor:
        """T * values if each weight has its own T, else the values: `_with_group_scale` applies a T per group."""
        if not self._by_element:
            return values
        return torch.mul(values, portion.buffer("scale"), out=portion.scratch)

    def _scaled(self, gradient: Tensor, portion: Portion) -> Tensor:
        """h = T g."""
        scale = portion.buffer("scale") if self._by_element else portion.spread(self._entry_scale)
        return torch.mul(gradient, scale, out=portion.scratch)

    def _slope(self, gradient: Tensor, portion: Portion) -> Tensor:
        """g . T y for each entry. Times epsilon, it is the first-order rise of the loss at y for this gradient."""
        position = portion.buffer("position")
        if self._by_element:
            return portion.products(gradient, position * portion.buffer("scale"))
        return portion.products(gradient, position) * self._entry_scale[portion.number].to(portion.wide)


def _or_zeros(entry: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if entry is None else entry


def _powers(portion: Portion, values: Tensor, p: float) -> Tensor:
    """The sum of |values|^p of each entry."""
    return portion.squares(values) if p == 2.0 else portion.sums(values.abs().pow_(p))
