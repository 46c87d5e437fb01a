"""The search for the minimum of a loss over all examples, without mini-batch noise."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gasam.analysis.lanczos import Product
from gasam.lab.theory.risk import Position, Problem, Risk

_NEAR = 1e-5  # gradient norm at which Newton's method takes over; further away L-BFGS is faster
_LINE_SEARCH = 25  # maximum number of evaluations of one line search, as in torch.optim.LBFGS
_PRODUCTS = 100  # maximum number of Hessian products of a Newton step
_ROUNDING = 1e-13  # curvature below this share of the largest one met is treated as rounding error
_FORCING = 1e-3  # relative residual of a Newton step: near the minimum each divides the gradient by about 1000


@dataclass(frozen=True, eq=False)
class Minimum:
    """The minimum, as an offset by name from the model's weights."""

    offset: dict[str, Tensor]
    loss: float
    gradient_norm: float
    tolerance: float

    @property
    def stationary(self) -> bool:
        return self.gradient_norm <= self.tolerance

    @property
    def sentence(self) -> str:
        reached = "stationary" if self.stationary else "not stationary"
        return f"{reached}: |gradient| {self.gradient_norm:.2g} (asked {self.tolerance:.2g}), loss {self.loss:.6g}"


def find_minimum(problem: Problem) -> Minimum:
    """Minimise the loss on p from the model's weights until |gradient| <= tolerance. The model is unchanged."""
    with problem.risks(problem.batches) as [risk]:
        return search(risk)


def settle(problem: Problem) -> Minimum:
    """Move the model to theta, the minimum that `find_minimum` finds."""
    found = find_minimum(problem)
    with torch.no_grad():
        for name, weight in problem.model.named_parameters():
            if name in found.offset:
                weight.add_(found.offset[name].to(weight))
    return found


def search(risk: Risk) -> Minimum:
    """Minimise with L-BFGS over all examples, then with Newton's method; repeat both if Newton's met a saddle point."""
    tolerance, left = risk.problem.tolerance, risk.problem.iterations
    tolerance = risk.resolution if tolerance is None else tolerance
    point = risk.at()
    if not math.isfinite(point.loss):
        raise ValueError(f"the loss must be finite at the model's weights, got {point.loss}: start from another model")
    for target in (max(tolerance, _NEAR), tolerance):
        point, left = _descend(risk, point, target, left)
        point, left = _newton(risk, point, tolerance, left)
    return Minimum(risk.named(point.offset), point.loss, point.norm, tolerance)


def delta_of(there: Risk) -> Tensor:
    """The delta of the problem, or else the offset to the minimum of the shifted loss; raise if that is not reached."""
    if there.problem.delta is not None:
        return there.flat(there.problem.delta)
    found = search(there)
    if not found.stationary:
        raise ValueError(
            f"the minimum on shifted was not reached, got |gradient| {found.gradient_norm:.2g}: give delta, or "
            "raise tolerance, iterations or ridge"
        )
    return there.flat(found.offset)


def _descend(risk: Risk, start: Position, target: float, budget: int) -> tuple[Position, int]:
    """Run L-BFGS until |gradient| <= target; return the point, and the iterations that are left.

    If the loss overflows, the point is the start.
    """
    if start.norm <= target or not budget:
        return start, budget
    offset = nn.Parameter(start.offset.clone())
    optimizer = torch.optim.LBFGS(
        [offset],
        max_iter=budget,
        max_eval=_LINE_SEARCH * budget,
        tolerance_grad=target / math.sqrt(risk.size),  # for the largest entry, so that the norm is within the target
        tolerance_change=0.0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> float:
        here = risk.at(offset.detach())
        offset.grad = here.gradient
        if not math.isfinite(here.loss + here.norm):
            raise FloatingPointError  # torch's line search cannot continue from here
        return here.loss

    point = start
    with suppress(FloatingPointError):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        point = risk.at(offset.detach())
    return point, budget - optimizer.state[offset]["n_iter"]


def _newton(risk: Risk, point: Position, tolerance: float, budget: int) -> tuple[Position, int]:
    """Take Newton steps while each lowers the gradient; return the point, and the iterations that are left.

    scipy.optimize's methods compare losses, which stop changing near the minimum: they end at gradients of 2e-11 or
    more, while these steps reach 1e-13.
    """
    while point.norm > tolerance and budget > 0:
        product, most = partial(risk.product, offset=point.offset), min(_PRODUCTS, budget)
        solved = conjugate_gradients(product, -point.gradient, tolerance=_FORCING, iterations=most)
        budget -= solved.iterations
        reached = risk.at(point.offset + solved.x)
        if not reached.norm < point.norm:
            break
        point = reached
    return point, budget


class Solution(NamedTuple):
    """`lowest` is the smallest curvature d.Hd / d.d met. If it is not positive, the solve ended at that direction."""

    x: Tensor
    residual: float  # |b - H x| / |b|
    iterations: int
    lowest: float
    converged: bool


def conjugate_gradients(product: Product, target: Tensor, *, tolerance: float, iterations: int) -> Solution:
    """Solve H x = target to a relative residual of `tolerance`; stop at a direction without positive curvature.

    scipy.sparse.linalg.cg is not used, because it ignores the curvature: it reports success on diag(1, -2).
    """
    x, rest, direction = torch.zeros_like(target), target.clone(), target.clone()
    size = float(target.norm())
    residual = 1.0 if size else 0.0
    lowest, largest, done = math.inf, 0.0, 0
    while residual > tolerance and done < iterations:
        done += 1
        moved = product(direction)
        along = float(direction @ moved)
        curvature = along / float(direction @ direction)
        largest = max(largest, abs(curvature))
        if curvature <= _ROUNDING * largest:
            lowest = min(curvature, 0.0)
            break
        lowest = min(lowest, curvature)
        before = float(rest @ rest)
        x += before / along * direction
        rest -= before / along * moved
        after = float(rest @ rest)
        residual = math.sqrt(after) / size
        direction = rest + after / before * direction
    return Solution(x, residual, done, lowest, residual <= tolerance)
