"""Who moves together: the weights cut into stretches of handy size, and the groups that share a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import torch
from torch import Tensor

from gasam.tensors import SparseRows, Stretch, stretch_size, sums

Granularity = Literal["element", "filter", "layer", "module", "model"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)


@dataclass(frozen=True)
class Layout:
    """The weights of one step. A piece is the part of a stretch that belongs to one group.

    Element-wise every weight has its own scale; there the groups are the tensors, and only the trace uses them.
    """

    stretches: Sequence[Stretch]
    groups: Tensor  # the group of each piece
    sizes: Tensor  # n_i: how many weights each group has
    dimensions: Tensor  # of each group's tensor, the most where there are several
    labels: Sequence[str]
    total: int  # n

    def to_groups(self, pieces: Tensor) -> Tensor:
        return torch.zeros_like(self.sizes).index_add_(0, self.groups, pieces)

    def to_pieces(self, groups: Tensor) -> Tensor:
        return groups[self.groups]

    def collect(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        """One number a piece, measured stretch by stretch and brought together in the type of sums."""
        measured = [measure(stretch).to(self.sizes) for stretch in self.stretches]
        return torch.cat(measured) if measured else torch.zeros_like(self.sizes)


class Weights:
    """The tensors that may move, with the buffers of their stretches from one step to the next."""

    def __init__(self, tensors: Sequence[Tensor], granularity: str = "layer", names: Sequence[str] = ()) -> None:
        self.tensors = list(tensors)
        self.granularity = granularity
        self.names = list(names) or [f"parameter {i}" for i in range(len(self.tensors))]
        self.walking = False
        self._signature: object = None
        self._stretches: Sequence[Stretch] = ()
        self._layout: Layout | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"walking": False, "_signature": None, "_stretches": (), "_layout": None}

    def taking_part(self) -> Layout:
        """The layout of the tensors that have a gradient now."""
        present = [i for i, t in enumerate(self.tensors) if t.requires_grad and t.grad is not None and t.numel()]
        sparse = [i for i in present if self.tensors[i].grad.is_sparse]  # type: ignore[union-attr]
        dense = [i for i in present if i not in sparse] if sparse else present
        signature = [(i, t.shape, t.dtype, t.device, t.is_contiguous()) for i in dense for t in (self.tensors[i],)]
        if signature != self._signature:
            self._signature, self._layout = signature, None
            self._stretches = list(_cut([self.tensors[i] for i in dense]))
        if sparse or self._layout is None:
            rows = [SparseRows(self.tensors[i]) for i in sparse]
            layout = _lay_out([*self._stretches, *rows], self._named(present), self.granularity)
            if sparse:
                return layout
            self._layout = layout
        return self._layout

    def offset(self, moved: Sequence[Stretch]) -> list[Tensor]:
        """Where the weights are, less where they are at home."""
        offsets = [torch.zeros_like(tensor) for tensor in self.tensors]
        of = {id(tensor): offset for tensor, offset in zip(self.tensors, offsets, strict=True)}
        for stretch in moved:
            assert stretch.home is not None
            stretch.put(stretch.weights() - stretch.home, [of[id(tensor)] for tensor in stretch.tensors])
        return offsets

    def _named(self, present: Sequence[int]) -> dict[str, Tensor]:
        return {self.names[i]: self.tensors[i] for i in present}


def _cut(tensors: Sequence[Tensor]) -> Iterator[Stretch]:
    """Large tensors in slices, small ones of a kind together; a large one that is not contiguous stays whole."""
    for (device, _), run in groupby(tensors, key=lambda t: (t.device, t.dtype)):
        limit, together, held = stretch_size(device), list[Tensor](), 0
        for tensor in run:
            if together and held + tensor.numel() > limit:
                yield Stretch(together)
                together, held = [], 0
            if tensor.numel() > limit and device.type == "cpu" and tensor.is_contiguous():
                for start in range(0, tensor.numel(), limit):
                    yield Stretch([tensor], slice(start, min(start + limit, tensor.numel())))
            else:
                together.append(tensor)
                held += tensor.numel()
        if together:
            yield Stretch(together)


def _lay_out(stretches: Sequence[Stretch], tensors: dict[str, Tensor], granularity: str) -> Layout:
    names = {id(tensor): name for name, tensor in tensors.items()}
    index: dict[str, int] = {}
    sizes: list[int] = []
    dimensions: list[int] = []
    groups: list[int] = []
    for stretch in stretches:
        lengths = []
        for label, run in groupby(_runs(stretch, names, granularity), key=lambda r: r[0]):
            parts = list(run)
            group = index.setdefault(label, len(index))
            if group == len(sizes):
                sizes.append(0)
                dimensions.append(0)
            groups.append(group)
            lengths.append(sum(length for _, length, _, _ in parts))
            sizes[group] += sum(count for _, _, count, _ in parts)
            dimensions[group] = max(dimensions[group], *(ndim for _, _, _, ndim in parts))
        stretch.pieces = slice(len(groups) - len(lengths), len(groups))
        stretch.lengths = torch.tensor(lengths, device=stretch.device) if len(lengths) > 1 else None
    device = stretches[0].device if stretches else torch.device("cpu")
    return Layout(
        stretches=stretches,
        groups=torch.tensor(groups, dtype=torch.int64, device=device),
        sizes=torch.tensor(sizes, dtype=sums(device), device=device),
        dimensions=torch.tensor(dimensions, dtype=sums(device), device=device),
        labels=list(index),
        total=sum(tensor.numel() for tensor in tensors.values()),
    )


def _runs(stretch: Stretch, names: dict[int, str], granularity: str) -> Iterator[tuple[str, int, int, int]]:
    """(group, weights here, weights that count towards n_i, dimensions) of each run of one group in a stretch.

    The two counts differ for sparse rows alone: the untouched rows are not here, and count.
    """
    for tensor in stretch.tensors:
        name, ndim = names[id(tensor)], tensor.ndim
        if granularity == "filter" and ndim >= 2:
            row = tensor[0].numel()
            span = stretch.span or slice(0, stretch.size if isinstance(stretch, SparseRows) else tensor.numel())
            for start in range(span.start - span.start % row, span.stop, row):
                length = min(start + row, span.stop) - max(start, span.start)
                yield f"{name}[{start // row}]", length, length, ndim
        else:
            here = stretch.size if len(stretch.tensors) == 1 else tensor.numel()
            counted = tensor.numel() if isinstance(stretch, SparseRows) else here
            yield _group_label(name, granularity), here, counted, ndim


def _group_label(name: str, granularity: str) -> str:
    if granularity == "module":
        return name.rpartition(".")[0] or "(top)"
    return "(model)" if granularity == "model" else name
