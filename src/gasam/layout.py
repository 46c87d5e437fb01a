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
    """How weights are cut: tensors below `small` are put together, up to `bundle`; others are cut at `large`.

    On a CPU a stretch and its scratch should stay in the caches, so that each weight crosses memory once;
    on an accelerator calls are what costs.
    """

    small: int
    bundle: int
    large: int


CPU = Sizes(small=1 << 14, bundle=1 << 16, large=1 << 18)
ACCELERATOR = Sizes(small=1 << 18, bundle=1 << 24, large=1 << 28)


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

    @property
    def one(self) -> Tensor:
        """The number 1 in the type of sums."""
        return self.sizes.new_ones(())

    def total_of(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        return self.collect(measure).sum()

    def largest_of(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        measured = self.collect(measure)
        return measured.amax() if measured.numel() else measured.sum()

    def spread(self, pieces: Tensor) -> Callable[[Stretch], Tensor]:
        """One value a piece, over the weights of each stretch; a number where one is for all, or the piece is all."""
        if pieces.ndim == 0:
            return lambda stretch: pieces.to(stretch.device)
        # A view of each number at once is cheap where nearly all are wanted, not where each row is a piece.
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

    def __init__(self, tensors: Sequence[Tensor], names: Sequence[str] | None = None) -> None:
        self.tensors = list(tensors)
        self.names = names
        self.walking = False
        self.moved: list[Stretch] = []  # what is not at home
        self._signature: object = None
        self._stretches: Sequence[Stretch] = ()
        self._layout: Layout | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"walking": False, "moved": [], "_signature": None, "_stretches": (), "_layout": None}

    def check(self, granularity: str) -> None:
        if granularity == "module" and self.names is None:
            raise ValueError(
                "granularity 'module' needs the parameters' names: give model.named_parameters() instead of "
                "model.parameters(), to the base optimizer where there is one"
            )

    def taking_part(self, granularity: str) -> Layout:
        """The layout of the tensors that have a gradient now."""
        self.check(granularity)
        present = [t for t in self.tensors if t.grad is not None and t.requires_grad]
        sparse = [t for t in present if t.grad.is_sparse and _has_rows(t)]  # type: ignore[union-attr]
        dense = [t for t in present if not _has_rows(t)] if sparse else present
        signature = _signature(dense), granularity
        if signature != self._signature:
            self._signature, self._layout = signature, None
            self._stretches = list(_cut([t for t in dense if t.numel()]))
        if sparse:
            rows = [SparseRows(t, by_row=granularity == "filter") for t in sparse]
            return self._lay_out([*self._stretches, *rows], present, granularity)
        if self._layout is None:
            self._layout = self._lay_out(self._stretches, present, granularity)
        return self._layout

    @torch.no_grad()
    def offset(self) -> list[Tensor]:
        """Where the weights are, less where they are at home."""
        offsets = [torch.zeros_like(tensor) for tensor in self.tensors]
        of = {id(tensor): offset for tensor, offset in zip(self.tensors, offsets, strict=True)}
        for stretch in self.moved:
            stretch.put(stretch.weights() - stretch.home, [of[id(tensor)] for tensor in stretch.tensors])
        return offsets

    @torch.no_grad()
    def go_home(self) -> None:
        """Put the very same bits back. The last comes first: tensors may share their storage."""
        for stretch in reversed(self.moved):
            stretch.restore()
        self.moved = []
        torch.clear_autocast_cache()

    def _lay_out(self, stretches: Sequence[Stretch], present: Sequence[Tensor], granularity: str) -> Layout:
        names = self.names or [f"parameter {i}" for i in range(len(self.tensors))]
        groups = Groups(granularity, {id(t): name for t, name in zip(self.tensors, names, strict=True)})
        for stretch in stretches:
            groups.add(stretch)
        device = stretches[0].device if stretches else torch.device("cpu")
        sums = torch.float32 if device.type == "mps" else torch.float64  # tiny vectors: as wide as the device can
        return Layout(
            stretches=stretches,
            groups=torch.tensor(groups.of_pieces, dtype=torch.int64, device=device),
            sizes=torch.tensor(groups.sizes, dtype=sums, device=device),
            dimensions=torch.tensor(groups.dimensions, dtype=sums, device=device),
            labels=groups.labels,
            total=_weights_in(present),
        )


def _has_rows(tensor: Tensor) -> bool:
    """Whether its gradient is sparse; one without any row is as good as dense."""
    return tensor.grad is not None and tensor.grad.is_sparse and tensor.grad._nnz() > 0


def _signature(tensors: Sequence[Tensor]) -> object:
    """What the buffers were made for. Lists, not a tuple a tensor: a thousand new tuples a step wake the collector."""
    kinds = [t.dtype for t in tensors], [t.device for t in tensors], [t.is_contiguous() for t in tensors]
    return [id(t) for t in tensors], [t.shape for t in tensors], *kinds


def _cut(tensors: Sequence[Tensor]) -> Iterator[Stretch]:
    """Large tensors in slices, neighbouring small ones of a kind together; what is not contiguous stays whole."""
    for (device, dtype), run in groupby(tensors, key=lambda t: (t.device, t.dtype)):
        sizes = CPU if device.type == "cpu" else ACCELERATOR
        slices: list[tuple[Tensor, int, int]] = []
        bundles: list[list[Tensor]] = []
        for tensor in run:
            n = tensor.numel()
            if n >= sizes.small and tensor.is_contiguous():
                slices += [(tensor, start, min(start + sizes.large, n)) for start in range(0, n, sizes.large)]
            elif bundles and _weights_in(bundles[-1]) + n <= sizes.bundle:
                bundles[-1].append(tensor)
            else:
                bundles.append([tensor])
        largest = max([stop - start for _, start, stop in slices] + [_weights_in(bundle) for bundle in bundles])
        scratch = torch.empty(largest, dtype=wide(dtype), device=device)
        yield from (Slice(*part, scratch) for part in slices)
        yield from (Bundle(bundle, scratch) for bundle in bundles)


def _weights_in(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


class Groups:
    """Numbers the groups as the stretches come, and tells each stretch its pieces."""

    def __init__(self, granularity: str, names: dict[int, str]) -> None:
        self.granularity = granularity
        self.names = names
        self.numbers: dict[object, int] = {}
        self.labels: list[str] = []
        self.sizes: list[int] = []
        self.dimensions: list[int] = []
        self.of_pieces: list[int] = []

    def add(self, stretch: Stretch) -> None:
        """Neighbouring runs of one group are one piece."""
        first, lengths = len(self.of_pieces), list[int]()
        for tensor in stretch.tensors:
            for group, length in self._runs(stretch, tensor):
                if lengths and self.of_pieces[-1] == group:
                    lengths[-1] += length
                else:
                    self.of_pieces.append(group)
                    lengths.append(length)
        stretch.pieces = slice(first, len(self.of_pieces))
        stretch.lengths = torch.tensor(lengths, device=stretch.device) if len(lengths) > 1 else None

    def _runs(self, stretch: Stretch, tensor: Tensor) -> Iterator[tuple[int, int]]:
        """(group, how many weights) in the order they lie."""
        name = self.names[id(tensor)]
        start, stop = (stretch.start, stretch.stop) if isinstance(stretch, Slice) else (0, tensor.numel())
        if isinstance(stretch, SparseRows):
            stop = stretch.size
        if self.granularity == "filter" and tensor.ndim >= 2:
            row = tensor[0].numel()
            numbers = stretch.rows.tolist() if isinstance(stretch, SparseRows) else range(len(tensor))
            for i in range(start // row, -(-stop // row)):
                length = min((i + 1) * row, stop) - max(i * row, start)
                yield self._group((id(tensor), numbers[i]), f"{name}[{numbers[i]}]", length, tensor.ndim), length
            return
        # The rows that a sparse gradient did not touch are not here, and count.
        counted = tensor.numel() if isinstance(stretch, SparseRows) else stop - start
        module = name.rpartition(".")[0]
        key, label = {"module": (module, module), "model": ("", "(model)")}.get(self.granularity, (id(tensor), name))
        yield self._group(key, label, counted, tensor.ndim), stop - start

    def _group(self, key: object, label: str, size: int, dimensions: int) -> int:
        group = self.numbers.setdefault(key, len(self.numbers))
        if group == len(self.labels):
            self.labels.append(label)
            self.sizes.append(0)
            self.dimensions.append(0)
        self.sizes[group] += size
        self.dimensions[group] = max(self.dimensions[group], dimensions)
        return group
