"""Directions of steepest ascent, projections and random points for the ball of a p-norm."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gasam.torch_private import standard_gamma

Start = Callable[[Tensor], Tensor]
Dims = tuple[int, ...]


def inverse(value: Tensor) -> Tensor:
    """1 / value, and 0 for entries that are 0."""
    return torch.where(value > 0, 1 / value, 0.0)


def finite(values: Tensor, out: Tensor | None = None) -> Tensor:
    """Replace NaN and infinity by 0, because multiplying them by 0 would give NaN."""
    return torch.nan_to_num(values, 0.0, 0.0, 0.0, out=out)


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


def direction(h: Tensor, p: float, dims: Dims) -> Tensor:
    """The unit direction of steepest ascent along h for each slice over `dims`; zero if h is not finite."""
    u = steepest_ascent(h, p, h.abs().amax(dims, keepdim=True))
    return u if p == math.inf else finite(u * inverse(torch.linalg.vector_norm(u, p, dims, keepdim=True)))


def project(y: Tensor, p: float, dims: Dims) -> Tensor:
    """Project each slice over `dims` onto the unit ball: clip for p = inf, otherwise rescale."""
    if p == math.inf:
        return y.clamp(-1.0, 1.0)
    return y * shrinkage(torch.linalg.vector_norm(y, p, dims, keepdim=True))


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
