"""The search for the minimum of a loss over all examples, without mini-batch noise."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gasam.analysis.lanczos import Product
from gasam.analysis.products import split
from gasam.lab.theory.risk import Position, Problem, Risk

_PRODUCTS = 100  # maximum number of Hessian products of a Newton step
_HALVINGS = 30  # maximum number of halvings of a step
_ROUNDING = 1e-13  # curvature below this share of the largest one met is treated as rounding error
_FORCING = 1e-3  # least relative residual of a Newton step: near the minimum it divides the gradient by about 1000


def settle(problem: Problem) -> Position:
    """Move the model to theta, the minimum of the loss on p near its weights; `stationary` says if it was reached."""
    with problem.risks(0.0) as [risk]:
        found = search(risk)
    with torch.no_grad():
        for weight, step in zip(risk.weights, split(found.offset, risk.weights), strict=True):
            weight.add_(step)
    return found


def search(risk: Risk) -> Position:
    """Minimise by Newton's method: conjugate gradients solve for each step, which is halved until the loss falls.

    Near the minimum losses stop changing, so there a step needs to lower the gradient: methods that compare losses
    alone, as those of scipy.optimize, end at gradients of 2e-11 or more, while this reaches 1e-13.
    """
    point, left = risk.at(), risk.problem.iterations
    if not math.isfinite(point.loss):
        raise ValueError(f"the loss must be finite at the model's weights, got {point.loss}: start from another model")
    while not point.stationary and left > 0:
        product, most = partial(risk.product, offset=point.offset), min(_PRODUCTS, left)
        residual = max(_FORCING, min(0.5, point.norm**0.5))
        solved = conjugate_gradients(product, -point.gradient, tolerance=residual, iterations=most)
        left -= solved.iterations
        direction = solved.x if solved.x.any() else -point.gradient  # downhill, where the curvature is not positive
        slope = float(direction @ point.gradient)
        same = point.loss + risk.resolution * (1 + abs(point.loss))
        for step in (0.5**halvings for halvings in range(_HALVINGS)):
            reached = risk.at(point.offset + step * direction)
            lower = reached.loss <= point.loss + 1e-4 * step * slope
            finite = math.isfinite(reached.loss + reached.norm)
            if finite and (lower or (reached.loss <= same and reached.norm < point.norm)):
                point = reached
                break
        else:
            break
    return point


def delta_of(there: Risk) -> Tensor:
    """The offset to the minimum of the shifted loss; raise if that is not reached."""
    found = search(there)
    if not found.stationary:
        raise ValueError(
            f"the minimum on shifted was not reached, got |gradient| {found.norm:.2g}: "
            "raise tolerance, iterations or ridge"
        )
    return found.offset


class Solution(NamedTuple):
    """`lowest` is the smallest curvature d.Hd / d.d met. If it is not positive, the solve ended at that direction."""

    x: Tensor
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
    return Solution(x, done, lowest, residual <= tolerance)
