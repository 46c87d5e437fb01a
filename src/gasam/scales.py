"""The scales T, which determine how far each group of weights may move, and the table of their names."""

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
    """The input of a scale: properties of all groups at once, as tensors with an entry for each group.

    A scale is a function of a `Group` that returns T. With granularity "element" each weight is a group, and the scale
    is called for a few tensors at a time. The norms `gradient` and `weight` are computed only when a scale reads them.

    Args:
        size: n_i, the number of weights of each group. With granularity "element" a single 1.
        total: n, the number of weights of all groups.
        floor: Smallest root-mean-square gradient that a scale divides by.
        names: The names of the groups' tensors or modules.
        measure_gradient: Computes `gradient`.
        measure_weight: Computes `weight`.
        dimensions_of_names: The number of dimensions of each name's tensor.
        sizes_of_names: The number of weights of each name's tensor; None if each name is one group.
    """

    size: Tensor
    total: int
    floor: float
    names: Sequence[str]
    measure_gradient: Callable[[], Tensor]
    measure_weight: Callable[[], Tensor]
    dimensions_of_names: Sequence[int]
    sizes_of_names: Sequence[int] | None = None

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
        """Convert one value per name into a tensor with one value per group."""
        tensor = torch.tensor(values, device=self.size.device)
        if self.sizes_of_names is None:
            return tensor
        repeats = torch.tensor(self.sizes_of_names, device=tensor.device)
        return tensor.repeat_interleave(repeats, output_size=sum(self.sizes_of_names))

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


def group_scale(
    scale: Scale, floor: float, layout: Layout, gradient: Tensor, measure_weight: Callable[[], Tensor]
) -> Tensor:
    """T of each group, or one T for the whole model, from |g_i| of the mean loss and from |w_i|.

    It is multiplied by the strengths of the user's parameter groups, if there are any.
    """
    found = _group_scale(scale, floor, layout, gradient, measure_weight)
    return found if layout.strengths is None else found * layout.strengths


def _group_scale(
    scale: Scale, floor: float, layout: Layout, gradient: Tensor, measure_weight: Callable[[], Tensor]
) -> Tensor:
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
    """Write T of each weight to the portions' buffers, and return their sums. `factor` is that of the gradients."""
    sums, gradients = list[Tensor](), layout.gradients()
    strengths = None if layout.strengths is None else layout.to_entries(layout.strengths)
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
        found = portion.buffer("scale").copy_(scale(group))
        if strengths is not None:
            found.mul_(portion.spread(strengths))
        sums.append(portion.sums(found))
    return sums


def _joined(norms: Tensor) -> Tensor:
    """The norm over all groups."""
    return norms.square().sum(0, keepdim=True).sqrt()


def _sizes(portion: Portion, tensors: list[Tensor], factor: Tensor | float | None = None) -> Tensor:
    """The absolute values of a portion, divided by the factor that they were multiplied by."""
    sizes = portion.read(tensors).abs()
    if factor is None:
        return sizes
    return sizes.div_(factor.to(sizes) if isinstance(factor, Tensor) else factor)
