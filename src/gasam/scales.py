"""The scales T: how far each group of weights may go. One function a scale, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """What a scale may ask of the groups, all of them at once: one entry a group, or a weight where element-wise.

    What costs a reading of the weights or the gradient is measured when a scale asks for it.
    """

    size: Tensor  # n_i
    total: int  # n
    floor: float  # on the root-mean-square gradient
    measure_gradient: Callable[[], Tensor]
    measure_weight: Callable[[], Tensor]
    measure_dimensions: Callable[[], Tensor]

    @cached_property
    def gradient(self) -> Tensor:
        """|g_i| of the mean loss, whatever factor it was backed with."""
        return self.measure_gradient()

    @cached_property
    def weight(self) -> Tensor:
        """|w_i|."""
        return self.measure_weight()

    @property
    def dimensions(self) -> Tensor:
        """Of the group's tensor, the most where there are several: 1 for a bias, 2 for a matrix."""
        return self.measure_dimensions()

    @property
    def inverse_gradient(self) -> Tensor:
        """1 / |g_i|, where |g_i| / sqrt(n_i) counts as `floor` at least, and 0 where |g_i| is 0."""
        gradient = self.gradient
        floored = torch.maximum(gradient, (self.floor * self.size.sqrt()).to(gradient))
        return floored.reciprocal_().masked_fill_(gradient == 0, 0.0)


Scale = Callable[[Group], Tensor]


def one(group: Group) -> Tensor:
    """T = 1: all weights alike (SAM, Multi-step Defense). Degree 0 in the gradient."""
    return torch.ones_like(group.size)


def gradient_strength(group: Group) -> Tensor:
    """T = sqrt(n_i) / (|g_i| sqrt(n)): weak gradients may go far (GA-SAM). Degree -1 in the gradient."""
    return group.inverse_gradient * (group.size / group.total).sqrt()


def weight_over_gradient(group: Group) -> Tensor:
    """T = |w_i| / |g_i| (Layer-SAM). Degree -1."""
    return group.weight * group.inverse_gradient


def inverse_gradient(group: Group) -> Tensor:
    """T = 1 / |g_i|. Degree -1."""
    return group.inverse_gradient


def weight_rms(group: Group) -> Tensor:
    """T = |w_i| / sqrt(n_i). Degree 0."""
    return group.weight / group.size.sqrt()


@dataclass(frozen=True)
class Weight:
    """T = |w_i| + constant (ASAM). Degree 0.

    The paper takes |w| for every weight; ASAM's authors leave vectors such as biases at T = 1: `unit_vectors`.
    """

    constant: float = 0.0
    unit_vectors: bool = False

    def __call__(self, group: Group) -> Tensor:
        scale = group.weight + self.constant if self.constant else group.weight
        return torch.where(group.dimensions < 2, 1.0, scale) if self.unit_vectors else scale


SCALES: dict[str, Scale] = {
    "one": one,
    "gradient_strength": gradient_strength,
    "weight_over_gradient": weight_over_gradient,
    "inverse_gradient": inverse_gradient,
    "weight_rms": weight_rms,
    "weight": Weight(),
}
