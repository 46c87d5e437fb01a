"""The walk a_0 .. a_K in the ball |T^-1 a|_p <= epsilon: the only writer of weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gasam import ball
from gasam.layout import Layout, Weights
from gasam.perturbation import Perturbation
from gasam.scales import Group
from gasam.tensors import Stretch, inverse
from gasam.trace import CLIMBED, NO_GRADIENT, NOT_FINITE, Detail, Trace, detail, realised

Start = Callable[[Tensor], Tensor]


class Pass(NamedTuple):
    """What one evaluation saw: the loss, and by what its gradient was multiplied on the way to `.grad`."""

    loss: Tensor
    gradient_scale: Tensor | float = 1.0


@dataclass(frozen=True)
class Visit:
    """A point of the walk. Its offset and the variables' `.grad` are valid until the next visit."""

    k: int
    loss: Tensor
    norm: Tensor  # |a_k|_2
    walk: Walk

    def offset(self) -> list[Tensor]:
        """a_k as it was realised in the weights' own type: where they are, less home."""
        with torch.no_grad():
            return self.walk.weights.offset(self.walk.moved)


def climb(
    variables: Weights | Sequence[Tensor],
    evaluate: Callable[[int], Pass],
    perturbation: Perturbation,
    start: Start | None = None,
    *,
    detailed: bool = False,
) -> Iterator[Visit]:
    """Visit a_0 = 0, a_1, .., a_K; however it is left, the variables are home again with the very same bits.

    `evaluate(k)` computes a loss where the variables are and leaves its gradient in their `.grad`.
    `start` draws a first point for attacks, say `uniform_start(norm)`: it is visited after home, K steps follow.
    """
    weights = variables if isinstance(variables, Weights) else Weights(variables, perturbation.granularity)
    if weights.walking:
        raise RuntimeError("these weights are on a walk already: a loss function must not start another one on them")
    weights.walking = True
    walk = Walk(weights, perturbation, keeps_position=perturbation.steps > 1 or start is not None, detailed=detailed)
    moves = [walk.step] * perturbation.steps
    if start is not None:
        moves.insert(0, lambda seen: walk.jump(seen, start))
    try:
        seen = evaluate(0)
        yield walk.visit(0, seen.loss)
        for k, move in enumerate(moves, start=1):
            move(seen)
            seen = evaluate(k)
            yield walk.visit(k, seen.loss)
    finally:
        weights.walking = False
        walk.go_home()


def traced_climb(
    weights: Weights, evaluate: Callable[[int], Pass], perturbation: Perturbation, *, detailed: bool = False
) -> Trace:
    """Walk to the end, and say what happened."""
    visits = list(climb(weights, evaluate, perturbation, detailed=detailed))
    walk = visits[-1].walk
    return Trace(tuple(v.loss for v in visits), tuple(v.norm for v in visits), walk.state, walk.detail)


@contextmanager
def displaced(weights: Sequence[Tensor], offset: Sequence[Tensor]) -> Iterator[None]:
    """Hold weights + offset inside the block, and put the very same bits back whatever happens there."""
    home = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, step in zip(weights, offset, strict=True):
                weight.add_(step)
        torch.clear_autocast_cache()
        yield
    finally:
        with torch.no_grad():
            _surely(lambda: torch._foreach_copy_(list(weights), home))
        torch.clear_autocast_cache()


def uniform_start(norm: float, generator: torch.Generator | None = None) -> Start:
    """A random point of the ball: uniform in its box for norm inf, else of uniform direction, on the surface."""

    def draw(like: Tensor) -> Tensor:
        if norm == math.inf:
            return torch.empty_like(like).uniform_(-1, 1, generator=generator)
        if norm == 2.0:
            return torch.empty_like(like).normal_(generator=generator)
        sizes = torch._standard_gamma(torch.full_like(like, 1 / norm), generator=generator).pow_(1 / norm)
        return sizes.mul_(torch.empty_like(like).uniform_(-1, 1, generator=generator).sign_())

    return draw


