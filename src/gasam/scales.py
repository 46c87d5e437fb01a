"""The scales T: how far each group of weights may go. One function a scale, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """What a scale may ask of the groups, all of them at once: one entry a group, or a weight where element-wise.

    The gradient is that of the mean loss, whatever factor it was backed with.
    """

    gradient: Tensor  # |g_i|
    size: Tensor  # n_i
    total: int  # n
    dimensions: Tensor  # of the group's tensor
    floor: float  # on the root-mean-square gradient
    measure_weight: Callable[[], Tensor]

    @property
    def weight(self) -> Tensor:
        """|w_i|; measured only for the scales that ask."""
        return self.measure_weight()

    @property
    def inverse_gradient(self) -> Tensor:
        """1 / |g_i|, where |g_i| / sqrt(n_i) counts as `floor` at least, and 0 where |g_i| is 0."""
        floored = torch.maximum(self.gradient, self.floor * self.size.sqrt())
        return torch.where(self.gradient == 0, 0.0, 1 / floored)


Scale = Callable[[Group], Tensor]


def one(group: Group) -> Tensor:
    """T = 1: all weights alike (SAM, Multi-step Defense). Degree 0 in the gradient."""
    return torch.ones_like(group.gradient)


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
        scale = group.weight + self.constant
        return torch.where(group.dimensions < 2, 1.0, scale) if self.unit_vectors else scale


SCALES: dict[str, Scale] = {
    "one": one,
    "gradient_strength": gradient_strength,
    "weight_over_gradient": weight_over_gradient,
    "inverse_gradient": inverse_gradient,
    "weight_rms": weight_rms,
    "weight": Weight(),
}
