"""Symmetric matrices known by their products: a solve that notices negative curvature, and the spectrum's ends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gasam.analysis.lanczos import Krylov, Product

_LOST = 1e-13  # curvature below this part of the largest seen is rounding


@dataclass(frozen=True, eq=False)
class Solution:
    """`lowest` is the smallest d.Hd / d.d met. Where it is not positive, the solve ended at that direction."""

    x: Tensor
    rest: Tensor  # b - H x
    residual: float  # |b - H x| / |b|
    iterations: int
    converged: bool
    lowest: float
    at_edge: bool = False  # |x| is the radius

    @property
    def indefinite(self) -> bool:
        return self.lowest <= 0


def conjugate_gradients(
    product: Product,
    target: Tensor,
    *,
    tolerance: float,
    iterations: int,
    damping: float = 0.0,
    radius: float = math.inf,
) -> Solution:
    """(H + damping) x = target with |x| <= radius.

    The curvature along each direction is looked at: one that is not positive ends the solve, at the edge of the
    radius where there is one (Steihaug's rule), before that direction where there is none.
    """
    x, rest = torch.zeros_like(target), target.clone()
    size, lowest, largest = float(target.norm()), math.inf, 0.0
    if size == 0:
        return Solution(x, rest, 0.0, 0, True, lowest)
    direction, square = rest.clone(), size * size
    for k in range(1, iterations + 1):
        moved = product(direction).add_(direction, alpha=damping)
        along = float(direction @ moved)
        curvature = along / float(direction @ direction)
        largest = max(largest, abs(curvature))
        lowest = min(lowest, curvature if curvature > _LOST * largest else min(curvature, 0.0))
        step = square / along if lowest > 0 else math.inf
        leaving = step == math.inf or (radius < math.inf and float((x + step * direction).norm()) >= radius)
        if leaving:
            step = _to_edge(x, direction, radius) if radius < math.inf else 0.0
        x.add_(direction, alpha=step)
        rest.sub_(moved, alpha=step)
        before, square = square, float(rest @ rest)
        residual = math.sqrt(square) / size
        if leaving or residual <= tolerance:
            return Solution(x, rest, residual, k, not leaving, lowest, at_edge=leaving and step > 0)
        direction = rest + direction * (square / before)
    return Solution(x, rest, residual, iterations, False, lowest)


def _to_edge(x: Tensor, direction: Tensor, radius: float) -> float:
    """t >= 0 with |x + t direction| = radius."""
    a, b, c = float(direction @ direction), float(x @ direction), float(x @ x) - radius**2
    return (math.sqrt(max(b * b - a * c, 0.0)) - b) / a


@dataclass(frozen=True)
class Ends:
    """The two ends of a spectrum. Each has an eigenvalue within `error`; unresolved, the true ends lie further out."""

    smallest: float
    largest: float
    error: float
    products: int
    resolved: bool

    @property
    def norm(self) -> float:
        """|A|_2"""
        return max(abs(self.smallest), abs(self.largest))


def spectrum_ends(product: Product, start: Tensor, *, products: int, tolerance: float = 1e-8) -> Ends:
    """By Lanczos: exact after as many products as there are dimensions."""
    krylov = Krylov(product, start, products, torch.Generator().manual_seed(0))
    while True:
        krylov.step()
        last = krylov.full or krylov.rest == 0
        if last or krylov.m % 5 == 0:
            values, _, residuals = krylov.ritz()
            smallest, largest, error = float(values[-1]), float(values[0]), float(residuals[[0, -1]].max())
            resolved = krylov.m == len(start) or error <= tolerance * max(abs(smallest), abs(largest))
            if last or resolved:
                return Ends(smallest, largest, error, krylov.m, resolved)
