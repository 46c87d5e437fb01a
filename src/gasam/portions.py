"""Portions of the weights: parts that fit a CPU's caches and are read and written as one flat vector."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gasam.torch_private import copy_all


class Limits(NamedTuple):
    """Sizes in weights: tensors of up to `small` share a portion; tensors larger than `largest` are split."""

    small: int
    largest: int


# On a CPU a portion and its intermediate results should fit the caches. segment_reduce, which sums over the tensors of
# a shared portion, adds the numbers one after another there. In float32 this is exact enough only for small tensors.
CPU = Limits(small=1 << 14, largest=1 << 17)
# On an accelerator every call is expensive, so the limits only bound the memory of intermediate results.
ACCELERATOR = Limits(small=1 << 18, largest=1 << 24)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which a walk over weights of this type is computed: float32, or their type if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def sum_of_squares(flat: Tensor) -> Tensor:
    """Summed in parts, because one float32 sum over 20 million values has a relative error of 0.001 on a CPU."""
    if flat.numel() <= 1 << 18:
        return torch.dot(flat, flat)
    return torch.stack([torch.dot(part, part) for part in torch.split(flat, 1 << 18)]).sum()


def cut(
    operands: Sequence[Tensor], kinds: Sequence[object], whole: Container[int]
) -> Iterator[tuple[int, int, slice | None]]:
    """(start, stop, rows) of each portion: small neighbours of one kind share one, and large tensors are split by rows.

    Each tensor whose number is in `whole` is one portion.
    """
    start, held = 0, 0
    for i, tensor in enumerate(operands):
        size, limits = tensor.numel(), CPU if tensor.device.type == "cpu" else ACCELERATOR
        alone = size > limits.small or i in whole
        if start < i and (held + size > limits.largest or alone or kinds[i] != kinds[start]):
            yield start, i, None
            start, held = i, 0
        held += size
        if size > limits.largest and i not in whole:
            rows = max(1, limits.largest * len(tensor) // size)
            yield from ((i, i + 1, slice(first, first + rows)) for first in range(0, len(tensor), rows))
            start, held = i + 1, 0
        elif alone:
            yield i, i + 1, None
            start, held = i + 1, 0
    if start < len(operands):
        yield start, len(operands), None


class Portion:
    """Some small tensors, or some rows of a large one, handled together as one flat vector.

    An entry is a run of weights in the vector that belong to the same group. Each entry has one sum and one T.
    """

    def __init__(self, number: int, operands: Sequence[Tensor], start: int, stop: int, rows: slice | None):
        self.number, self.start, self.stop, self.rows = number, start, stop, rows
        self.operands = self.of(operands)
        self.size = sum(tensor.numel() for tensor in self.operands)
        self._whole_size = sum(tensor.numel() for tensor in operands[start:stop])
        self._offset = 0 if rows is None else rows.start * operands[start][0].numel()
        self.dtype, self.device = self.operands[0].dtype, self.operands[0].device
        self.wide = wide(self.dtype)
        self.lengths: Tensor | None = None  # of the entries; None if there is only one
        self.saved = False
        simple = len(self.operands) == 1 and self.dtype == self.wide and self.operands[0].is_contiguous()
        self._direct = self.operands[0].view(-1) if simple else None  # can be used without a copy

    def use(self, scratch: Tensor, memory: dict[str, Tensor]) -> None:
        """Set the scratch tensor and the buffers. They are reused, because allocation costs more than the arithmetic.

        All portions share the scratch tensor. The portions of one tensor use parts of the same buffers.
        """
        self.scratch = scratch[: self.size]
        self._scratch = self._shaped(self.scratch)
        self._memory = memory
        self._saved = self._shaped(self.buffer("saved", self.dtype))

    def set_entries(self, lengths: list[int]) -> None:
        """Set the number of weights of each entry."""
        self._long_entries = lengths if self.device.type == "cpu" and max(lengths, default=0) > CPU.small else None
        if len(lengths) != 1:
            self.lengths = torch.tensor(lengths, dtype=torch.int64, device=self.device)

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """This portion of a list that is parallel to the parameters."""
        return list(tensors[self.start : self.stop]) if self.rows is None else [tensors[self.start][self.rows]]

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        """This portion of a list as a flat vector in the type of the walk.

        Do not write to it, because it may be the tensor itself. It may also be the scratch tensor, so it is valid only
        until this or another portion is read or written.
        """
        return self.joined(self.of(tensors))

    def joined(self, own: list[Tensor]) -> Tensor:
        """The tensors of this portion as a flat vector; see `read`."""
        if len(own) == 1 and own[0].dtype == self.wide:
            return own[0].reshape(-1)
        copy_all(self._scratch, own)
        return self.scratch

    def buffer(self, purpose: str, dtype: torch.dtype | None = None) -> Tensor:
        """A flat buffer that is kept between steps, by default in the type of the walk."""
        if purpose not in self._memory:
            self._memory[purpose] = torch.empty(self._whole_size, dtype=dtype or self.wide, device=self.device)
        return self._memory[purpose][self._offset : self._offset + self.size]

    def spread(self, numbers: Sequence[Tensor]) -> Tensor:
        """Repeat the number of each entry for all its weights. A single entry stays a single number."""
        own = numbers[self.number].to(self.scratch)
        if own.ndim == 0 or self.lengths is None:
            return own
        return torch.repeat_interleave(own, self.lengths, output_size=self.size)

    def sums(self, values: Tensor) -> Tensor:
        """The sum of each entry."""
        if self.lengths is None:
            return values.sum().reshape(1)
        if self._long_entries is not None:  # long rows
            return torch.stack([part.sum() for part in torch.split(values, self._long_entries)])
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)

    def squares(self, values: Tensor) -> Tensor:
        """The sum of squares of each entry."""
        return sum_of_squares(values).reshape(1) if self.lengths is None else self.sums(values * values)

    def products(self, values: Tensor, others: Tensor) -> Tensor:
        """The sum of values * others of each entry."""
        return torch.dot(values, others).reshape(1) if self.lengths is None else self.sums(values * others)

    def saved_weights(self) -> Tensor:
        """The saved weights in the type of the walk."""
        return self.buffer("saved").to(self.wide)

    def save(self) -> None:
        """Copy the weights, unless this walk has saved them already."""
        if not self.saved:
            copy_all(self._saved, self.operands)
            self.saved = True

    def weights(self) -> Tensor:
        """The weights as a flat vector. If this needs a copy, the copy is kept as the saved weights."""
        if self._direct is not None:
            return self._direct
        self.save()
        return self.saved_weights()

    def displace(self, values: Tensor, factor: Tensor) -> None:
        """Save the weights, and move them to saved + values * factor, rounded once to their type."""
        self.save()
        if self._direct is not None:
            torch.addcmul(self.saved_weights(), values, factor, out=self._direct)
        else:
            torch.addcmul(self.saved_weights(), values, factor, out=self.scratch)
            copy_all(self.operands, self._scratch)

    def restore(self) -> None:
        if self.saved:
            copy_all(self.operands, self._saved)

    def write(self, values: Tensor, targets: Sequence[Tensor]) -> None:
        """Write flat values to this portion of a list."""
        copy_all(self.of(targets), self._shaped(values))

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector with the shapes of the operands."""
        parts = torch.split(flat, [tensor.numel() for tensor in self.operands])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self.operands, strict=True)]
