"""Symmetric matrices known by their products: a solve that notices negative curvature, and the spectrum's ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]

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
    """Lanczos with every vector kept orthogonal to all before: exact after as many products as there are dimensions."""
    limit = min(products, len(start))
    basis = torch.empty(limit, len(start), dtype=start.dtype, device=start.device)
    diagonal: list[float] = []
    beside: list[float] = []
    vector = start / start.norm()
    ends = Ends(math.nan, math.nan, math.inf, 0, False)
    for k in range(limit):
        basis[k] = vector
        moved = product(vector)
        diagonal.append(float(vector @ moved))
        known = basis[: k + 1]
        for _ in range(2):  # once leaves rounding behind that grows into ghosts
            moved = moved - known.T @ (known @ moved)
        beside.append(float(moved.norm()))
        last = k + 1 == limit or beside[-1] == 0
        if last or k % 5 == 4:
            ends = _ends(diagonal, beside, len(start), tolerance)
            if ends.resolved or last:
                return ends
        vector = moved / beside[-1]
    return ends


def _ends(diagonal: list[float], beside: list[float], dimensions: int, tolerance: float) -> Ends:
    k = len(diagonal)
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if k > 1:
        off = torch.tensor(beside[:-1], dtype=torch.float64)
        tridiagonal = tridiagonal + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    smallest, largest = float(values[0]), float(values[-1])
    error = 0.0 if k == dimensions else beside[-1] * float(vectors[-1, [0, -1]].abs().max())
    resolved = error <= tolerance * max(abs(smallest), abs(largest))
    return Ends(smallest, largest, error, k, resolved)