class Walk:
    """The state of a walk, in coordinates y = T^-1 a / epsilon: the ball has radius one, and nothing is divided by T.

    Nothing here asks the device for a number: what a branch would decide is a factor of zero.
    """

    def __init__(self, weights: Weights, perturbation: Perturbation, keeps_position: bool, detailed: bool) -> None:
        self.weights = weights
        self.perturbation = perturbation
        self.keeps_position = keeps_position
        self.moved: list[Stretch] = []
        self.detail: Detail | None = None
        self._detailed = detailed
        self._norm: Tensor | None = None
        self._finite: Tensor | None = None
        self._scale: Tensor | None = None  # T of each piece; element-wise it lies in the stretches

    @property
    def state(self) -> Tensor:
        """CLIMBED, NO_GRADIENT or NOT_FINITE, once a step was made."""
        assert self._norm is not None
        return torch.where(_known(self._finite), torch.where(self._norm > 0, CLIMBED, NO_GRADIENT), NOT_FINITE)

    def visit(self, k: int, loss: Tensor) -> Visit:
        return Visit(k, loss, loss.new_zeros(()) if self._norm is None else self._norm, self)

    @torch.no_grad()
    def step(self, seen: Pass) -> None:
        """y = project(y + eta / epsilon d), and the weights to home + epsilon T y."""
        squares = self._look(seen)
        direction, share = self._direction(squares)
        share = torch.where(_known(self._finite), share, 0.0)
        stride = self.perturbation.stride
        if self.keeps_position:
            over = self._layout.spread(share * stride)
            self._move(lambda stretch: stretch.position.addcmul_(direction(stretch), over(stretch)))
        else:  # the direction is of length one: no projection
            known = squares if self.perturbation.norm == 2.0 and self._scale is not None else None
            self._displace(direction, share * min(1.0, stride), known)

    @torch.no_grad()
    def jump(self, seen: Pass, start: Start) -> None:
        self._look(seen)
        self._move(lambda stretch: stretch.position.copy_(start(stretch.position)))

    @torch.no_grad()
    def go_home(self) -> None:
        def restore() -> None:
            for stretch in self.moved:
                stretch.restore()

        _surely(restore)
        torch.clear_autocast_cache()

    def _look(self, seen: Pass) -> Tensor:
        """The squared norm of each piece's gradient; decides whether the walk may go on, and at first chooses T."""
        first = self._finite is None
        if first:
            self._layout: Layout = self.weights.taking_part()
        squares = self._layout.collect(lambda stretch: stretch.squares(stretch.gradient()))
        finite = squares.sum().isfinite() & seen.loss.isfinite().to(squares.device)
        if first:
            finite = finite & self._choose_scale(squares, seen.gradient_scale)
        self._finite = finite if self._finite is None else self._finite & finite
        return squares

    def _choose_scale(self, squares: Tensor, gradient_scale: Tensor | float) -> Tensor:
        """T from the weights and the gradient of the mean loss at home, for the whole walk; returns if it is finite."""
        layout, perturbation = self._layout, self.perturbation
        factor = torch.as_tensor(gradient_scale, dtype=squares.dtype, device=squares.device).abs()
        if self.keeps_position:
            for stretch in layout.stretches:
                stretch.position = _kept(stretch.position, stretch).zero_()
        if perturbation.granularity == "element":
            return layout.largest_of(lambda stretch: self._choose_element_scale(stretch, factor)).isfinite()
        group = Group(
            gradient=layout.to_groups(squares).sqrt() / factor,
            size=layout.sizes,
            total=layout.total,
            dimensions=layout.dimensions,
            floor=perturbation.floor,
            measure_weight=lambda: layout.to_groups(layout.collect(lambda stretch: stretch.weight_squares())).sqrt(),
        )
        scale = perturbation.scale_function(group).expand_as(group.gradient)
        self._scale = layout.to_pieces(scale)
        return scale.isfinite().all()

    def _choose_element_scale(self, stretch: Stretch, factor: Tensor) -> Tensor:
        """Put each weight's T into the stretch, and return the largest."""
        gradient = stretch.gradient().abs() / factor.to(stretch.device)
        group = Group(
            gradient=gradient,
            size=torch.ones((), dtype=stretch.wide, device=stretch.device),
            total=self._layout.total,
            dimensions=self._layout.spread(self._layout.to_pieces(self._layout.dimensions))(stretch),
            floor=self.perturbation.floor,
            measure_weight=lambda: stretch.weights().abs(),
        )
        stretch.scale = _kept(stretch.scale, stretch).copy_(self.perturbation.scale_function(group))
        return stretch.scale.amax()

    def _direction(self, squares: Tensor) -> tuple[Callable[[Stretch], Tensor], Tensor]:
        """d, the unit p-norm direction that gains most along h = T g: finite values, and a factor for each piece."""
        p, layout = self.perturbation.norm, self._layout
        if p == math.inf:
            return lambda stretch: stretch.gradient().sign(), layout.ones()
        if p == 2.0 and self._scale is not None:  # |h| from the norms at hand: one reading of the gradient less
            share = self._scale * inverse((self._scale.square() * squares).sum().sqrt())
            return lambda stretch: stretch.gradient().nan_to_num(0.0, 0.0, 0.0), share

        over = None if self._scale is None else layout.spread(self._scale)

        def h(stretch: Stretch) -> Tensor:
            return stretch.gradient() * (stretch.scale if over is None else over(stretch))

        largest = layout.largest_of(lambda stretch: h(stretch).abs_().amax()) if ball.needs_largest(p) else None
        size = ball.length(layout.total_of(lambda s: ball.power_sum(ball.raised(h(s), p, largest), p)), p)
        return lambda s: ball.raised(h(s), p, largest).nan_to_num_(0.0, 0.0, 0.0), layout.ones() * inverse(size)

    def _move(self, update: Callable[[Stretch], Tensor]) -> None:
        """Update every y, project it onto the unit ball, and take the weights there."""
        p, layout = self.perturbation.norm, self._layout
        if p == math.inf:
            self._displace(lambda stretch: update(stretch).clamp_(-1.0, 1.0), layout.ones())
        else:
            size = ball.length(layout.total_of(lambda stretch: ball.power_sum(update(stretch), p)), p)
            over = layout.spread(layout.ones() * ball.shrinkage(size))
            self._displace(lambda stretch: stretch.position.mul_(over(stretch)), layout.ones())

    def _displace(self, y: Callable[[Stretch], Tensor], share: Tensor, y_squares: Tensor | None = None) -> None:
        """Take the weights to home + epsilon T y, y times a share for each piece; home where the walk may not go on."""
        layout, element_wise = self._layout, self._scale is None
        reach = share * self.perturbation.epsilon * (1.0 if self._scale is None else self._scale)
        reach = torch.where(_known(self._finite), reach, 0.0)
        over, squares, sums = layout.spread(reach), [], []
        for i, stretch in enumerate(layout.stretches):
            direction, own_reach = y(stretch), over(stretch)
            if element_wise:
                direction = (direction * stretch.scale).nan_to_num_(0.0, 0.0, 0.0)
            if i == len(self.moved):
                stretch.save()
                self.moved.append(stretch)
            stretch.displace(direction, own_reach)
            if y_squares is None:
                squares.append(stretch.squares(direction))
            if self._detailed:
                sums.append(realised(stretch, direction, own_reach).to(layout.sizes))
        torch.clear_autocast_cache()
        offset_squares = reach.square() * (layout.together(squares) if y_squares is None else y_squares).nan_to_num(0.0)
        self._norm = offset_squares.sum().sqrt()
        if sums:
            home = layout.collect(lambda stretch: stretch.squares(stretch.home.to(stretch.wide)))
            self.detail = detail(layout, offset_squares, home, torch.stack(sums).sum(0))


def _known(finite: Tensor | None) -> Tensor:
    assert finite is not None
    return finite


def _kept(buffer: Tensor, stretch: Stretch) -> Tensor:
    return buffer if buffer.numel() else stretch.empty(stretch.size)


def _surely(action: Callable[[], object]) -> None:
    """Do it, and do it again if an interrupt came in between: half restored is not home."""
    try:
        action()
    except BaseException:
        action()
        raise
