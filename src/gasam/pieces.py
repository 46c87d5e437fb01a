"""Pieces of the weights: matrices whose rows belong to one group each, small enough for a CPU's caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gasam.torch_private import copy_all


class Limits(NamedTuple):
    """Sizes in weights: tensors of up to `small` share a piece; tensors larger than `largest` are cut."""

    small: int
    largest: int


# On a CPU a piece and its intermediate results should fit the caches.
CPU = Limits(small=1 << 14, largest=1 << 17)
# On an accelerator every call is expensive, so the limits only bound the memory of intermediate results.
ACCELERATOR = Limits(small=1 << 18, largest=1 << 24)
COLUMNS = 64
"""Of a piece that small tensors share. Each begins with a new row, which also keeps it aligned."""


def limits(tensor: Tensor) -> Limits:
    return CPU if tensor.device.type == "cpu" else ACCELERATOR


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which a walk over weights of this type is computed: float32, or their type if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def sum_of_squares(flat: Tensor) -> Tensor:
    """Summed in parts, because one float32 sum over 20 million values has a relative error of 0.001 on a CPU."""
    if flat.numel() <= 1 << 18:
        return torch.dot(flat, flat)
    return torch.stack([torch.dot(part, part) for part in torch.split(flat, 1 << 18)]).sum()


def products(x: Tensor, y: Tensor) -> Tensor:
    """The sum of x * y in each row of a matrix; one number for a vector."""
    return torch.dot(x, y) if x.ndim == 1 else (x * y).sum(1)


def squares(x: Tensor) -> Tensor:
    """The sum of squares in each row of a matrix; one number for a vector."""
    if x.ndim == 1:
        return torch.dot(x, x)
    # The norm needs no temporary tensor, but adds long float32 rows up one after another.
    return torch.linalg.vector_norm(x, dim=1).square_() if x.shape[1] <= 1 << 10 else (x * x).sum(1)


def powers(x: Tensor, p: float) -> Tensor:
    """The sum of |x|^p in each row of a matrix; one number for a vector."""
    if p == 2.0:
        return squares(x)
    found = x.abs().pow_(p)
    return found.sum() if x.ndim == 1 else found.sum(1)


def dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its part of the memory, in any order of its dimensions, without a gap or an overlap."""
    expected = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def in_memory_order(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor as a vector in the order in which `like` lies in memory; a view if both lie alike."""
    if like.is_contiguous():
        return tensor.reshape(-1)
    order = sorted(range(like.ndim), key=like.stride, reverse=True)
    return tensor.permute(order).reshape(-1)


class Piece:
    """A vector of weights of one group, or a matrix with a group for each row.

    `weights` and `displace` compute in the type of the walk, and round once to the type of the weights.
    """

    def __init__(self, source: Tensor, target: Tensor, members: Sequence[int]) -> None:
        self.source, self.target = source, target  # w, and where w + a is written
        self.members = members  # the numbers of the tensors
        self.member_of_row: Tensor | None = None  # the position in `members` of each row; None for a single member
        self.padding: Tensor | None = None  # where a packed piece holds no weight
        self.whole: Tensor | None = None  # the embedding, if these are the rows that a sparse gradient touches
        self.wide = wide(target.dtype)
        self.kind = target.device, self.wide
        self.shape = target.shape
        self.rows = 1 if target.ndim == 1 else len(target)
        self._direct = self.wide == target.dtype
        self._buffers: dict[str, Tensor] = {}
        self.scratch = self.spare = target.new_empty(())  # shared by all pieces of a device and type; see Groups

    def buffer(self, name: str) -> Tensor:
        """A tensor of this shape that is kept between steps; zeros at first."""
        if name not in self._buffers:
            self._buffers[name] = torch.zeros(self.shape, dtype=self.wide, device=self.target.device)
        return self._buffers[name]

    def weights(self) -> Tensor:
        """w. Do not write to it, because it may be the weights themselves."""
        return self.source if self._direct else self.source.to(self.wide)

    def squared_weights(self) -> Tensor:
        """Including rows that a sparse gradient does not touch."""
        return squares(self.weights()) if self.whole is None else sum_of_squares(self.whole.to(self.wide).reshape(-1))

    def displace(self, values: Tensor, factor: Tensor) -> None:
        """Write w + factor * values."""
        if self._direct:
            torch.addcmul(self.source, values, factor, out=self.target)
        else:
            self.target.copy_(torch.addcmul(self.weights(), values, factor))


class Packed(Piece):
    """Small tensors in one matrix, each in rows of its own."""

    def __init__(self, tensors: Sequence[Tensor], members: Sequence[int]) -> None:
        self.counts = [-(-tensor.numel() // COLUMNS) for tensor in tensors]
        like = tensors[0]
        super().__init__(like, like.new_zeros(sum(self.counts), COLUMNS), members)
        self.sources = list(tensors)
        self.targets = self._views(self.target)
        rows = [position for position, count in enumerate(self.counts) for _ in range(count)]
        self.member_of_row = torch.tensor(rows, device=like.device)
        self._read: dict[str, list[Tensor]] = {}
        self.holds_weights = False
        if any(tensor.numel() % COLUMNS for tensor in tensors):
            self.padding = torch.ones_like(self.target, dtype=torch.bool)
            copy_all(self._views(self.padding), [torch.zeros_like(t, dtype=torch.bool) for t in tensors])

    def _views(self, matrix: Tensor) -> list[Tensor]:
        """A view of the matrix for each tensor, with the strides of the tensor."""
        views, at = list[Tensor](), 0
        for tensor, count in zip(self.sources, self.counts, strict=True):
            views.append(matrix.as_strided(tensor.shape, tensor.stride(), at * COLUMNS))
            at += count
        return views

    def read(self, tensors: list[Tensor], name: str) -> Tensor:
        """The tensors as a matrix with zeros in its padding. It is kept under this name until the next call."""
        if name not in self._read:
            self._read[name] = self._views(self.buffer(name))
        copy_all(self._read[name], tensors)
        return self.buffer(name)

    def weights(self) -> Tensor:
        if not self.holds_weights:
            copy_all(self.targets, self.sources)
            self.holds_weights = True
        return self.target if self._direct else self.target.to(self.wide)

    def displace(self, values: Tensor, factor: Tensor) -> None:
        home = self.weights()
        self.holds_weights = False
        if self._direct:
            home.addcmul_(values, factor)
        else:
            self.target.copy_(torch.addcmul(home, values, factor))
