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
        self._detailed = detailed
        self._layout = weights.taking_part(perturbation.granularity)
        self._squares = self._gradient_squares()
        self._scale: Tensor | None = None  # T of each piece; element-wise it lies in the stretches
        self._finite = self._is_finite(clean) & self._choose_scale(clean.gradient_scale)
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
        self._squares = self._gradient_squares()
        self._finite = self._finite & self._is_finite(seen)

    @torch.no_grad()
    def step(self) -> None:
        """y = project(y + eta / epsilon d), and the weights to home + epsilon T y."""
        direction, share = self._direction()
        share = torch.where(self._finite, share, 0.0)
        stride = self.perturbation.stride
        if self.keeps_position:
            over = self._layout.spread(share * stride)
            self._move(lambda stretch: stretch.position.addcmul_(direction(stretch), over(stretch)))
        else:  # the direction is of length one: no projection
            known = self._squares if self.perturbation.norm == 2.0 and self._scale is not None else None
            self._displace(direction, share * min(1.0, stride), known)

    @torch.no_grad()
    def jump(self, start: Start) -> None:
        self._move(lambda stretch: stretch.position.copy_(start(stretch.position)))

    def _gradient_squares(self) -> Tensor:
        """The squared norm of each piece's gradient."""
        return self._layout.collect(lambda stretch: stretch.squares(stretch.gradient()))

    def _is_finite(self, seen: Pass) -> Tensor:
        return self._squares.sum().isfinite() & seen.loss.isfinite().to(self._squares.device)

    def _choose_scale(self, gradient_scale: Tensor | float) -> Tensor:
        """T from the weights and the gradient of the mean loss at home, for the whole walk; returns if it is finite."""
        layout, squares = self._layout, self._squares
        factor = torch.as_tensor(gradient_scale, dtype=squares.dtype, device=squares.device).abs()
        if self.perturbation.granularity == "element":
            return layout.largest_of(lambda stretch: self._choose_element_scale(stretch, factor)).isfinite()
        group = Group(
            size=layout.sizes,
            total=layout.total,
            floor=self.perturbation.floor,
            measure_gradient=lambda: layout.to_groups(squares).sqrt() / factor,
            measure_weight=lambda: layout.to_groups(layout.collect(lambda stretch: stretch.weight_squares())).sqrt(),
            measure_dimensions=lambda: layout.dimensions,
        )
        scale = self.perturbation.scale_function(group).expand_as(layout.sizes)
        self._scale = layout.to_pieces(scale)
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

    def _direction(self) -> tuple[Callable[[Stretch], Tensor], Tensor]:
        """d, the unit p-norm direction that gains most along h = T g: finite values, and a factor for pieces or all."""
        p, layout = self.perturbation.norm, self._layout
        if p == math.inf:
            return lambda stretch: torch.sign(stretch.gradient(), out=stretch.scratch), layout.one
        if p == 2.0 and self._scale is not None:  # |h| from the norms at hand: one reading of the gradient less
            share = self._scale * inverse((self._scale.square() * self._squares).sum().sqrt())
            return lambda stretch: torch.nan_to_num(stretch.gradient(), 0.0, 0.0, 0.0, out=stretch.scratch), share

        over = None if self._scale is None else layout.spread(self._scale)

        def h(stretch: Stretch) -> Tensor:
            return stretch.gradient() * (stretch.scale if over is None else over(stretch))

        largest = layout.largest_of(lambda stretch: h(stretch).abs_().amax()) if ball.needs_largest(p) else None
        size = ball.length(layout.total_of(lambda s: ball.power_sum(ball.raised(h(s), p, largest), p)), p)
        return lambda s: ball.raised(h(s), p, largest).nan_to_num_(0.0, 0.0, 0.0), inverse(size)

    def _move(self, update: Callable[[Stretch], Tensor]) -> None:
        """Update every y, project it onto the unit ball, and take the weights there."""
        p, layout = self.perturbation.norm, self._layout
        if p == math.inf:
            self._displace(lambda stretch: update(stretch).clamp_(-1.0, 1.0), layout.one)
        else:
            over = layout.spread(ball.shrinkage(self._updated_size(update)))
            self._displace(lambda stretch: stretch.position.mul_(over(stretch)), layout.one)

    def _updated_size(self, update: Callable[[Stretch], Tensor]) -> Tensor:
        """|y|_p after the update; a power is taken of y over its largest entry, lest it overflow."""
        p, layout = self.perturbation.norm, self._layout
        if not ball.needs_largest(p):
            return ball.length(layout.total_of(lambda stretch: ball.power_sum(update(stretch), p)), p)
        largest = layout.largest_of(lambda stretch: update(stretch).abs().amax())
        over = layout.spread(inverse(largest))
        return largest * ball.length(layout.total_of(lambda s: ball.power_sum(s.position * over(s), p)), p)

    def _displace(self, y: Callable[[Stretch], Tensor], share: Tensor, y_squares: Tensor | None = None) -> None:
        """Take the weights to home + epsilon T y, y times a share; home itself where the walk may not go on."""
        layout, element_wise = self._layout, self._scale is None
        reach = share * self.perturbation.epsilon * (1.0 if self._scale is None else self._scale)
        reach = torch.where(self._finite, reach, 0.0)
        if self._detailed and not self.weights.moved:
            self._home_squares = layout.collect(lambda stretch: stretch.weight_squares())
        over, squares, sums = layout.spread(reach), [], []
        for i, stretch in enumerate(layout.stretches):
            direction, own_reach = y(stretch), over(stretch)
            if element_wise:
                direction = torch.mul(direction, stretch.scale, out=stretch.scratch).nan_to_num_(0.0, 0.0, 0.0)
            if i == len(self.weights.moved):
                stretch.save()
                self.weights.moved.append(stretch)
            if y_squares is None:
                squares.append(stretch.squares(direction))
            offset = direction * own_reach if self._detailed else None
            stretch.displace(direction, own_reach)
            if offset is not None:
                sums.append(realised(stretch, offset).to(layout.sizes))
        torch.clear_autocast_cache()
        offset_squares = reach.square() * (layout.together(squares) if y_squares is None else y_squares).nan_to_num(0.0)
        self.norm = offset_squares.sum().sqrt()
        if sums:
            self.detail = detail(layout, offset_squares, self._home_squares, torch.stack(sums).sum(0))


def _kept(buffer: Tensor, stretch: Stretch) -> Tensor:
    return buffer if buffer.numel() else stretch.empty(stretch.size)
