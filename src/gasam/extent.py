"""How far a walk goes: the radius that a budget stands for, and the cap on the offset of each group."""

from __future__ import annotations

import torch
from torch import Tensor

from gasam.ball import inverse
from gasam.perturbation import Perturbation

SMALLEST_WEIGHTS = 0.01
"""A group's weights count as this share of the model's root-mean-square weight at least, so that zeros can move."""


def radius(perturbation: Perturbation, strength: float, slope: Tensor) -> Tensor:
    """epsilon, from |T g_0|_q, the slope of the mean loss along the first step; 0 where the slope is 0."""
    size = torch.full_like(slope, perturbation.size * strength)
    return size if perturbation.budget is None else size * inverse(slope)


def limits(cap: float, weights: Tensor, sizes: Tensor, rms: Tensor) -> Tensor:
    """c_i = cap max(|w_i|_2, 0.01 sqrt(n_i) rms(w)) of each group, the largest |a_i|_2 that it may have."""
    return cap * comparable(weights, sizes, rms)


def comparable(weights: Tensor, sizes: Tensor, rms: Tensor) -> Tensor:
    """What an offset is compared with: |w_i|, at least 0.01 sqrt(n_i) rms(w)."""
    return torch.maximum(weights, SMALLEST_WEIGHTS * sizes.sqrt() * rms)


def shrinking(limit: Tensor, norms: Tensor) -> Tensor:
    """min(1, c_i / |a_i|), and 1 where |a_i| is 0."""
    return torch.where(norms > limit, limit * inverse(norms), 1.0)
