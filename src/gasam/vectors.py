"""`Vector`: what a method computes with, a linear combination of gradients with one tensor for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from gasam.ball import inverse
from gasam.portions import wide
from gasam.sharded import over_processes

Number = float | Tensor
Tensors = Sequence[Tensor | None]
BLOCK = 1 << 18
"""Products are summed in blocks of this size, because one long float32 sum is inexact on a CPU."""


class Space(NamedTuple):
    """The parameters that vectors belong to: how each is sharded, and a number of the type and device of products."""

    shardings: Sequence[Any]
    like: Tensor


class Vector:
    """A linear combination of gradients, or of what a method keeps, over all parameters.

    Write formulas with it as on paper: `g_1 - 0.4 * g_0.orthogonal_to(g_1)`. Add and subtract vectors; multiply and
    divide them by a number or a scalar tensor. Nothing is computed until the result is needed, and then one tensor at a
    time, in float32 or wider. So a formula needs no memory of the size of the model. Products include the shards of
    all processes, and nothing synchronises with the host.
    """

    def __init__(self, space: Space, terms: Sequence[tuple[Number, Tensors]]) -> None:
        self.space = space
        self._terms = tuple(terms)

    def __add__(self, other: Vector) -> Vector:
        merged = {id(tensors): (number, tensors) for number, tensors in self._terms}
        for number, tensors in other._terms:
            known = merged.get(id(tensors))
            merged[id(tensors)] = (number if known is None else known[0] + number, tensors)
        return Vector(self.space, list(merged.values()))

    def __mul__(self, factor: Number) -> Vector:
        return Vector(self.space, [(number * factor, tensors) for number, tensors in self._terms])

    __rmul__ = __mul__

    def __truediv__(self, divisor: Number) -> Vector:
        return self * (1 / divisor)

    def __neg__(self) -> Vector:
        return self * -1.0

    def __sub__(self, other: Vector) -> Vector:
        return self + -other

    @torch.no_grad()
    def dot(self, other: Vector) -> Tensor:
        """The sum of the products of all entries, over all processes, as a scalar tensor."""
        factor, vector = self._without_factor()
        other_factor, other_vector = other._without_factor()
        sums: dict[Any, Tensor] = {}
        for i, sharding in enumerate(self.space.shardings):
            own = vector.entry(i)
            others = own if other is self else other_vector.entry(i)
            if own is not None and others is not None:
                sums[sharding] = _product(own, others).to(self.space.like) + sums.get(sharding, 0.0)
        total = torch.zeros_like(self.space.like)
        for sharding, here in sums.items():
            total = total + over_processes(here, sharding)
        return total * factor * other_factor

    def _without_factor(self) -> tuple[Number, Vector]:
        """A number and a vector whose product is this vector, so that the product of two gradients needs no copy."""
        if len(self._terms) != 1:
            return 1.0, self
        number, tensors = self._terms[0]
        return number, Vector(self.space, [(1.0, tensors)])

    def norm(self) -> Tensor:
        """The Euclidean norm over all parameters."""
        return self.dot(self).sqrt()

    def orthogonal_to(self, other: Vector) -> Vector:
        """The component orthogonal to another vector: v - (v.u / u.u) u, and v itself if u is zero."""
        return self - self.dot(other) * inverse(other.dot(other)) * other

    def with_norm(self, length: Number) -> Vector:
        """The vector of this norm in the same direction; zero if the vector is zero."""
        return self * (inverse(self.norm()) * length)

    def entry(self, i: int, rows: slice | None = None) -> Tensor | None:
        """The tensor of parameter i, or some of its rows; None if the parameter has no gradient. Do not write to it."""
        found = [(number, tensors[i]) for number, tensors in self._terms]
        terms = [(number, tensor if rows is None else tensor[rows]) for number, tensor in found if tensor is not None]
        if not terms:
            return None
        if any(tensor.is_sparse for _, tensor in terms):
            return _sparse_sum(terms)
        number, tensor = terms[0]
        total = tensor.to(wide(tensor.dtype))
        if len(terms) == 1 and isinstance(number, float | int) and number == 1:
            return total
        total = total * _on(number, total)
        for number, tensor in terms[1:]:
            if isinstance(number, Tensor):
                total.addcmul_(tensor.to(total.dtype), number.to(total))
            else:
                total.add_(tensor, alpha=number)
        return total


def _on(number: Number, like: Tensor) -> Number:
    return number.to(like) if isinstance(number, Tensor) else number


def _product(values: Tensor, others: Tensor) -> Tensor:
    if values.is_sparse or others.is_sparse:
        if not (values.is_sparse and others.is_sparse):
            refuse_sparse()
        return (values * others).coalesce().values().sum()
    parts = zip(torch.split(values.reshape(-1), BLOCK), torch.split(others.reshape(-1), BLOCK), strict=True)
    return torch.stack([torch.dot(one, other) for one, other in parts]).sum()


def _sparse_sum(terms: Sequence[tuple[Number, Tensor]]) -> Tensor:
    """The sum of sparse gradients, as a sparse gradient. Coalescing adds up rows that occur several times."""
    if not all(tensor.is_sparse for _, tensor in terms):
        refuse_sparse()
    parts = [(number, tensor.coalesce()) for number, tensor in terms]
    indices = torch.cat([tensor.indices() for _, tensor in parts], dim=1)
    values = [tensor.values().to(wide(tensor.dtype)) for _, tensor in parts]
    scaled = [value * _on(number, value) for value, (number, _) in zip(values, parts, strict=True)]
    total = torch.sparse_coo_tensor(indices, torch.cat(scaled), parts[0][1].shape, check_invariants=False)
    return total.coalesce()


def refuse_sparse() -> NoReturn:
    raise TypeError(
        "a method that keeps a vector between steps can't combine it with the sparse gradient of an embedding: use "
        "sparse=False, or a method without state"
    )
