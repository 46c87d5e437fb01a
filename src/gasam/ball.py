"""Direction and projection in a ball of a p-norm: the formulas for one tensor, and random points of the ball."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gasam.torch_private import standard_gamma

Start = Callable[[Tensor], Tensor]
Dims = tuple[int, ...]


def inverse(value: Tensor) -> Tensor:
    """1 / value, and 0 where value is 0."""
    return torch.where(value > 0, 1 / value, 0.0)


def finite(values: Tensor, out: Tensor | None = None) -> Tensor:
    """NaN and infinity become 0: multiplied by 0 they would give NaN."""
    return torch.nan_to_num(values, 0.0, 0.0, 0.0, out=out)


def steepest_ascent(h: Tensor, p: float, largest: Tensor) -> Tensor:
    """sgn(h) |h|^(1/(p-1)): the direction of steepest ascent along h, not yet of length one.

    h is divided by `largest`, its largest absolute entry, because a power of small numbers underflows.
    """
    if p == math.inf:
        return h.sign()
    ratio = h / torch.where(largest > 0, largest, 1.0).to(h)
    return ratio.abs().pow_(1 / (p - 1)).mul_(ratio.sign_())


def shrinkage(length: Tensor) -> Tensor:
    """min(1, 1 / length): the factor that brings a point of this length into the unit ball."""
    return length.clamp(min=1.0).reciprocal()


def direction(h: Tensor, p: float, dims: Dims) -> Tensor:
    """The unit direction of steepest ascent along h, for each slice over `dims`; zero where h is not finite."""
    u = steepest_ascent(h, p, h.abs().amax(dims, keepdim=True))
    return u if p == math.inf else finite(u * inverse(torch.linalg.vector_norm(u, p, dims, keepdim=True)))


def project(y: Tensor, p: float, dims: Dims) -> Tensor:
    """Each slice over `dims` onto the unit ball: clipped for p = inf, otherwise shortened along its ray."""
    if p == math.inf:
        return y.clamp(-1.0, 1.0)
    return y * shrinkage(torch.linalg.vector_norm(y, p, dims, keepdim=True))


def uniform_start(norm: float, generator: torch.Generator | None = None) -> Start:
    """A random point: uniform in the box for norm inf, otherwise on the surface, where nearly all of a ball is."""

    def draw(like: Tensor) -> Tensor:
        if norm == math.inf:
            return torch.empty_like(like).uniform_(-1, 1, generator=generator)
        if norm == 2.0:
            return torch.empty_like(like).normal_(generator=generator)
        sizes = standard_gamma(torch.full_like(like, 1 / norm), generator).pow_(1 / norm)
        return sizes.mul_(torch.empty_like(like).uniform_(-1, 1, generator=generator).sign_())

    return draw
