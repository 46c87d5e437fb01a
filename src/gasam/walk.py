"""`walk`, the K ascent steps of Algorithm 1 from the weights w to w + a_1, .., w + a_K; `climb`, for analyses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor, nn

from gasam.family import Kept, Method, check_result, dense_gradient
from gasam.parameters import Parameters, check_names, read, weights_of
from gasam.passes import Pass, uninterrupted
from gasam.perturbation import Perturbation
from gasam.pieces import Packed, Piece, powers, products, squares
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
        detailed: Also compare the clean with the last gradient.
    """
    with weights.walk():
        seen = run(0)
        if seen is None:
            return Trace([])
        kept = Kept() if kept is None else kept  # an empty one is false
        keeps_position = plan.steps > 1 or start is not None
        ascent = _Ascent(weights, plan, seen, plan.size * strength, kept, keeps_position, measured, detailed)
        for k in range(1, plan.steps + (1 if start is None else 2)):
            if k > 1:
                ascent.read_gradient(seen)
            if k == 1 and start is not None:
                ascent.move_to(start)
            else:
                ascent.step()
            seen = run(k)
            if seen is None:
                break
            ascent.trace.losses.append(seen.loss)
        return ascent.finish(seen)


class _Ascent:
    """The state of a walk, in the coordinates y = T^-1 a / epsilon, where the ball has radius one.

    T is computed from the clean gradient. If groups of weights share a T, it is one number per group, `_T`. If each
    weight has its own T, `_T` is 1, and T is computed again when it is needed, or kept if it outlives the gradient.
    The direction of an ascent step is `_factor` times u, which `_along` computes for one piece at a time from what is
    climbed: the gradient g, or a method's direction.
    """

    @torch.no_grad()
    def __init__(
        self,
        weights: Weights,
        plan: Perturbation,
        clean: Pass,
        size: float,
        kept: Kept,
        keeps_position: bool,
        measured: bool,
        detailed: bool,
    ) -> None:
        self.weights, self.plan, self.groups = weights, plan, weights.taking_part(plan.granularity)
        self.p, self.by_element = plan.norm, plan.granularity == "element"
        self.measured, self.detailed, self.keeps_position = measured or detailed, detailed, keeps_position
        self.trace = Trace([clean.loss], loss_scale=clean.loss_scale)
        self._one = self.groups.sizes.new_ones(())
        self._looks = self._one.device.type in LOOKS and type(self._one) is Tensor  # a fake tensor has no values
        self._parts: Sequence[Tensor] = ()  # of what is climbed
        self._gradients: Sequence[Tensor] = ()
        self._T = self._largest = self._one
        self._doubt = self._one * 0  # not finite as soon as a loss, gradient or scale is not
        self._capped = torch.zeros_like(self.groups.sizes, dtype=torch.bool)
        self._with_scale = set[Piece]()  # those that keep T of each weight
        self._rises: list[tuple[Tensor, list[Tensor]]] = []  # (factor of each group, g . y of each piece)
        method = plan.method if plan.method is not None and plan.method.has_direction else None
        sums = self._read(clean, self._needed(method is not None))
        self._clean_squares, self._clean_scale = sums["squares"], self._gradient_scale
        self._weight_squares = sums.get("weights")
        for piece, gradient in self.groups.each(self._parts) if detailed else ():
            piece.buffer("clean gradient").copy_(gradient)
        self._choose_scale(keeps=keeps_position or method is not None)
        if method is not None:
            self._parts = self.groups.split(self._climbed(method, kept), "climbed")
        slope = self._find_direction({} if method is not None else sums)
        # A budget is the rise of the mean loss along the direction: epsilon = budget / |T g_0|_q.
        self._epsilon = self._one * size if slope is None else size * inverse(slope / self._gradient_scale)
        self._doubt = self._doubt + self._epsilon
        for piece in self.groups.pieces if keeps_position else ():
            piece.buffer("position").zero_()

    def _needed(self, has_direction: bool) -> list[str]:
        """The sums of the clean pass: |g_i|^2, for ascent by the sign |sign(g_i)|^2 and |g_i|_1, and |w_i|^2.

        |sign(g_i)|^2 alone is measured when the offset is written, where it costs less.
        """
        needed, plan = ["squares"], self.plan
        if self.p == math.inf and not self.by_element and not has_direction:
            if plan.budget is not None:
                needed += ["signs", "sizes"]
            elif plan.cap is not None or not self.groups.plain:
                needed.append("signs")
        reads = not self.by_element and plan.scale_function not in WITHOUT_WEIGHTS
        return [*needed, "weights"] if self.measured or plan.cap is not None or reads else needed

    def _read(self, seen: Pass, needed: list[str]) -> dict[str, Tensor]:
        """Measure the gradient of a pass, with one collective."""
        self._gradient_scale = _magnitude(seen, self._one)
        self._parts = self._gradients = self.groups.split(self.groups.gradients())  # dropped when the weights move

        def sums_of(piece: Piece, gradient: Tensor) -> list[Tensor]:
            found = [squares(gradient)]
            if "signs" in needed:
                sign = torch.sign(gradient, out=piece.scratch)
                found.append(squares(sign))
                if "sizes" in needed:
                    found.append(products(gradient, sign))
            if "weights" in needed:
                found.append(piece.squared_weights())
            return found

        doubt = (seen.loss - seen.loss).to(self._one)
        sums = dict(zip(needed, self.groups.measure(len(needed), sums_of, self._parts, doubt=doubt), strict=True))
        self._doubt = self._doubt + sums["squares"].sum() + doubt
        return sums

    def _choose_scale(self, keeps: bool) -> None:
        """Compute T from the weights and the gradient of the mean loss; it stays fixed during the walk."""
        if not self.by_element:
            squares_of_mean = self._clean_squares / self._gradient_scale**2
            scale, floor = self.plan.scale_function, self.plan.floor
            self._T = scale_of_groups(scale, floor, self.groups, squares_of_mean, self._weight_squares)
            self._doubt = self._doubt + self._T.sum()
            if self.p not in (2.0, math.inf):
                self._T_of = dict(zip(self.groups.pieces, self.groups.spread(self._T), strict=True))
            return
        for piece, gradient in self.groups.each(self._parts):
            if keeps or isinstance(piece, Packed):  # small tensors: computed once
                piece.buffer("scale").copy_(self._scale_of(piece, gradient))
                self._with_scale.add(piece)

    def _scale_of(self, piece: Piece, gradient: Tensor) -> Tensor:
        """T of the weights of a piece: one number per row, or one per weight."""
        if not self.by_element:
            return self._T_of[piece]
        if piece in self._with_scale:
            return piece.buffer("scale")
        plan, factor = self.plan, self._gradient_scale
        factor = factor.to(gradient) if isinstance(factor, Tensor) else factor
        return scale_of_weights(plan.scale_function, plan.floor, self.groups, piece, gradient, factor)

    def _climbed(self, method: Method, kept: Kept) -> list[Tensor]:
        """What a method climbs instead of the gradient."""
        parameters = [operand.parameter for operand in self.groups.operands]
        with kept.bound(parameters, self._gradient_scale, self._is_finite):
            found = method.direction([dense_gradient(p, p.grad) for p in parameters], kept)
        check_result(found, parameters, f"{type(method).__name__}.direction")
        return [local(tensor) for tensor in found]

    def _is_finite(self) -> Tensor | bool:
        """Whether all losses, gradients and scales so far were finite."""
        finite = self._doubt.isfinite()
        return bool(finite) if self._looks else finite

    def _find_direction(self, sums: dict[str, Tensor]) -> Tensor | None:
        """The factor of the next direction, and |T u_i|^2 without it, from the sums of the gradient if they suffice.

        Returns |T c|_q, the slope of what is climbed along the direction, if a budget needs it.
        """
        p, scale = self.p, self._T
        if not sums or self.by_element or p not in (2.0, math.inf):
            self._squares, of_slope = self._measured_direction()
        elif p == 2.0:
            self._squares = of_slope = sums["squares"]
        else:
            self._squares, of_slope = sums.get("signs"), sums.get("sizes")
        if p == 2.0:  # d = T c / |T c|
            slope = (scale.square() * of_slope).sum().sqrt()
            self._factor = scale * inverse(slope)
        elif p == math.inf:
            self._factor, slope = self._one, None if of_slope is None else (scale * of_slope).sum()
        else:
            total = of_slope.sum()
            self._factor = inverse(total.pow(1 / p))
            slope = self._largest * total * self._factor
        return None if self.plan.budget is None else slope

    def _measured_direction(self) -> Any:
        """|T u_i|^2, and c_i . T u_i for p = inf, else |u_i|_p^p."""
        p, groups = self.p, self.groups
        if p not in (2.0, math.inf):
            scaled = (climbed * self._scale_of(piece, climbed) for piece, climbed in groups.each(self._parts))
            self._largest = groups.largest(scaled)

        def sums_of(piece: Piece, climbed: Tensor) -> list[Tensor]:
            values, moved = self._along(piece, climbed)
            return [squares(moved), products(climbed, moved) if p == math.inf else powers(values, p)]

        sums = groups.measure(2, sums_of, self._parts)
        self._doubt = self._doubt + sums[0].sum()
        return sums

    def _along(self, piece: Piece, climbed: Tensor) -> tuple[Tensor, Tensor]:
        """(u, T u), where u is the direction of steepest ascent along h = T c before it is normalised.

        If T is one number per group, it is part of a factor: the second is u as well, and for p = 2 u is c.
        """
        p, scale = self.p, None
        if self.by_element or p not in (2.0, math.inf):
            scale = self._scale_of(piece, climbed)
        values = climbed
        if p == math.inf:
            values = torch.sign(climbed, out=piece.scratch)
        elif scale is not None:
            values = torch.mul(climbed, scale, out=piece.scratch)
            if p != 2.0:
                values = steepest_ascent(values, p, self._largest)
        if not self.by_element or scale is None:
            return values, values
        return values, torch.mul(values, scale, out=piece.spare)

    @torch.no_grad()
    def read_gradient(self, seen: Pass) -> None:
        """Measure the gradient of a displaced pass. If anything is not finite, the weights stop moving."""
        self._find_direction(self._read(seen, ["squares"]))

    @torch.no_grad()
    def step(self) -> None:
        """Compute y_k = project(y_{k-1} + eta / epsilon d_k), and move the weights to w + epsilon T y_k."""
        finite, stride = self._is_finite(), self.plan.stride
        if finite is False:
            self._stay()
        elif self.keeps_position:
            self._project(self._stepped_positions(_valid(finite, self._factor * stride)), shrinkage)
        else:  # a single step starts at the centre, so projecting it only limits its length `stride` to 1
            factor = self._epsilon * self._shortened(self._factor * min(1.0, stride), self._squares)
            self._displace(((piece, self._along(piece, c)[1]) for piece, c in self.groups.each(self._parts)), factor)

    @torch.no_grad()
    def move_to(self, start: Start) -> None:
        """Move to the ball's surface in the direction that `start` draws; for p = inf, move to the drawn point."""
        if self._is_finite() is False:
            self._stay()
        else:
            self._project(self._drawn_positions(start), inverse)

    def _stay(self) -> None:
        """Make the next pass at w, because something is not finite."""
        self.trace.offsets.append(torch.zeros_like(self.groups.sizes))
        self._parts = self._gradients = []
        self.weights.home()

    def _stepped_positions(self, factor: Tensor) -> Iterator[tuple[Piece, Tensor]]:
        """Add eta / epsilon d to the positions, in place."""
        if self.measured:
            pairs = self.groups.each(self._gradients)
            here = [products(g, self._times_scale(piece, piece.buffer("position"))) for piece, g in pairs]
            self._rises.append((-self._epsilon * self._T / self._gradient_scale, here))
        for (piece, climbed), own in zip(self.groups.each(self._parts), self.groups.spread(factor), strict=True):
            direction = self._along(piece, climbed)[0]
            if not self._looks:
                direction = torch.nan_to_num(direction, 0.0, 0.0, 0.0)  # 0 times infinity would be NaN
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
        positions = self._multiplied_positions(self._shortened(factor, of_squares))
        self._displace(((piece, self._times_scale(piece, y)) for piece, y in positions), self._epsilon)

    def _measure(self, vectors: Values) -> tuple[Tensor, Tensor]:
        """|y|_p, and |T y_i|^2 of each group."""
        p = 2.0 if self.p == math.inf else self.p  # then nobody reads the length

        def sums_of(piece: Piece, values: Tensor) -> list[Tensor]:
            return [powers(values, p), squares(self._times_scale(piece, values))]

        sums = self.groups.sums(2, [sums_of(piece, values) for piece, values in vectors])
        return sums[0].sum().pow(1 / p), sums[1]

    def _shortened(self, factor: Tensor, of_squares: Tensor | None) -> Tensor:
        """Reduce the factor of groups whose offset exceeds the cap; `of_squares` are |T y_i|^2 without the factor."""
        if of_squares is None:
            return factor
        norms = (self._epsilon * self._T * factor).abs() * of_squares.sqrt()  # |a_i|
        if self.plan.cap is not None:
            assert self._weight_squares is not None
            limits = comparable_norms(self._weight_squares.sqrt(), self.groups.sizes, self._rms_weight())
            limits = self.plan.cap * limits
            self._capped = norms > limits
            shrinking = torch.where(self._capped, limits * inverse(norms), 1.0)
            factor, norms = factor * shrinking, norms * shrinking
        self.trace.offsets.append(norms.expand_as(self.groups.sizes))
        return factor

    def _displace(self, vectors: Values, factor: Tensor) -> None:
        """Move the weights to w + factor T y; if something is not finite, the factor is zero."""
        finite, groups, offsets = self._is_finite(), self.groups, self.trace.offsets
        factor = _valid(finite, factor * self._T)
        is_known = len(offsets) == len(self.trace.losses)
        of_squares, rises = list[list[Tensor]](), list[Tensor]()
        gradients = groups.each(self._gradients) if self.measured else repeat((None, None))
        self.weights.leave()
        for (piece, values), own, (_, gradient) in zip(vectors, groups.spread(factor), gradients, strict=False):
            if not self._looks and (self.by_element or self.p != math.inf):
                values = torch.nan_to_num(values, 0.0, 0.0, 0.0)
            if not is_known:
                of_squares.append([squares(values)])
            if gradient is not None:
                rises.append(products(gradient, values))
            piece.displace(values, own)
        self.weights.arrive()
        if is_known:
            offsets[-1] = _valid(finite, offsets[-1])
        else:
            offsets.append((factor.abs() * groups.sums(1, of_squares)[0].sqrt()).expand_as(groups.sizes))
        self._rises.append((factor / self._gradient_scale, rises))
        self._parts = self._gradients = []  # the next pass may free the gradients

    def _times_scale(self, piece: Piece, values: Tensor) -> Tensor:
        """T * values if each weight has its own T, else the values."""
        return torch.mul(values, piece.buffer("scale"), out=piece.scratch) if self.by_element else values

    def _rms_weight(self) -> Tensor:
        """The root mean square of all weights that take part, including rows without a gradient."""
        assert self._weight_squares is not None
        total: Tensor = self._weight_squares.sum() + self.groups.untouched_squares()
        return (total / max(self.groups.total, 1)).sqrt()

    @torch.no_grad()
    def finish(self, seen: Pass | None) -> Trace:
        """After the last pass: what the walk leaves."""
        trace, finite = self.trace, self._is_finite()
        loss = trace.losses[-1]
        trace.finite = finite & loss.to(self._one).isfinite() if isinstance(finite, Tensor) else finite
        if trace.finite is True:
            trace.finite = math.isfinite(loss)
        if self.measured:
            self._report(seen)
        return trace

    def _report(self, seen: Pass | None) -> None:
        """What only the report of a measured walk needs."""
        groups, weights, rise = self.groups, self._weight_squares, self._one * 0
        assert weights is not None
        if self._rises:
            sums = groups.sums(len(self._rises), list(zip(*(rises for _, rises in self._rises), strict=True)))
            rise = sum((factor * own).sum() for (factor, _), own in zip(self._rises, sums, strict=True))
        report = self.trace.groups = Measured(
            find_labels=groups.find_labels,
            offsets=self.trace.offsets[-1] if self.trace.offsets else groups.sizes * 0,
            weights=weights.sqrt(),
            sizes=groups.sizes,
            rms_weight=self._rms_weight(),
            capped=self._capped,
            predicted_rise=rise,
            at_zero=(weights.sum() == 0) & (self._clean_squares.sum() > 0),
        )
        if self.detailed and seen is not None and seen.alone:
            sums = groups.measure(
                2,
                lambda piece, last: [squares(last), products(last, piece.buffer("clean gradient"))],
                groups.split(groups.gradients()),
            )
            clean, last = self._clean_squares.sqrt(), sums[0].sqrt()
            report.gradient_norms = clean / self._clean_scale
            report.gradient_ratios = last * inverse(clean) * (self._clean_scale / _magnitude(seen, self._one))
            report.cosines = sums[1] * inverse(last * clean)


def _valid(finite: Tensor | bool, values: Tensor) -> Tensor:
    """The values, or zeros if something is not finite."""
    return torch.where(finite, values, 0.0) if isinstance(finite, Tensor) else values


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


def _magnitude(seen: Pass, like: Tensor) -> Tensor | float:
    """The factor of the pass's gradient, without its sign."""
    scale = seen.gradient_scale
    return scale.abs().to(like) if isinstance(scale, Tensor) else abs(scale)
