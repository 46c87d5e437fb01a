"""The scales T, which determine how far each group of weights may move, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gasam.groups import Groups
from gasam.pieces import Piece


@dataclass(frozen=True)
class Group:
    """The input of a scale: properties of all groups at once, as tensors with an entry for each group.

    A scale is a function of a `Group` that returns T. With granularity "element" each weight is a group, and the scale
    is called for a few tensors at a time. The norms `gradient` and `weight` are computed only when a scale reads them.

    Args:
        size: n_i, the number of weights of each group. With granularity "element" a single 1.
        total: n, the number of weights of all groups.
        floor: Smallest root-mean-square gradient that a scale divides by.
        names: The names of the groups' tensors or modules.
        dimensions_of_names: The number of dimensions of each name's tensor.
        measure_gradient: Computes `gradient`.
        measure_weight: Computes `weight`.
        name_of_row: The position in `names` of each row of weights; None if each name is one group.
    """

    size: Tensor
    total: int
    floor: float
    names: Sequence[str]
    dimensions_of_names: Sequence[int]
    measure_gradient: Callable[[], Tensor]
    measure_weight: Callable[[], Tensor]
    name_of_row: Tensor | None = None

    @cached_property
    def gradient(self) -> Tensor:
        """|g_i| of the mean loss, without factors such as a loss scale."""
        return self.measure_gradient()

    @cached_property
    def weight(self) -> Tensor:
        """|w_i|."""
        return self.measure_weight()

    @property
    def dimensions(self) -> Tensor:
        """The number of dimensions of the group's tensor (1 for a bias, 2 for a matrix), or the largest of several."""
        return self.for_each(self.dimensions_of_names)

    def for_each(self, values: Sequence[float]) -> Tensor:
        """Convert one value per name into a tensor with one value per group, or per row of them."""
        tensor = torch.tensor(values, device=self.size.device)
        return tensor if self.name_of_row is None else tensor[self.name_of_row].unsqueeze(1)

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
    """T = |w_i| + constant (ASAM). Degree 0 in the gradient.

    The GA-SAM paper uses |w| for every weight. The code of ASAM's authors does so only for parameters whose name
    contains "weight".

    Args:
        constant: Added to |w_i|, so that weights of zero can move.
        unit_vectors: Use T = 1 for biases and all other vectors, such as the weights of LayerNorm.
        only_named: Use T = 1 for parameters whose name does not contain this text, for example "weight". None means
            that all parameters are scaled.
    """

    constant: float = 0.0
    unit_vectors: bool = False
    only_named: str | None = None

    def __call__(self, group: Group) -> Tensor:
        scale = group.weight + self.constant if self.constant else group.weight
        if self.unit_vectors:
            scale = torch.where(group.dimensions < 2, 1.0, scale)
        if self.only_named is not None:
            scale = torch.where(group.for_each([self.only_named in name for name in group.names]).bool(), scale, 1.0)
        return scale


SCALES: dict[str, Scale] = {
    "one": one,
    "gradient_strength": gradient_strength,
    "weight_over_gradient": weight_over_gradient,
    "inverse_gradient": inverse_gradient,
    "weight_rms": weight_rms,
    "weight": Weight(),
}


WITHOUT_WEIGHTS: tuple[Scale, ...] = (one, gradient_strength, inverse_gradient)
"""Scales that do not read |w_i|, so that it need not be measured."""


def scale_of_groups(
    scale: Scale, floor: float, groups: Groups, gradient_squares: Tensor, weight_squares: Tensor | None
) -> Tensor:
    """T of each group, or one T for the whole model, from |g_i|^2 of the mean loss and |w_i|^2."""
    sizes, names, dimensions = groups.sizes, groups.names, groups.dimensions
    if by_model := groups.granularity == "model":
        sizes, names, dimensions = sizes.sum(0, keepdim=True), ["(model)"], [max(dimensions, default=0)]

    def norm(squares: Tensor | None) -> Tensor:
        assert squares is not None
        return (squares.sum(0, keepdim=True) if by_model else squares).sqrt()

    group = Group(
        size=sizes,
        total=groups.total,
        floor=floor,
        names=names,
        dimensions_of_names=dimensions,
        measure_gradient=lambda: norm(gradient_squares),
        measure_weight=lambda: norm(weight_squares),
    )
    found = scale(group)
    found = found.sum() if by_model else found.expand_as(groups.sizes)
    return found if groups.strengths is None else found * groups.strengths


def scale_of_weights(
    scale: Scale, floor: float, groups: Groups, piece: Piece, gradient: Tensor, factor: Tensor | float
) -> Tensor:
    """T of each weight of a piece, from `factor` times the gradient of the mean loss; zero where there is no weight."""
    group = Group(
        size=gradient.new_ones(1),
        total=groups.total,
        floor=floor,
        names=[groups.names[member] for member in piece.members],
        dimensions_of_names=[groups.dimensions[member] for member in piece.members],
        measure_gradient=lambda: gradient.abs() / factor,
        measure_weight=lambda: piece.weights().abs(),
        name_of_row=piece.member_of_row,
    )
    found = scale(group)
    if groups.strengths is not None:
        found = found * group.for_each([float(groups.operands[member].strength) for member in piece.members])
    return found if piece.padding is None else found.masked_fill(piece.padding, 0.0)


SMALLEST_WEIGHTS = 0.01
"""Lower bound on a group's weights, relative to the model's root-mean-square weight, so that zeros can move."""


def comparable_norms(weights: Tensor, sizes: Tensor, rms_weight: Tensor) -> Tensor:
    """max(|w_i|, 0.01 sqrt(n_i) rms(w)), with which |a_i| is compared."""
    return torch.maximum(weights, SMALLEST_WEIGHTS * sizes.sqrt() * rms_weight)


def inverse(value: Tensor) -> Tensor:
    """1 / value, and 0 for entries that are 0."""
    return torch.where(value > 0, 1 / value, 0.0)
