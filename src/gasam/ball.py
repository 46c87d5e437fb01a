"""Direction and projection for a norm p: the formulas, given the sums they need.

The walk sums over all weights, FreeLB over each example: `dims` are the dimensions that are summed, all when None.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gasam.tensors import inverse, sum_of_squares


def needs_largest(p: float) -> bool:
    """Only a power of h can underflow: then h is divided by its largest entry first."""
    return p not in (2.0, math.inf)


def raised(h: Tensor, p: float, largest: Tensor | None = None) -> Tensor:
    """sgn(h) |h|^(1/(p-1)): the direction that gains most, not yet of length one. A NaN entry may come out."""
    if p == math.inf:
        return h.sign()
    if p == 2.0:
        return h
    assert largest is not None
    ratio = h / torch.where(largest > 0, largest, 1.0).to(h)
    return ratio.abs().pow_(1 / (p - 1)).mul_(ratio.sign_())


def power_sum(x: Tensor, p: float, dims: tuple[int, ...] | None = None) -> Tensor:
    """Sum of |x|^p, or the largest |x| for p = inf; over `dims`, which are kept."""
    if dims is None:
        if p == 2.0:
            return sum_of_squares(x.reshape(-1))
        return x.abs().amax() if p == math.inf else x.abs().pow_(p).sum()
    size = x.abs()
    return size.amax(dims, keepdim=True) if p == math.inf else size.pow_(p).sum(dims, keepdim=True)


def length(total: Tensor, p: float) -> Tensor:
    """|x|_p from its power sum."""
    return total if p == math.inf else total.pow(1 / p)


def shrinkage(size: Tensor) -> Tensor:
    """By what a point of this length is multiplied to lie in the unit ball: min(1, 1 / |x|)."""
    return size.clamp(min=1.0).reciprocal()


def direction(h: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """The unit direction that gains most along h, for each slice over `dims`; zero where h is not finite."""
    if p == math.inf:
        return h.sign()
    u = raised(h, p, power_sum(h, math.inf, dims))
    return (u * inverse(length(power_sum(u, p, dims), p))).nan_to_num_(0.0, 0.0, 0.0)


def project(y: Tensor, p: float, dims: tuple[int, ...]) -> Tensor:
    """Each slice over `dims` onto the unit ball: clipped for p = inf, else radially."""
    if p == math.inf:
        return y.clamp(-1.0, 1.0)
    return y * shrinkage(length(power_sum(y, p, dims), p))
