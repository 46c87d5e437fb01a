"""The walk a_0 .. a_K in the ball |T^-1 a|_p <= epsilon: the only mover of weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gasam import ball
from gasam.layout import Weights
from gasam.perturbation import Perturbation
from gasam.scales import Group
from gasam.tensors import Stretch, inverse
from gasam.trace import CLIMBED, NO_GRADIENT, NOT_FINITE, Detail, detail, realised

Start = Callable[[Tensor], Tensor]


class Pass(NamedTuple):
    """What one evaluation saw: the loss, and by what its gradient was multiplied on the way to `.grad`."""

    loss: Tensor
    gradient_scale: Tensor | float = 1.0


class Direction(NamedTuple):
    """d of a stretch is `values` times `share`, a number for each piece or for all."""

    values: Callable[[Stretch], Tensor]
    share: Tensor
    squares: Tensor | None = None  # of the values, where they are known


class Walk:
    """The state of a walk, in coordinates y = T^-1 a / epsilon: the ball has radius one, and nothing is divided by T.

    It begins with the clean pass, whose gradient lies in `.grad` and from which T is chosen. Nothing here asks the
    device for a number: what a branch would decide is a factor of zero.
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
        self._layout = weights.taking_part(perturbation.granularity)
        self._home_squares = self._weight_squares() if detailed else None
        self._scale: Tensor | None = None  # T of each piece; element-wise it lies in the stretches
        self._finite = self._measure(clean, weigh=bool(self._layout.kinds))
        self._finite = self._finite & self._choose_scale(clean.gradient_scale)
        if keeps_position:
            for stretch in self._layout.stretches:
                stretch.position = _kept(stretch.position, stretch).zero_()

    @property
    def state(self) -> Tensor:
        """CLIMBED, NO_GRADIENT or NOT_FINITE."""
        return torch.where(self._finite, torch.where(self.norm > 0, CLIMBED, NO_GRADIENT), NOT_FINITE)

    @torch.no_grad()
    def look(self, seen: Pass) -> None:
        """Take note of another pass's gradient: the walk goes on only while all is finite."""
        self._finite = self._finite & self._measure(seen)

    @torch.no_grad()
    def step(self) -> None:
        """y = project(y + eta / epsilon d), and the weights to home + epsilon T y."""
        direction = self._direction()
        share = torch.where(self._finite, direction.share, 0.0)
        stride = self.perturbation.stride
        if self.keeps_position:
            over = self._layout.spread(share * stride)
            self._move(lambda stretch: stretch.position.addcmul_(direction.values(stretch), over(stretch)))
        else:  # of length one: no projection
            self._displace(direction._replace(share=share * min(1.0, stride)))

    @torch.no_grad()
    def jump(self, start: Start) -> None:
        """Onto the surface, the way that `start` says; for p = inf to the very point."""
        self._move(lambda stretch: stretch.position.copy_(start(stretch.position)), rescale=inverse)

    def _measure(self, seen: Pass, weigh: bool = False) -> Tensor:
        """The squared norms of the gradient, of each piece and each group; returns if they and the loss are finite.

        Of sharded weights all norms come by one collective: the weights' too, whether or not the scale will ask.
        """
        layout, loss = self._layout, seen.loss.to(self._layout.sizes)
        self._squares = layout.collect(lambda stretch: stretch.squares(stretch.gradient()))
        squares = [self._squares, self._weight_squares()] if weigh else [self._squares]
        sums = layout.to_groups(torch.stack(squares), doubt=loss - loss)
        self._group_squares, self._group_weight_squares = sums[0], sums[1] if weigh else None
        return self._group_squares.sum().isfinite() & loss.isfinite()

    def _weight_squares(self) -> Tensor:
        return self._layout.collect(lambda stretch: stretch.weight_squares())

    def _group_weights(self) -> Tensor:
        squares = self._group_weight_squares
        return (self._layout.to_groups(self._weight_squares()) if squares is None else squares).sqrt()

    def _choose_scale(self, gradient_scale: Tensor | float) -> Tensor:
        """T from the weights and the gradient of the mean loss at home, for the whole walk; returns if it is finite."""
        layout, squares = self._layout, self._group_squares
        factor = torch.as_tensor(gradient_scale, dtype=squares.dtype, device=squares.device).abs()
        if self.perturbation.granularity == "element":
            return layout.are_finite(lambda stretch: self._choose_element_scale(stretch, factor))
        group = Group(
            size=layout.sizes,
            total=layout.total,
            floor=self.perturbation.floor,
            measure_gradient=lambda: squares.sqrt() / factor,
            measure_weight=self._group_weights,
            measure_dimensions=lambda: layout.dimensions,
        )
        scale = self.perturbation.scale_function(group).expand_as(layout.sizes)
        self._group_scale, self._scale = scale, layout.to_pieces(scale)
        return scale.isfinite().all()

    def _choose_element_scale(self, stretch: Stretch, factor: Tensor) -> Tensor:
        """Put each weight's T into the stretch, and return the largest."""
        layout = self._layout
        group = Group(
            size=torch.ones((), dtype=stretch.wide, device=stretch.device),
            total=layout.total,
            floor=self.perturbation.floor,
            measure_gradient=lambda: stretch.gradient().abs().div_(factor.to(stretch.device)),
            measure_weight=lambda: stretch.weights().abs(),
            measure_dimensions=lambda: layout.spread(layout.to_pieces(layout.dimensions))(stretch),
        )
        stretch.scale = _kept(stretch.scale, stretch).copy_(self.perturbation.scale_function(group))
        return stretch.scale.amax()

    def _direction(self) -> Direction:
        """The unit p-norm direction that gains most along h = T g; its values are finite whatever the gradient is."""
        p, layout = self.perturbation.norm, self._layout
        if p == math.inf:
            return Direction(lambda s: torch.sign(s.gradient(), out=s.scratch), layout.one)
        if p == 2.0 and self._scale is not None:  # |h| from the norms at hand: one reading of the gradient less
            share = self._scale * inverse((self._group_scale.square() * self._group_squares).sum().sqrt())
            values = lambda s: torch.nan_to_num(s.gradient(), 0.0, 0.0, 0.0, out=s.scratch)  # noqa: E731
            return Direction(values, share, self._squares)

        over = None if self._scale is None else layout.spread(self._scale)

        def h(stretch: Stretch) -> Tensor:
            return stretch.gradient() * (stretch.scale if over is None else over(stretch))

        largest = layout.largest_of(lambda s: h(s).abs_().amax()) if ball.needs_largest(p) else None
        size = ball.length(layout.total_of(lambda s: ball.power_sum(ball.raised(h(s), p, largest), p)), p)
        return Direction(lambda s: ball.raised(h(s), p, largest).nan_to_num_(0.0, 0.0, 0.0), inverse(size))

    def _move(self, update: Callable[[Stretch], Tensor], rescale: Callable[[Tensor], Tensor] = ball.shrinkage) -> None:
        """Update every y, bring it into the unit ball, and take the weights there."""
        one = self._layout.one
        if self.perturbation.norm == math.inf:
            self._displace(Direction(lambda stretch: update(stretch).clamp_(-1.0, 1.0), one))
        else:
            over = self._layout.spread(rescale(self._updated_size(update)))
            self._displace(Direction(lambda stretch: stretch.position.mul_(over(stretch)), one))

    def _updated_size(self, update: Callable[[Stretch], Tensor]) -> Tensor:
        """|y|_p after the update; a power is taken of y over its largest entry, lest it overflow."""
        p, layout = self.perturbation.norm, self._layout
        if not ball.needs_largest(p):
            return ball.length(layout.total_of(lambda stretch: ball.power_sum(update(stretch), p)), p)
        largest = layout.largest_of(lambda stretch: update(stretch).abs().amax())
        over = layout.spread(inverse(largest))
        return largest * ball.length(layout.total_of(lambda s: ball.power_sum(s.position * over(s), p)), p)

    def _displace(self, y: Direction) -> None:
        """Take the weights to home + epsilon T y; home itself where the walk may not go on."""
        layout, moved = self._layout, self.weights.moved
        reach = y.share * self.perturbation.epsilon * (1.0 if self._scale is None else self._scale)
        reach = torch.where(self._finite, reach, 0.0)
        over, squares, sums = layout.spread(reach), [], []
        for i, stretch in enumerate(layout.stretches):
            values, own_reach = y.values(stretch), over(stretch)
            if self._scale is None:
                values = torch.mul(values, stretch.scale, out=stretch.scratch).nan_to_num_(0.0, 0.0, 0.0)
            if i == len(moved):  # the first step: saved and noted one by one, so that an interrupt finds each at home
                stretch.save()
                moved.append(stretch)
            if y.squares is None:
                squares.append(stretch.squares(values))
            offset = values * own_reach if self._home_squares is not None else None
            stretch.displace(values, own_reach)
            if offset is not None:
                sums.append(realised(stretch, offset).to(layout.sizes))
        self.weights.forget_derived()
        offset_squares = reach.square() * (layout.together(squares) if y.squares is None else y.squares).nan_to_num(0.0)
        self.norm = layout.sum_of_pieces(offset_squares).sqrt()
        if self._home_squares is not None:
            rows = torch.stack(sums) if sums else layout.sizes.new_zeros(0, 2)
            self.detail = detail(layout, offset_squares, self._home_squares, self.norm, layout.sum_of_stretches(rows))


def _kept(buffer: Tensor, stretch: Stretch) -> Tensor:
    return buffer if buffer.numel() else stretch.empty(stretch.size)
