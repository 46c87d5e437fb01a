"""`walk`, the K ascent steps of Algorithm 1 from the weights w to w + a_1, .., w + a_K; `climb`, for analyses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gasam.family import Kept, Method, check_dense, check_result
from gasam.parameters import Parameters, check_names, read, weights_of
from gasam.passes import Pass, uninterrupted
from gasam.perturbation import Perturbation
from gasam.pieces import Piece, products, squares
from gasam.scales import WITHOUT_WEIGHTS, comparable_norms, inverse, scale_of_groups, scale_of_weights
from gasam.torch_private import local, standard_gamma
from gasam.trace import Measured, Trace
from gasam.weights import Weights

Start = Callable[[Tensor], Tensor]
Values = Iterable[tuple[Piece, Tensor]]
"""One vector per piece, computed lazily so that each is used while it is still in the CPU's caches."""
LOOKS = {"cpu"}
"""Devices on which the walk looks whether everything is finite. Elsewhere that would wait for the device: instead of
branching, moves that are not valid are multiplied by zero."""


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

    The weights are home again when the walk ends, whatever happens.

    Args:
        weights: The weights that may move.
        plan: The ball, the scale and the number of steps.
        run: Computes the loss at the present weights, and leaves its gradient in `.grad`. None ends the walk.
        strength: Multiplies epsilon or the budget.
        start: Draws a random first point, which is visited after w; K ascent steps follow.
        kept: What the plan's method keeps between steps.
        measured: Also measure what only the report needs.
        detailed: Also compare the clean with the last gradient, and measure the rounding error of the offset.
    """
    with weights.walk():
        seen = run(0)
        if seen is None:
            return Trace([], strength=strength)
        ascent = _Ascent(weights, plan, seen, strength, start is not None, kept, measured or detailed, detailed)
        moves = [ascent.step] * plan.steps
        if start is not None:
            moves.insert(0, partial(ascent.move_to_start, start))
        for k, move in enumerate(moves, start=1):
            if k > 1:
                ascent.read_gradient(seen)
            move()
            seen = run(k)
            if seen is None:
                break
            ascent.walked.losses.append(seen.loss)
        return ascent.finish(seen)


class _Direction(NamedTuple):
    """The unit direction d of the next ascent step is `factor` times the unnormalised direction u.

    `squares` holds |u_i|^2 and `slopes` holds c_i . u_i for each group. Here c is what the walk climbs: the gradient g,
    or what a method's `direction` returns. `rises` holds g_i . u_i. If each weight has its own T, all three have
    T_i u_i in place of u_i. Slopes and rises are None if nobody reads them.
    """

    factor: Tensor
    squares: Tensor
    slopes: Tensor | None
    rises: Tensor | None


class _Ascent:
    """The state of a walk, in the coordinates y = T^-1 a / epsilon, where the ball has radius one.

    T is computed from the clean gradient. If groups of weights share a T, it is one number per group. If each weight
    has its own T, it is computed again when it is needed, or kept if the walk outlives the gradient.
    """

    @torch.no_grad()
    def __init__(
        self,
        weights: Weights,
        plan: Perturbation,
        clean: Pass,
        strength: float,
        from_start: bool,
        kept: Kept | None,
        measured: bool,
        detailed: bool,
    ) -> None:
        self.weights, self.plan, self.groups = weights, plan, weights.taking_part(plan.granularity)
        self.p, self.by_element = plan.norm, plan.granularity == "element"
        self.keeps_position = plan.steps > 1 or from_start
        self.measured, self.detailed = measured, detailed
        self.walked = Trace([clean.loss], strength=strength, loss_scale=clean.loss_scale)
        self._one = self.groups.sizes.new_ones(())
        self._doubt: Tensor = self._one * 0  # NaN or infinite as soon as something is not finite
        self._square_sums: Tensor | None
        self._sign_sums: Tensor | None
        self._size_sums: Tensor | None
        self._largest = self._one  # magnitude of T u, for p other than 2 and inf
        self._looks = self._one.device.type in LOOKS and type(self._one) is Tensor  # a fake tensor has no values
        self._slopes: list[tuple[float | Tensor, list[Tensor]]] = []  # (factor, g . y of each piece)
        self._gradient_scale = self._clean_scale = _magnitude(clean, self._one)
        method = plan.method if plan.method is not None and plan.method.has_direction else None
        self._measures_rise = measured or plan.budget is not None
        gradients = self.groups.gradients()
        self._parts = self.groups.split(gradients)  # of what is climbed; dropped when the weights move
        self._rise_parts: list[Tensor] | None = None  # of the gradient, if something else is climbed
        self._read_clean(clean, by_sign=method is None)
        self._choose_scale(keeps=self.keeps_position or method is not None)
        if method is not None:
            climbed = self._climbed(method, Kept() if kept is None else kept)
            self._rise_parts, self._parts = self._parts, self.groups.split(climbed, "climbed")
            self._square_sums = self._sign_sums = None
        self._direction = self._find_direction()
        self._epsilon = self._radius(strength)
        self._doubt = self._doubt + self._epsilon
        self._capped = torch.zeros_like(self.groups.sizes, dtype=torch.bool)
        for piece in self.groups.pieces if self.keeps_position else ():
            piece.buffer("position").zero_()

    def _read_clean(self, clean: Pass, by_sign: bool) -> None:
        """Measure |g_i|^2 and what else the walk needs of the gradient and the weights, with one collective."""
        plan, by_sign = self.plan, by_sign and self.p == math.inf and not self.by_element
        with_weights = self.measured or plan.cap is not None
        with_weights |= not self.by_element and plan.scale_function not in WITHOUT_WEIGHTS
        found = list[list[Tensor]]()
        for piece, gradient in self.groups.each(self._parts):
            sums = [squares(gradient)]
            if by_sign:
                sign = torch.sign(gradient, out=piece.scratch)
                sums.append(squares(sign))
                if self._measures_rise:
                    sums.append(products(gradient, sign))
            if with_weights:
                sums.append(piece.squared_weights())
            if self.detailed:
                piece.buffer("clean gradient").copy_(gradient)
            found.append(sums)
        doubt = (clean.loss - clean.loss).to(self._one)
        sums_of_groups = iter(self.groups.sums(found, doubt) if found else self._nothing(doubt))
        self._clean_squares: Tensor = next(sums_of_groups)
        self._square_sums = self._clean_squares
        self._sign_sums = next(sums_of_groups) if by_sign else None
        self._size_sums = next(sums_of_groups) if by_sign and self._measures_rise else None
        self._weight_squares: Tensor | None = next(sums_of_groups) if with_weights else None
        self._doubt = self._clean_squares.sum() + doubt

    def _nothing(self, doubt: Tensor) -> Tensor:
        """The sums of no weights at all."""
        return self.groups.sizes.new_zeros(4, len(self.groups.sizes)) + doubt

    def _choose_scale(self, keeps: bool) -> None:
        """Compute T from the weights and the gradient of the mean loss; it stays fixed during the walk."""
        plan, groups = self.plan, self.groups
        self._keeps_scale = False
        if not self.by_element:
            mean_squares = self._clean_squares / self._gradient_scale**2
            self._T = scale_of_groups(plan.scale_function, plan.floor, groups, mean_squares, self._weight_squares)
            self._doubt = self._doubt + self._T.sum()
            if self.p not in (2.0, math.inf):
                self._T_of = dict(zip(groups.pieces, groups.spread(self._T), strict=True))
        elif keeps:
            for piece, gradient in groups.each(self._parts):
                piece.buffer("scale").copy_(self._scale_of(piece, gradient))
            self._keeps_scale = True

    def _scale_of(self, piece: Piece, gradient: Tensor) -> Tensor:
        """T of each weight."""
        if self._keeps_scale:
            return piece.buffer("scale")
        scale = self._gradient_scale
        mean = gradient / (scale.to(gradient) if isinstance(scale, Tensor) else scale)
        return scale_of_weights(self.plan.scale_function, self.plan.floor, self.groups, piece, mean)

    def _climbed(self, method: Method, kept: Kept) -> list[Tensor]:
        """What a method climbs instead of the gradient."""
        parameters = [operand.parameter for operand in self.groups.operands]
        with kept.bound(parameters, self._gradient_scale, self._is_finite):
            found = method.direction(check_dense(parameters), kept)
        check_result(found, parameters, f"{type(method).__name__}.direction")
        return [local(tensor) for tensor in found]

    @torch.no_grad()
    def read_gradient(self, seen: Pass) -> None:
        """Measure the gradient of a displaced pass. If anything is not finite, the weights stop moving."""
        self._gradient_scale = _magnitude(seen, self._one)
        self._parts, self._rise_parts = self.groups.split(self.groups.gradients()), None
        doubt = (seen.loss - seen.loss).to(self._one)
        by_sign = self.p == math.inf and not self.by_element
        found = [[squares(gradient)] for _, gradient in self.groups.each(self._parts)]
        of_squares = self.groups.sums(found, doubt)[0] if found else self._nothing(doubt)[0]
        self._square_sums = of_squares
        self._sign_sums = self._size_sums = of_squares if by_sign else None
        self._doubt = self._doubt + of_squares.sum()
        self._direction = self._find_direction()

    @torch.no_grad()
    def step(self) -> None:
        """Compute y_k = project(y_{k-1} + eta / epsilon d_k), and move the weights to w + epsilon T y_k."""
        stride = self.plan.stride
        if self.keeps_position:
            self._project(self._stepped_positions(stride), shrinkage)
            return
        # A single step starts at the centre, so projecting it only limits its length `stride` to 1.
        direction = self._direction
        factor = self._epsilon * self._shortened(direction.factor * min(1.0, stride), direction.squares)
        if self.measured:
            rises: Any = direction.slopes if direction.rises is None else direction.rises
            self._rise = (self._with_group_scale(factor) * rises).sum() / self._gradient_scale
        self._displace(self._directions(), factor)

    @torch.no_grad()
    def move_to_start(self, start: Start) -> None:
        """Move to the ball's surface in the direction that `start` draws; for p = inf, move to the drawn point."""
        self._project(self._drawn_positions(start), inverse)

    @torch.no_grad()
    def finish(self, seen: Pass | None) -> Trace:
        """After the last pass: what the walk leaves."""
        walked = self.walked
        finite = self._is_finite()
        loss = walked.losses[-1]
        walked.finite = math.isfinite(loss) if finite is True else finite
        if isinstance(finite, Tensor):
            walked.finite = finite & loss.to(self._one).isfinite()
        if self.measured:
            walked.groups = self._report(seen)
        return walked

    def _is_finite(self) -> Tensor | bool:
        """Whether all losses, gradients and scales so far were finite."""
        finite = self._doubt.isfinite()
        return bool(finite) if self._looks else finite

    def _radius(self, strength: float) -> Tensor:
        """epsilon; with a budget, budget / |T g_0|_q for the gradient g_0 of the mean loss, and 0 if that norm is 0."""
        direction: Any = self._direction
        size = self.plan.size * strength
        if self.plan.budget is None:
            return self._one * size
        slope: Tensor = (direction.slopes * self._with_group_scale(direction.factor)).sum() / self._gradient_scale
        return size * inverse(slope)

    def _find_direction(self) -> _Direction:
        if self.by_element or self._square_sums is None or self.p not in (2.0, math.inf):
            return self._measured_direction()
        if self.p == 2.0:  # d = T g / |T g|, and |T g| follows from |g_i|
            length = (self._T.square() * self._square_sums).sum().sqrt()
            return _Direction(self._T * inverse(length), self._square_sums, self._square_sums, None)
        assert self._sign_sums is not None
        return _Direction(self._one, self._sign_sums, self._size_sums, None)

    def _measured_direction(self) -> _Direction:
        """Measure |u|_p, |u_i|^2 and the slopes."""
        p, groups = self.p, self.groups
        if p not in (2.0, math.inf):
            self._largest = groups.largest(self._scaled(piece, climbed) for piece, climbed in groups.each(self._parts))
        gradients = [None] * len(groups.pieces) if self._rise_parts is None else groups.each(self._rise_parts)
        found = list[list[Tensor]]()
        for (piece, climbed), gradient in zip(groups.each(self._parts), gradients, strict=True):
            values, moved = self._along(piece, climbed)
            sums = [squares(moved), products(climbed, moved)]
            if p != math.inf:
                sums.append(_powers(values, p))
            if gradient is not None:
                sums.append(products(gradient[1], moved))
            found.append(sums)
        sums_of_groups = groups.sums(found) if found else self._nothing(self._one * 0)
        of_squares, slopes = sums_of_groups[0], sums_of_groups[1]
        self._doubt = self._doubt + of_squares.sum()
        factor = self._one
        if p != math.inf:
            factor = inverse(sums_of_groups[2].sum().pow(1 / p))
        if p == 2.0 and not self.by_element:
            factor = self._T * inverse((self._T.square() * of_squares).sum().sqrt())
        rises = None if self._rise_parts is None else sums_of_groups[-1]
        return _Direction(factor, of_squares, slopes, rises)

    def _along(self, piece: Piece, climbed: Tensor) -> tuple[Tensor, Tensor]:
        """(u, T u), where u is the direction of steepest ascent along h = T c before it is normalised.

        If T is one number per group, it is part of a factor: the second is u as well, and for p = 2 u is c.
        """
        p = self.p
        if not self.by_element:
            if p == math.inf:
                values = torch.sign(climbed, out=piece.scratch)
            else:
                values = climbed if p == 2.0 else steepest_ascent(self._scaled(piece, climbed), p, self._largest)
            return values, values
        scale = self._scale_of(piece, climbed)
        if p == math.inf:
            values = torch.sign(climbed, out=piece.scratch)
        else:
            values = torch.mul(climbed, scale, out=piece.scratch)
            if p != 2.0:
                values = steepest_ascent(values, p, self._largest)
        return values, torch.mul(values, scale, out=piece.spare)

    def _scaled(self, piece: Piece, climbed: Tensor) -> Tensor:
        """h = T c."""
        scale = self._scale_of(piece, climbed) if self.by_element else self._T_of[piece]
        return torch.mul(climbed, scale, out=piece.scratch)

    def _directions(self) -> Iterator[tuple[Piece, Tensor]]:
        for piece, climbed in self.groups.each(self._parts):
            yield piece, self._along(piece, climbed)[1]

    def _stepped_positions(self, stride: float) -> Iterator[tuple[Piece, Tensor]]:
        """Add eta / epsilon d to the positions, in place."""
        factor, finite = self._direction.factor * stride, self._is_finite()
        if isinstance(finite, Tensor):
            factor = torch.where(finite, factor, 0.0)
        factors = self.groups.spread(factor if finite is not False else self._one * 0)
        gradients = self._parts if self._rise_parts is None else self._rise_parts
        if self.measured:
            before = [self._slope(piece, gradient) for piece, gradient in self.groups.each(gradients)]
            self._slopes.append((-1 / self._gradient_scale, before))
        for (piece, climbed), own in zip(self.groups.each(self._parts), factors, strict=True):
            direction = self._along(piece, climbed)[0]
            if finite is not True:
                direction = torch.nan_to_num(direction, 0.0, 0.0, 0.0)
            yield piece, piece.buffer("position").addcmul_(direction, own)

    def _drawn_positions(self, start: Start) -> Iterator[tuple[Piece, Tensor]]:
        for piece in self.groups.pieces:
            position = piece.buffer("position")
            drawn = start(position)
            yield piece, position.copy_(drawn if piece.padding is None else drawn.masked_fill(piece.padding, 0.0))

    def _multiplied_positions(self, factor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Multiply the positions by a number for each group, or by one for all, in place."""
        for piece, own in zip(self.groups.pieces, self.groups.spread(factor), strict=True):
            yield piece, piece.buffer("position").mul_(own)

    def _project(self, positions: Values, rescale: Callable[[Tensor], Tensor]) -> None:
        """Project y onto the unit ball (clip for p = inf, else rescale), and move the weights there."""
        p, factor = self.p, self._one
        if p == math.inf:
            _, of_squares = self._measure((piece, position.clamp_(-1.0, 1.0)) for piece, position in positions)
        elif p == 2.0:
            length, of_squares = self._measure(positions)
            factor = rescale(length)
        else:  # first scale the entries to at most one, because powers of large numbers overflow
            excess = self.groups.largest(position for _, position in positions).clamp(min=1.0)
            length, of_squares = self._measure(self._multiplied_positions(1 / excess))
            factor = excess * rescale(excess * length)
        factor = self._shortened(factor, of_squares)
        self._displace(self._moved_positions(factor), self._epsilon)

    def _moved_positions(self, factor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """T y, or y if T is one number per group, after y was multiplied by the factor."""
        slopes = list[Tensor]()
        gradients = self._parts if self._rise_parts is None else self._rise_parts
        for (piece, position), (_, gradient) in zip(
            self._multiplied_positions(factor), self.groups.each(gradients), strict=True
        ):
            if self.measured:
                slopes.append(self._slope(piece, gradient))
            yield piece, self._times_element_scale(piece, position)
        if self.measured:
            self._slopes.append((1 / self._gradient_scale, slopes))

    def _measure(self, vectors: Values) -> tuple[Tensor, Tensor]:
        """|y|_p, and |T y_i|^2 of each group. For p = inf the length is not used, and 1 is returned."""
        found = list[list[Tensor]]()
        for piece, values in vectors:
            powers = [] if self.p == math.inf else [_powers(values, self.p)]
            found.append([squares(self._times_element_scale(piece, values)), *powers])
        sums = self.groups.sums(found) if found else self._nothing(self._one * 0)
        return self._one if self.p == math.inf else sums[1].sum().pow(1 / self.p), sums[0]

    def _shortened(self, factor: Tensor, of_squares: Tensor) -> Tensor:
        """Reduce the factor of groups whose offset exceeds the cap; `of_squares` are |T y_i|^2 without the factor."""
        norms = (self._epsilon * self._with_group_scale(factor)).abs() * of_squares.sqrt()  # |a_i|
        if self.plan.cap is not None:
            assert self._weight_squares is not None
            limits = comparable_norms(self._weight_squares.sqrt(), self.groups.sizes, self._rms_weight())
            limits = self.plan.cap * limits
            self._capped = norms > limits
            shrinking = torch.where(self._capped, limits * inverse(norms), 1.0)
            factor, norms = factor * shrinking, norms * shrinking
        self._norms = norms
        return factor

    def _displace(self, vectors: Values, factor: Tensor) -> None:
        """Move the weights to w + factor T y, or home if something is not finite."""
        finite = self._is_finite()
        self.walked.offsets.append(self._norms.expand_as(self.groups.sizes))
        if finite is not True:
            nothing = torch.zeros_like(self.walked.offsets[-1])
            self.walked.offsets[-1] = nothing if finite is False else torch.where(finite, self._norms, 0.0)
        if finite is False:
            self.weights.home()
        else:
            factor = self._with_group_scale(factor)
            factors = self.groups.spread(factor if finite is True else torch.where(finite, factor, 0.0))
            self.weights.leave()
            self._realised = list[list[Tensor]]()
            for (piece, values), own in zip(vectors, factors, strict=True):
                if finite is not True and (self.by_element or self.p != math.inf):
                    values = torch.nan_to_num(values, 0.0, 0.0, 0.0)  # 0 times infinity would be NaN
                offset = values * own if self.detailed else None
                piece.displace(values, own)
                if offset is not None:
                    realised = piece.offset()
                    self._realised.append([squares(realised), products(realised, offset)])
            self.weights.arrive()
        self._parts, self._rise_parts = [], None  # the next pass may free the gradients

    def _with_group_scale(self, factor: Tensor) -> Tensor:
        """The factor of the offset, which includes T if T is one number per group."""
        return factor if self.by_element else factor * self._T

    def _times_element_scale(self, piece: Piece, values: Tensor) -> Tensor:
        """T * values if each weight has its own T, else the values: `_with_group_scale` applies a T per group."""
        return torch.mul(values, piece.buffer("scale"), out=piece.scratch) if self.by_element else values

    def _slope(self, piece: Piece, gradient: Tensor) -> Tensor:
        """g . T y for each row, without T if it is one number per group."""
        return products(gradient, self._times_element_scale(piece, piece.buffer("position")))

    def _rms_weight(self) -> Tensor:
        """The root mean square of all weights that take part, including rows without a gradient."""
        assert self._weight_squares is not None
        total: Tensor = self._weight_squares.sum() + self.groups.untouched_squares()
        return (total / max(self.groups.total, 1)).sqrt()

    def _report(self, seen: Pass | None) -> Measured:
        """What only the report of a measured walk needs."""
        groups = self.groups
        rise = self._rise if not self.keeps_position else self._one * 0
        if self._slopes and groups.pieces:
            sums = groups.sums(zip(*(slopes for _, slopes in self._slopes), strict=True))
            parts = zip(self._slopes, sums, strict=True)
            rise = self._epsilon * sum(f * self._with_group_scale(part).sum() for (f, _), part in parts)
        weights = self._weight_squares
        assert weights is not None
        report = Measured(
            find_labels=groups.find_labels,
            offsets=self.walked.offsets[-1],
            weights=weights.sqrt(),
            sizes=groups.sizes,
            rms_weight=self._rms_weight(),
            capped=self._capped,
            predicted_rise=rise,
            at_zero=(weights.sum() == 0) & (self._clean_squares.sum() > 0),
        )
        if self.detailed and self._realised:
            self._compare(report, seen)
        return report

    def _compare(self, report: Measured, seen: Pass | None) -> None:
        """Compare the last gradient with the clean one, and the last offset with what rounding left of it."""
        groups, found, alone = self.groups, self._realised, seen is not None and seen.alone
        for sums, (piece, last) in zip(
            found, groups.each(groups.split(groups.gradients())) if alone else (), strict=alone
        ):
            sums += [squares(last), products(last, piece.buffer("clean gradient"))]
        realised, with_offset, *of_gradients = groups.sums(found)
        norm = report.realised_norm = realised.sum().sqrt()
        report.realised_cosine = with_offset.sum() * inverse(norm * report.offsets.square().sum().sqrt())
        if alone:
            scale = _magnitude(seen, self._one)  # type: ignore[arg-type]
            clean, last = self._clean_squares.sqrt(), of_gradients[0].sqrt()
            report.gradient_norms = clean / self._clean_scale
            report.gradient_ratios = last * inverse(clean) * (self._clean_scale / scale)
            report.cosines = of_gradients[1] * inverse(last * clean)


def steepest_ascent(h: Tensor, p: float, largest: Tensor) -> Tensor:
    """sgn(h) |h|^(1/(p-1)), the direction of steepest ascent along h before normalisation.

    h is first divided by `largest`, its largest absolute entry, because powers of small numbers underflow.
    """
    if p == math.inf:
        return h.sign()
    ratio = h / torch.where(largest > 0, largest, 1.0).to(h)
    return ratio.abs().pow_(1 / (p - 1)).mul_(ratio.sign_())


def shrinkage(length: Tensor) -> Tensor:
    """min(1, 1 / length), the factor that projects a point of this length onto the unit ball."""
    return length.clamp(min=1.0).reciprocal()


def uniform_start(norm: float, generator: torch.Generator | None = None) -> Start:
    """Return a function that draws a random start for `climb`.

    For norm inf the point is uniform in the box. For other norms it lies on the surface of the ball, because in many
    dimensions nearly all of a ball's volume is near its surface.
    """

    def draw(like: Tensor) -> Tensor:
        if norm == math.inf:
            return torch.empty_like(like).uniform_(-1, 1, generator=generator)
        if norm == 2.0:
            return torch.empty_like(like).normal_(generator=generator)
        sizes = standard_gamma(torch.full_like(like, 1 / norm), generator).pow_(1 / norm)
        return sizes.mul_(torch.empty_like(like).uniform_(-1, 1, generator=generator).sign_())

    return draw


def climb(
    variables: Weights | Parameters,
    evaluate: Callable[[int, Callable[[], list[Tensor]]], Pass | None],
    perturbation: Perturbation,
    start: Start | None = None,
) -> Trace:
    """Run a walk for an analysis, and return its trace. The weights are home again afterwards, bit for bit.

    Args:
        variables: A model, parameters, named parameters or parameter groups, as for SharpBackward.
        evaluate: Called with k and a function that returns the offset a_k, rounded to the weights' type. It computes
            the loss at the present weights and leaves its gradient in their `.grad`. If it returns None, the walk ends.
        perturbation: The ball, the scale and the number of steps.
        start: Draws a random first point, for example `uniform_start(norm)`. It is visited after a_0, and K ascent
            steps follow, so there are K+2 visits. None means that the first step starts at the weights.
    """
    if isinstance(variables, Weights):
        weights = variables
    else:
        model = variables if isinstance(variables, nn.Module) else None
        weights = weights_of(read(variables), perturbation, model)
    check_names(perturbation, weights.names)
    with uninterrupted() as held:

        def run(k: int) -> Pass | None:
            with held.let():
                return evaluate(k, weights.offset)

        return walk(weights, perturbation, run, start=start)


def _powers(values: Tensor, p: float) -> Tensor:
    """The sum of |values|^p in each row."""
    if p == 2.0:
        return squares(values)
    powers = values.abs().pow_(p)
    return powers.sum() if values.ndim == 1 else powers.sum(1)


def _magnitude(seen: Pass, like: Tensor) -> Tensor | float:
    """The factor of the pass's gradient, without its sign."""
    scale = seen.gradient_scale
    return scale.abs().to(like) if isinstance(scale, Tensor) else abs(scale)
