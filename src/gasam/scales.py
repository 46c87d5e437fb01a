"""The scales T: how far each group of weights may go. A function for each scale, and the table of their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from gasam.layout import Layout
from gasam.portions import Portion


@dataclass(frozen=True)
class Group:
    """What a scale may ask about the groups, all of them at once: tensors with an entry for each group.

    With granularity "element" there is an entry for each weight, except for `size`, which is one; a scale is then
    called for some tensors at a time. Norms are computed only when a scale reads them.
    """

    size: Tensor  # n_i
    total: int  # n
    floor: float  # on the root-mean-square gradient
    names: Sequence[str]  # of the groups' tensors, or modules
    measure_gradient: Callable[[], Tensor]
    measure_weight: Callable[[], Tensor]
    dimensions_of_names: Sequence[int]
    sizes_of_names: Sequence[int] | None = None  # weights of each tensor; None if each name is one group

    @cached_property
    def gradient(self) -> Tensor:
        """|g_i| of the mean loss, without the factors that its backward was given."""
        return self.measure_gradient()

    @cached_property
    def weight(self) -> Tensor:
        """|w_i|."""
        return self.measure_weight()

    @property
    def dimensions(self) -> Tensor:
        """Of the group's tensor, the most where there are several: 1 for a bias, 2 for a matrix."""
        return self.for_each(self.dimensions_of_names)

    def for_each(self, values: Sequence[float]) -> Tensor:
        """Values for the names as a tensor for the groups."""
        tensor = torch.tensor(values, device=self.size.device)
        if self.sizes_of_names is None:
            return tensor
        repeats = torch.tensor(self.sizes_of_names, device=tensor.device)
        return tensor.repeat_interleave(repeats, output_size=sum(self.sizes_of_names))

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
    return group.weight / group.size.clamp(min=1).sqrt()  # an empty tensor is a group of 0


@dataclass(frozen=True)
class Weight:
    """T = |w_i| + constant (ASAM). Degree 0.

    The paper takes |w| for every weight. ASAM's authors do so for parameters whose name contains "weight" and have
    T = 1 for the others: `only_named="weight"`. `unit_vectors` instead has T = 1 for biases and all other vectors, such
    as the weights of LayerNorm, whatever their names are.
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


def group_scale(
    scale: Scale, floor: float, layout: Layout, gradient: Tensor, measure_weight: Callable[[], Tensor]
) -> Tensor:
    """T of each group, or one for the whole model, from |g_i| of the mean loss and |w_i|."""
    if layout.groups.granularity != "model":
        group = Group(
            size=layout.sizes,
            total=layout.total,
            floor=floor,
            names=layout.groups.names,
            dimensions_of_names=layout.groups.dimensions,
            measure_gradient=lambda: gradient,
            measure_weight=measure_weight,
        )
        return scale(group).expand_as(layout.sizes)
    whole_model = Group(
        size=layout.sizes.sum(0, keepdim=True),
        total=layout.total,
        floor=floor,
        names=["(model)"],
        dimensions_of_names=[max(layout.groups.dimensions, default=0)],
        measure_gradient=lambda: _joined(gradient),
        measure_weight=lambda: _joined(measure_weight()),
    )
    return scale(whole_model).sum()


def element_scale(scale: Scale, floor: float, layout: Layout, factor: Tensor | float) -> list[Tensor]:
    """Write T of each weight to the portions' buffers; return their sums. The gradients are `factor` g."""
    sums, gradients = list[Tensor](), layout.gradients()
    for portion in layout.portions:
        tensors = slice(portion.start, portion.stop)
        group = Group(
            size=torch.ones_like(portion.scratch[:1]),
            total=layout.total,
            floor=floor,
            names=layout.groups.names[tensors],
            dimensions_of_names=layout.groups.dimensions[tensors],
            sizes_of_names=[tensor.numel() for tensor in portion.operands],
            measure_gradient=partial(_sizes, portion, gradients, factor),
            measure_weight=partial(_sizes, portion, layout.operands),
        )
        sums.append(portion.sums(portion.buffer("scale").copy_(scale(group))))
    return sums


def _joined(norms: Tensor) -> Tensor:
    """The norm of all groups together."""
    return norms.square().sum(0, keepdim=True).sqrt()


def _sizes(portion: Portion, tensors: list[Tensor], factor: Tensor | float | None = None) -> Tensor:
    """|values|, over the factor that they were multiplied by."""
    sizes = portion.read(tensors).abs()
    if factor is None:
        return sizes
    return sizes.div_(factor.to(sizes) if isinstance(factor, Tensor) else factor)
