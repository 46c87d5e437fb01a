"""The scales T, which determine how far each group of weights may move, and the table of their names."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gasam.groups import Groups, Piece


@dataclass(frozen=True)
class Group:
    """The input of a scale: properties of all groups at once, as tensors with an entry for each group.

    A scale is a function of a `Group` that returns T. With granularity "element" each weight is a group, and the scale
    is called for a few tensors at a time.

    Attributes:
        gradient: |g_i| of the mean loss, without factors such as a loss scale.
        weight: |w_i|.
        size: n_i, the number of weights of each group. With granularity "element" a single 1.
        total: n, the number of weights of all groups.
        floor: Smallest root-mean-square gradient that a scale divides by.
    """

    gradient: Tensor
    weight: Tensor
    size: Tensor
    total: int
    floor: float

    @property
    def inverse_gradient(self) -> Tensor:
        """1 / max(|g_i|, floor sqrt(n_i)), and 0 if |g_i| is 0."""
        gradient = self.gradient
        floored = torch.maximum(gradient, (self.floor * self.size.sqrt()).to(gradient))
        return floored.reciprocal_().masked_fill_(gradient == 0, 0.0)


Scale = Callable[[Group], Tensor]


def one(group: Group) -> Tensor:
    """T = 1 (SAM, Multi-step Defense). Degree 0 in the gradient."""
    return torch.ones_like(group.size)


def gradient_strength(group: Group) -> Tensor:
    """T = sqrt(n_i) / (|g_i| sqrt(n)): groups with weak gradients move further (GA-SAM). Degree -1 in the gradient."""
    return group.inverse_gradient * (group.size / group.total).sqrt()


def weight_over_gradient(group: Group) -> Tensor:
    """T = |w_i| / |g_i| (Layer-SAM). Degree -1 in the gradient."""
    return group.weight * group.inverse_gradient


def inverse_gradient(group: Group) -> Tensor:
    """T = 1 / |g_i|. Degree -1 in the gradient."""
    return group.inverse_gradient


def weight_rms(group: Group) -> Tensor:
    """T = |w_i| / sqrt(n_i). Degree 0 in the gradient."""
    return group.weight / group.size.clamp(min=1).sqrt()  # an empty tensor has n_i = 0


@dataclass(frozen=True)
class Weight:
    """T = |w_i| + constant (ASAM), so that weights of zero can move. Degree 0 in the gradient."""

    constant: float = 0.0

    def __call__(self, group: Group) -> Tensor:
        return group.weight + self.constant if self.constant else group.weight


SCALES: dict[str, Scale] = {
    "one": one,
    "gradient_strength": gradient_strength,
    "weight_over_gradient": weight_over_gradient,
    "inverse_gradient": inverse_gradient,
    "weight_rms": weight_rms,
    "weight": Weight(),
}


def reads_weights(scale: Scale) -> bool:
    """Whether a scale may read |w_i|, so that it must be measured."""
    return scale not in (one, gradient_strength, inverse_gradient)


def reads_gradient(scale: Scale) -> bool:
    """Whether a scale may read |g_i|. Otherwise a factor of the gradient changes nothing."""
    return scale not in (one, weight_rms) and not isinstance(scale, Weight)


def scale_of_groups(
    scale: Scale, floor: float, groups: Groups, gradient_squares: Tensor, weight_squares: Tensor | None
) -> Tensor:
    """T of each group, or one T for the whole model. |g_i|^2 is of the mean loss; |w_i|^2 is None if it is not read."""
    gradient, size = gradient_squares, groups.sizes
    weight = gradient if weight_squares is None else weight_squares
    if groups.granularity == "model":
        gradient, weight, size = (each.sum(0, keepdim=True) for each in (gradient, weight, size))
    return scale(Group(gradient.sqrt(), weight.sqrt(), size, groups.total, floor)).expand_as(groups.sizes)


def scale_of_weights(
    scale: Scale, floor: float, groups: Groups, piece: Piece, gradient: Tensor, factor: Tensor | float
) -> Tensor:
    """T of each weight of a piece, from `factor` times the gradient of the mean loss. It may be `piece.for_w`."""
    # What the scale does not read is not computed.
    gradient = gradient.abs().div_(factor) if reads_gradient(scale) else gradient
    weight = torch.abs(piece.weights(), out=piece.for_w) if reads_weights(scale) else piece.for_w
    found = scale(Group(gradient, weight, gradient.new_ones(1), groups.total, floor))
    if isinstance(scale, Weight) or scale in SCALES.values():
        return found
    return piece.without_padding(found.expand_as(gradient))  # an own scale may give anything there


SMALLEST_WEIGHTS = 0.01
"""Lower bound on a group's weights, relative to the model's root-mean-square weight, so that zeros can move."""


def comparable_norms(weights: Tensor, sizes: Tensor, least: float = SMALLEST_WEIGHTS) -> Tensor:
    """max(|w_i|, least sqrt(n_i) rms(w)), with which |a_i| is compared; from |w_i| and n_i of all groups."""
    rms_weight = (weights.square().sum() / sizes.sum().clamp(min=1)).sqrt()
    return torch.maximum(weights, least * sizes.sqrt() * rms_weight)


def inverse(value: Tensor) -> Tensor:
    """1 / value; 0 unless value > 0, also for NaN."""
    return torch.where(value > 0, 1 / value, 0.0)
