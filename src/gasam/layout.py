"""Who moves together: the weights cut into stretches of handy size, and the groups that share a scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gasam.tensors import Bundle, Slice, SparseRows, Stretch, wide

Granularity = Literal["element", "filter", "layer", "module", "model"]
GRANULARITIES: tuple[str, ...] = get_args(Granularity)


class Sizes(NamedTuple):
    """How weights are cut: tensors below `small` are put together, up to `large`; larger ones are cut there.

    On a CPU a stretch and its scratch should stay in the caches, so that each weight crosses memory once;
    on an accelerator calls are what costs.
    """

    small: int
    large: int


CPU = Sizes(small=1 << 14, large=1 << 18)
ACCELERATOR = Sizes(small=1 << 18, large=1 << 28)


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
        return self.together([measure(stretch) for stretch in self.stretches])

    def ones(self) -> Tensor:
        """One for each piece."""
        return torch.ones(len(self.groups), dtype=self.sizes.dtype, device=self.sizes.device)

    def total_of(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        return self.collect(measure).sum()

    def largest_of(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        measured = self.collect(measure)
        return measured.amax() if measured.numel() else measured.sum()

    def spread(self, pieces: Tensor) -> Callable[[Stretch], Tensor]:
        """One value a piece, over the weights of each stretch; a single number where it has one piece."""
        numbers = pieces.unbind() if len(pieces) == len(self.stretches) else pieces

        def over(stretch: Stretch) -> Tensor:
            if stretch.lengths is None:
                return numbers[stretch.pieces.start].to(stretch.device)
            own = pieces[stretch.pieces].to(stretch.device, stretch.wide)
            return torch.repeat_interleave(own, stretch.lengths, output_size=stretch.size)

        return over

    def together(self, measured: Sequence[Tensor]) -> Tensor:
        if len({stretch.device for stretch in self.stretches}) > 1:
            measured = [values.to(self.sizes.device) for values in measured]
        return torch.hstack(list(measured)).to(self.sizes) if measured else self.sizes.new_zeros(0)


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
        present = [i for i, t in enumerate(self.tensors) if t.grad is not None and t.requires_grad]
        sparse = [i for i in present if self.tensors[i].grad.is_sparse]  # type: ignore[union-attr]
        dense = [i for i in present if i not in sparse] if sparse else present
        signature = [(i, t.shape, t.dtype, t.device, t.is_contiguous()) for i in dense for t in (self.tensors[i],)]
        if signature != self._signature:
            self._signature, self._layout = signature, None
            self._stretches = list(_cut([self.tensors[i] for i in dense if self.tensors[i].numel()]))
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
            stretch.put(stretch.weights() - stretch.home, [of[id(tensor)] for tensor in stretch.tensors])
        return offsets

    def _named(self, present: Sequence[int]) -> dict[str, Tensor]:
        return {self.names[i]: self.tensors[i] for i in present}


def _cut(tensors: Sequence[Tensor]) -> Iterator[Stretch]:
    """Large tensors in slices, neighbouring small ones of a kind together; what is not contiguous stays whole."""
    for (device, dtype), run in groupby(tensors, key=lambda t: (t.device, t.dtype)):
        small, large = CPU if device.type == "cpu" else ACCELERATOR
        bundles: list[list[Tensor]] = []
        for tensor in run:
            if tensor.numel() >= small and tensor.is_contiguous():
                for start in range(0, tensor.numel(), large):
                    yield Slice(tensor, start, min(start + large, tensor.numel()))
            elif bundles and _weights_in(bundles[-1]) + tensor.numel() <= large:
                bundles[-1].append(tensor)
            else:
                bundles.append([tensor])
        scratch = torch.empty(max(map(_weights_in, bundles), default=0), dtype=wide(dtype), device=device)
        for bundle in bundles:
            yield Bundle(bundle, scratch)


def _weights_in(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


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
    sums = torch.float32 if device.type == "mps" else torch.float64  # tiny vectors: as wide as the device can
    return Layout(
        stretches=stretches,
        groups=torch.tensor(groups, dtype=torch.int64, device=device),
        sizes=torch.tensor(sizes, dtype=sums, device=device),
        dimensions=torch.tensor(dimensions, dtype=sums, device=device),
        labels=list(index),
        total=sum(tensor.numel() for tensor in tensors.values()),
    )


def _runs(stretch: Stretch, names: dict[int, str], granularity: str) -> Iterator[tuple[str, int, int, int]]:
    """(group, weights here, weights that count towards n_i, dimensions) of each run of one group in a stretch.

    The two counts differ for sparse rows alone: the untouched rows are not here, and count.
    """
    for tensor in stretch.tensors:
        name, ndim = names[id(tensor)], tensor.ndim
        here = stretch.size if len(stretch.tensors) == 1 else tensor.numel()
        if granularity == "filter" and ndim >= 2:
            row = tensor[0].numel()
            first, end = (stretch.start, stretch.stop) if isinstance(stretch, Slice) else (0, here)
            for start in range(first - first % row, end, row):
                length = min(start + row, end) - max(start, first)
                yield f"{name}[{start // row}]", length, length, ndim
        else:
            counted = tensor.numel() if isinstance(stretch, SparseRows) else here
            yield _group_label(name, granularity), here, counted, ndim


def _group_label(name: str, granularity: str) -> str:
    if granularity == "module":
        return name.rpartition(".")[0] or "(top)"
    return "(model)" if granularity == "model" else name
