"""`walk`, the K ascent steps of Algorithm 1 from the weights w to w + a_1, .., w + a_K."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from gasam.family import Kept, Method, Noise, check_result, dense_gradient
from gasam.groups import Groups, Piece, products, squares, wide
from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.scales import comparable_norms, inverse, reads_gradient, reads_weights, scale_of_groups, scale_of_weights
from gasam.torch_private import local
from gasam.trace import Measured, Trace
from gasam.weights import Weights

Start = Callable[[Tensor], Tensor]
LOOKS = {"cpu"}
"""Devices on which the walk looks whether everything is finite, which saves a pass over the values. Elsewhere it would
wait for the device. A move that is not finite is multiplied by zero everywhere."""


def walk(
    weights: Weights,
    plan: Perturbation,
    run: Callable[[int], Pass | None],
    *,
    strength: float = 1.0,
    start: Start | None = None,
    kept: Kept | None = None,
    measured: bool = True,
    detailed: bool = False,
) -> Trace:
    """Call run(0) at the weights w and run(k) at w + a_k, each reached by an ascent step from the one before.

    There is no run(0) if the plan's method needs no clean pass. The weights are home again when the walk ends, whatever
    happens.

    Args:
        weights: The weights that may move.
        plan: The ball, the scale and the number of steps.
        run: Computes the loss at the present weights, and leaves its gradient in `.grad`. None ends the walk.
        strength: Multiplies epsilon or the budget.
        start: Draws a random first point, which is visited after w; K ascent steps follow.
        kept: What the plan's method keeps between steps.
        measured: Also measure what only the report needs.
        detailed: Also compare the clean gradient with the last one, which `.grad` must hold alone.
    """
    with weights.away():
        kept = Kept() if kept is None else kept  # an empty one is false
        seen, moves = None, None
        if plan.clean_pass:
            seen = run(0)
            if seen is None:
                return Trace([])
        else:  # without a gradient: what the method keeps something of, or everything
            moves = kept.holds if kept else lambda tensor: True
        ascent = _Ascent(
            weights,
            weights.prepared(plan.granularity, moves),
            plan,
            size=plan.size * strength,
            keeps_position=plan.steps > 1 or start is not None,
            measured=measured,
            detailed=detailed,
        )
        ascent.begin(seen, kept)
        for k in range(1, plan.steps + (1 if start is None else 2)):
            if k == 1 and start is not None:
                ascent.draw(start)
            else:
                ascent.step(seen if k > 1 else None)
            seen = run(k)
            if seen is None:
                break
            ascent.record_loss(seen)
        return ascent.finish(seen)


class _Ascent:
    """The state of a walk, in the coordinates y = T^-1 a / epsilon, where the ball has radius one.

    T is computed from the clean gradient, or without a clean pass from what is climbed. If groups of weights share a T,
    it is one number for each group, `_T`, and a factor of what is computed for each piece. If each weight has its own
    T, `_T` is 1, and T is computed for a piece when it is needed, or kept if it outlives the gradient.

    An ascent step goes along `_factor` v, where v = sgn(h) |h|^(1/(p-1)), h = T c, and c is what is climbed: the
    gradient g, or a method's direction. Both |v|_p and |h|_q follow from the sums of h v = |h|^q, with 1/p + 1/q = 1.
    What is computed for a piece leaves out a T that is `_T`: h, v, T v and their sums.
    """

    _epsilon: Tensor
    _slope: Tensor | None  # the sums of h v
    _lengths: Tensor | None  # |T v_i|^2

    def __init__(
        self,
        weights: Weights,
        groups: Groups,
        plan: Perturbation,
        *,
        size: float,
        keeps_position: bool,  # y, because more than one step moves the weights
        measured: bool,
        detailed: bool,
    ) -> None:
        self.weights, self.groups, self.plan, self.trace = weights, groups, plan, Trace([])
        self.size, self.keeps_position, self.measured, self.detailed = size, keeps_position, measured, detailed
        self.p, self.by_element = plan.norm, plan.granularity == "element"
        one = self._one = groups.sizes.new_ones(())
        self._looks = one.device.type in LOOKS and type(one) is Tensor  # a fake tensor has no values
        self._T = self._largest = self._shrink = one
        self._kept_T: dict[Piece, Tensor] = {}  # T of each weight
        self._zero = self._zero_of_loss = one * 0  # NaN as soon as a loss, gradient or scale is not finite
        self._rise = one * math.nan
        self._gradient_scale: Any = 1.0  # the gradient divided by that of the mean loss
        self._is_noise = False
        self._climbed: Iterable[Tensor] = ()  # its parts, dropped when the weights move

    @torch.no_grad()
    def begin(self, clean: Pass | None, kept: Kept) -> None:
        """From the clean pass, or from what the method climbs without one: T, the first direction, and epsilon."""
        plan, groups = self.plan, self.groups
        method = plan.method if plan.method is not None and plan.method.has_direction else None
        replaces = clean is not None and method is not None  # whether T is that of the gradient, which is not climbed
        if clean is not None:
            self.record_loss(clean)
            self._climb_gradient(clean)
        else:
            assert method is not None, "a method without a clean pass has a direction"
            self._climb_by_method(method, kept, has_gradient=False)
        sums = self._measure(is_climbed=not replaces, is_first=True)
        self._first_squares: Any = sums.get("gradient", self._one) / self._gradient_scale**2  # of the mean loss
        self._weight_squares: Any = sums.get("weights")  # None if nothing needs them
        if self.detailed:
            for piece, gradient in groups.each(self._climbed):
                piece.buffer("clean gradient").copy_(gradient / self._gradient_scale)
        if not self.by_element:
            self._T = scale_of_groups(
                plan.scale_function, plan.floor, groups, self._first_squares, self._weight_squares
            )
            self._zero = self._zero + self._T.sum()
        elif self.keeps_position or replaces:
            for piece, gradient in groups.each(self._climbed):
                self._kept_T[piece] = piece.buffer("T").copy_(self._own_scale(piece, gradient))
        if method is not None and replaces:
            self._climb_by_method(method, kept, has_gradient=True)
        dual_norm = self._normalise(sums)
        # A budget is the rise of the mean loss along the direction: epsilon = budget / |T c|_q.
        self._epsilon = (
            self._one * self.size if plan.budget is None else self.size * inverse(dual_norm / self._gradient_scale)
        )
        self._zero = self._zero + self._epsilon
        if self.keeps_position:
            for piece in groups.pieces:
                piece.buffer("position").zero_()

    def record_loss(self, seen: Pass) -> None:
        self.trace.losses.append(seen.loss)
        self.trace.loss_scale = seen.loss_scale
        self._zero_of_loss = (seen.loss - seen.loss).to(self._one)
        self._zero = self._zero + self._zero_of_loss

    def _climb_gradient(self, seen: Pass) -> None:
        scale = abs(seen.gradient_scale)  # its sign does not matter
        self._gradient_scale = scale.to(self._one) if isinstance(scale, Tensor) else scale
        self._climbed, self._is_noise = self.groups.split(self.groups.gradients()), False

    def _climb_by_method(self, method: Method, kept: Kept, *, has_gradient: bool) -> None:
        parameters = [operand.parameter for operand in self.groups.operands]
        with kept.bound(parameters, self._gradient_scale, self._is_finite):
            gradients = [dense_gradient(p, p.grad) for p in parameters] if has_gradient else None
            found = method.direction(gradients, kept)
        if isinstance(found, Noise):
            self._climbed, self._is_noise = self.groups.noise(found.seed), True
            self._gradient_scale = 1.0
            return
        check_result(found, parameters, f"{type(method).__name__}.direction")
        self._climbed = self.groups.split([local(tensor) for tensor in found], "climbed")

    def _is_finite(self) -> Tensor | bool:
        """Whether all losses, gradients and scales so far were finite."""
        finite = self._zero.isfinite()
        return bool(finite) if self._looks else finite

    def _names_along(self) -> list[str]:
        """The sums that are needed before the weights move: "slope" of h v, and "lengths" of |T v|^2."""
        # Without a cap the lengths of groups cost less while they move, but a collective if they are sharded.
        if not self.keeps_position and (self.plan.cap is not None or self.groups.sharded or self.by_element):
            return ["slope", "lengths"]
        predicts = self.measured and not self._is_noise
        return ["slope"] if predicts or self.plan.budget is not None or self.p != math.inf else []

    def _measure(self, *, is_climbed: bool = True, is_first: bool = False) -> dict[str, Tensor]:
        """Sums of what was read, and of its direction if it `is_climbed`, with one collective."""
        plan, scale = self.plan, self.plan.scale_function
        is_own_direction = self.p == 2.0 and not self.by_element  # v = c
        along = self._names_along() if is_climbed and self.p in (2.0, math.inf) and not is_own_direction else []
        weights = is_first and (self.measured or plan.cap is not None or (not self.by_element and reads_weights(scale)))
        # Noise is drawn again whenever it is read, and T of each weight needs no sum.
        gradient = is_own_direction or reads_gradient(scale) or not self._is_noise
        gradient = gradient and (self.detailed or not self.by_element or not along)

        def sums_of(piece: Piece, climbed: Any) -> list[Tensor]:
            found = [squares(climbed)] if gradient else []
            found += self._sums_along(piece, climbed, along) if along else []
            return [*found, squares(piece.weights())] if weights else found

        names = ["gradient"] * gradient + along + ["weights"] * weights
        pairs: Any = self.groups.each(self._climbed) if gradient or along else zip(self.groups.pieces, repeat(None))
        sums = self._sums(names, (sums_of(*each) for each in pairs), self._zero_of_loss)
        if is_climbed and is_own_direction:
            sums["slope"] = sums["lengths"] = sums["gradient"]
        return sums

    def _sums(self, names: list[str], found: Iterable[list[Tensor]], doubt: Any = 0.0) -> dict[str, Tensor]:
        sums = self.groups.sums(len(names), found, doubt)
        self._zero = self._zero + sums[:1].sum()
        return dict(zip(names, sums, strict=True))

    def _own_scale(self, piece: Piece, gradient: Tensor) -> Tensor:
        """T of the weights of a piece, if each has its own."""
        if piece in self._kept_T:
            return self._kept_T[piece]
        scale = self._gradient_scale.to(gradient) if isinstance(self._gradient_scale, Tensor) else self._gradient_scale
        return scale_of_weights(self.plan.scale_function, self.plan.floor, self.groups, piece, gradient, scale)

    def _along(self, piece: Piece, climbed: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(h, v, T)."""
        if not self.by_element:
            return climbed, steepest_ascent(climbed, self.p, self._largest, out=piece.for_move), None
        scale = self._own_scale(piece, climbed)
        h = torch.mul(climbed, scale, out=piece.for_h)
        return h, steepest_ascent(h, self.p, self._largest, out=piece.for_v), scale

    def _move(self, piece: Piece, climbed: Tensor) -> Tensor:
        """T v."""
        if self._keeps_moves and piece.keeps_move:
            return piece.for_move
        _, v, scale = self._along(piece, climbed)
        return v if scale is None else torch.mul(v, scale, out=piece.for_move)

    def _sums_along(self, piece: Piece, climbed: Tensor, names: list[str]) -> list[Tensor]:
        h, v, scale = self._along(piece, climbed)
        slope = squares(h) if v is h else products(h, v)
        if "lengths" not in names:
            return [slope]
        return [slope, squares(v if scale is None else torch.mul(v, scale, out=piece.for_move))]

    def _normalise(self, sums: dict[str, Tensor]) -> Tensor:
        """Find the factor of each group's v, and measure what is missing; return |T c|_q."""
        p, groups, names = self.p, self.groups, self._names_along()
        if p not in (2.0, math.inf):
            self._largest = groups.largest(self._along(*each)[0] for each in groups.each(self._climbed))
        if "slope" not in sums and names:
            sums = self._sums(names, (self._sums_along(*each, names) for each in groups.each(self._climbed)))
        self._slope, self._lengths = sums.get("slope"), sums.get("lengths")
        # T v may still be where its sums were computed, so that the gradient need not be read again.
        self._keeps_moves = self._lengths is not None and (self.by_element or p == math.inf)
        if self._slope is None or not groups.names:
            self._factor = self._one
            return self._one
        largest_scale = self._T.max()
        ratio = self._T * inverse(largest_scale)  # powers of large and of small numbers are not finite
        q = 1.0 if p == math.inf else p / (p - 1)
        # The sum of |T h / (the largest T times the largest |h|)|^q, times the latter.
        total = (ratio**q * self._slope).sum() * inverse(self._largest)
        self._factor = ratio ** (1 / (p - 1)) * inverse(total ** (1 / p))
        return self._largest * largest_scale * total ** (1 / q)

    @torch.no_grad()
    def step(self, seen: Pass | None) -> None:
        """Compute y_k = project(y_{k-1} + stride * factor v), and move the weights to w + epsilon T y_k."""
        if seen is not None:
            self._climb_gradient(seen)
            self._normalise(self._measure())
        groups, stride = self.groups, self.plan.relative_step
        if not self.keeps_position:  # it starts at the centre, so projecting it only limits its length to 1
            factor = self._factor * min(1.0, stride)
            self._limit(factor, self._lengths)
            moved = (self._move(piece, climbed) for piece, climbed in groups.each(self._climbed))
            self._displace(moved, factor * self._shrink, self._lengths)
        else:
            factors = groups.spread(self._factor * stride)
            for (piece, climbed), factor in zip(groups.each(self._climbed), factors, strict=True):
                piece.buffer("position").addcmul_(self._along(piece, climbed)[1], factor)
            self._project(shrinkage)
        if seen is None and self._slope is not None and not self._is_noise:
            rises = self._epsilon * self._T * self._factor * self._shrink * self._slope
            self._rise = min(1.0, stride) * rises.sum() / self._gradient_scale

    @torch.no_grad()
    def draw(self, start: Start) -> None:
        """Move to the ball's surface in the direction that `start` draws; for p = inf, move to the drawn point."""
        points = [start(torch.empty_like(o.source, dtype=wide(o.source.dtype))) for o in self.groups.operands]
        for piece, point in self.groups.each(self.groups.split(points, "start")):
            piece.buffer("position").copy_(point)
        self._project(inverse)

    def _project(self, rescale: Callable[[Tensor], Tensor]) -> None:
        """Project y onto the unit ball (clip for p = inf, else rescale), and move the weights there."""
        p, groups, excess = self.p, self.groups, self._one
        positions = [piece.buffer("position") for piece in groups.pieces]
        if p == math.inf:
            for position in positions:
                position.clamp_(-1.0, 1.0)
        elif p != 2.0:  # powers of large numbers are not finite
            excess = groups.largest(positions).clamp(min=1.0)

        def sums_of(piece: Piece, position: Tensor) -> list[Tensor]:
            moved = squares(self._times_scale(piece, position))
            return [moved if p == math.inf else powers(position, p, excess), moved]

        lengths, of_moved = groups.sums(2, (sums_of(*each) for each in groups.each(positions)))
        factor = self._one if p == math.inf else rescale(excess * lengths.sum() ** (1 / p))
        self._limit(factor, of_moved)
        factor = factor * self._shrink
        for position, own in zip(positions, groups.spread(factor), strict=True):
            position.mul_(own)
        moved = (self._times_scale(*each) for each in groups.each(positions))
        self._displace(moved, self._one, of_moved * factor.square())

    def _times_scale(self, piece: Piece, position: Tensor) -> Tensor:
        """T y, if each weight has its own T; else y."""
        return torch.mul(position, self._kept_T[piece], out=piece.for_h) if self.by_element else position

    def _limit(self, factor: Tensor, lengths: Any) -> None:
        """Find what shrinks the offsets `factor` T v to the cap; `lengths` are |T v_i|^2."""
        if self.plan.cap is None:
            return
        norms = (self._epsilon * self._T * factor).abs() * lengths.sqrt()
        limits = self.plan.cap * comparable_norms(self._weight_squares.sqrt(), self.groups.sizes)
        self._shrink = torch.where(norms > limits, limits * inverse(norms), 1.0)

    def _displace(self, vectors: Iterable[Tensor], factor: Tensor, lengths: Tensor | None) -> None:
        """Move the weights to w + epsilon T factor times the vectors, computed lazily while they are in the caches.

        If something is not finite, the factor is zero. `lengths` are their |v_i|^2, if they are known.
        """
        finite, groups = self._is_finite(), self.groups
        factor = torch.where(torch.as_tensor(finite), self._epsilon * self._T * factor, 0.0)
        found = list[list[Tensor]]()

        def moves() -> Iterator[tuple[Piece, Tensor, Tensor]]:
            for piece, values, own in zip(groups.pieces, vectors, groups.spread(factor), strict=False):
                if finite is not True:
                    values = torch.nan_to_num(values, 0.0, 0.0, 0.0)  # 0 times infinity would be NaN
                if lengths is None:
                    found.append([squares(values)])
                yield piece, values, own

        self.weights.displace(moves())
        self._climbed = ()  # the next pass may free the gradients
        if lengths is None:
            [lengths] = groups.sums(1, found)
        offsets = (factor.abs() * lengths.sqrt()).nan_to_num(0.0, posinf=math.inf)  # 0 times NaN
        self.trace.offsets.append(offsets.expand_as(groups.sizes))

    @torch.no_grad()
    def finish(self, seen: Pass | None) -> Trace:
        """After the last pass: what the walk leaves."""
        trace, groups = self.trace, self.groups
        trace.finite = self._is_finite()
        if not self.measured:
            return trace
        report = trace.groups = Measured(
            labels=groups.names,
            offsets=trace.offsets[-1] if trace.offsets else groups.sizes * 0,
            weights=self._weight_squares.sqrt(),
            sizes=groups.sizes,
            capped=(self._shrink < 1).expand(groups.sizes.shape),
            predicted_rise=self._rise,
        )
        if self.detailed and seen is not None:
            self._climb_gradient(seen)
            last = self._measure(is_climbed=False)["gradient"].sqrt()
            pairs = groups.each(self._climbed)
            both = groups.sums(1, ([products(own, piece.buffer("clean gradient"))] for piece, own in pairs))[0]
            report.gradient_norms = clean = self._first_squares.sqrt()
            report.gradient_ratios = last / self._gradient_scale * inverse(clean)
            report.cosines = both * inverse(last * clean)
        return trace


def steepest_ascent(h: Tensor, p: float, largest: Tensor, out: Tensor | None = None) -> Tensor:
    """sgn(h) |h|^(1/(p-1)), the direction of steepest ascent along h before normalisation.

    For other p than 2 and infinity h is first divided by `largest`, its largest absolute entry, because powers of small
    numbers underflow. The result may be h.
    """
    if p == 2.0:
        return h
    if p == math.inf:
        return torch.sign(h, out=out)
    ratio = h / torch.where(largest > 0, largest, 1.0).to(h)
    return ratio.abs().pow_(1 / (p - 1)).mul_(ratio.sign_())


def powers(x: Tensor, p: float, largest: Tensor) -> Tensor:
    """The sum of |x / largest|^p in each row of a matrix; one number for a vector."""
    if p == 2.0:
        return squares(x)
    return (x / largest.to(x)).abs().pow_(p).sum(-1)


def shrinkage(length: Tensor) -> Tensor:
    """min(1, 1 / length), the factor that projects a point of this length onto the unit ball."""
    return length.clamp(min=1.0).reciprocal()
