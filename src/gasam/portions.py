"""Lists of tensors in portions that fit a CPU's caches, and the writing of weights, portion by portion."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import torch
from torch import Tensor

# How many weights are handled at once. On a CPU they and intermediate results should stay in the caches; on an
# accelerator calls are expensive, and the limit only bounds the memory of intermediate results.
CPU, ACCELERATOR = 1 << 17, 1 << 26


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of a walk over weights of this type: float32, or their own where that is wider."""
    return torch.promote_types(dtype, torch.float32)


def sum_of_squares(values: Tensor) -> Tensor:
    """In parts: one float32 sum over 20 million values is off by a thousandth on a CPU."""
    flat = values.reshape(-1)
    if flat.numel() <= CPU:
        return torch.dot(flat, flat)
    return torch.stack([torch.dot(part, part) for part in torch.split(flat, CPU)]).sum()


def cut(
    places: Sequence[Tensor], kinds: Sequence[object], whole: Container[int]
) -> Iterator[tuple[int, int, slice | None]]:
    """(start, stop, rows) of each portion: small neighbours of one kind together, a large tensor in parts of its rows.

    The tensors with a number in `whole` are not cut.
    """
    start, held = 0, 0
    for i, place in enumerate(places):
        limit, size = CPU if place.device.type == "cpu" else ACCELERATOR, place.numel()
        if start < i and (held + size > limit or kinds[i] != kinds[start]):
            yield start, i, None
            start, held = i, 0
        held += size
        if size > limit and i not in whole:
            rows = max(1, limit * len(place) // size)
            yield from ((i, i + 1, slice(first, first + rows)) for first in range(0, len(place), rows))
            start, held = i + 1, 0
    if start < len(places):
        yield start, len(places), None


def give_scratch(portions: Sequence[Portion]) -> None:
    """One flat tensor for all portions of a device and type."""
    for kind in {(portion.places[0].device, portion.wide) for portion in portions}:
        alike = [portion for portion in portions if (portion.places[0].device, portion.wide) == kind]
        scratch = torch.empty(max(portion.size for portion in alike), device=kind[0], dtype=kind[1])
        for portion in alike:
            portion.use(scratch)


class Portion:
    """Weights that are handled at once: some small tensors, or some rows of a large one."""

    def __init__(self, places: Sequence[Tensor], home: Sequence[Tensor], start: int, stop: int, rows: slice | None):
        self.start, self.stop, self.rows = start, stop, rows
        self._length = len(places[start]) if rows is not None else 0
        self.places, self.home = self.of(places), self.of(home)
        self.wide = wide(self.places[0].dtype)
        self.size = sum(place.numel() for place in self.places)
        self.saved = False

    def use(self, scratch: Tensor) -> None:
        """Memory for `read`, which all portions share: fresh memory would cost more than the arithmetic done in it."""
        self.flat = scratch[: self.size]
        self._parts = self.shaped(self.flat)

    def shaped(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor like the places."""
        return list(torch._utils._unflatten_dense_tensors(flat, self.places))  # type: ignore[no-untyped-call]

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """This portion of a list. Tensors that broadcast over the rows are not cut."""
        if self.rows is None:
            return list(tensors[self.start : self.stop])
        tensor = tensors[self.start]
        return [tensor[self.rows] if tensor.ndim > 0 and len(tensor) == self._length else tensor]

    def widened(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """This portion of a list in the type of the walk, not to be overwritten."""
        return [values.to(self.wide) for values in self.of(tensors)]

    def read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """A copy of this portion in the type of the walk, to be overwritten. It is valid until any portion is read.

        The copies are views of `flat`: what is done alike to all weights takes one call there.
        """
        return self.copy(self.of(tensors))

    def copy(self, values: list[Tensor]) -> list[Tensor]:
        """Like `read`, of tensors that are this portion already."""
        torch._foreach_copy_(self._parts, values)
        return self._parts

    def displace(self, values: list[Tensor], reach: list[Tensor]) -> None:
        """Put the weights at home + values * reach, rounded once where their type is narrow; save them before."""
        if self.saved:
            torch._foreach_copy_(self.places, self.home)
        else:
            torch._foreach_copy_(self.home, self.places)
            self.saved = True
        if self.places[0].dtype == self.wide:
            torch._foreach_addcmul_(self.places, values, reach)
        else:
            home = [saved.to(self.wide) for saved in self.home]
            torch._foreach_copy_(self.places, torch._foreach_addcmul(home, values, reach))

    def restore(self) -> None:
        if self.saved:
            torch._foreach_copy_(self.places, self.home)
