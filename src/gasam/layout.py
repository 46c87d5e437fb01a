"""The weights cut into stretches of handy size, and sums over their pieces, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gasam.groups import Groups, check_names
from gasam.sharded import Kind, by_sharding, forget_derived, is_sharded, kinds_of, local, sharding, shardings_of
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
    kinds: Sequence[Kind] = ()  # how they are sharded; empty where every weight is here

    def to_groups(self, pieces: Tensor, doubt: Tensor | float = 0.0) -> Tensor:
        """Sums over each group's pieces, wherever they lie. A doubt is 0, or NaN: that reaches all processes."""

        def here(part: slice = slice(None)) -> Tensor:
            sums = pieces.new_zeros(*pieces.shape[:-1], len(self.sizes))
            return sums.index_add_(-1, self.groups[part], pieces[..., part])

        if not self.kinds:
            return here()
        return self._over_kinds([here(kind.pieces) + doubt for kind in self.kinds]).sum(0)

    def to_pieces(self, groups: Tensor) -> Tensor:
        return groups[self.groups]

    def collect(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        """One number a piece, or one a stretch, brought together in the type of sums."""
        return self.together([measure(stretch) for stretch in self.stretches])

    @property
    def one(self) -> Tensor:
        """The number 1 in the type of sums."""
        return self.sizes.new_ones(())

    def total_of(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        """Of one number a stretch."""
        return self.sum_of_stretches(self.collect(measure))

    def sum_of_pieces(self, pieces: Tensor) -> Tensor:
        if not self.kinds:
            return pieces.sum()
        return self._over_kinds([pieces[kind.pieces].sum() for kind in self.kinds]).sum()

    def sum_of_stretches(self, rows: Tensor) -> Tensor:
        """Of a number or a row a stretch."""
        if not self.kinds:
            return rows.sum(0)
        return self._over_kinds([rows[kind.stretches].sum(0) for kind in self.kinds]).sum(0)

    def largest_of(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        """Of one number a stretch, none of them below 0."""
        measured = self.collect(measure)
        if not self.kinds:
            return _largest(measured)
        return self._over_kinds([_largest(measured[kind.stretches]) for kind in self.kinds], "max").amax()

    def are_finite(self, measure: Callable[[Stretch], Tensor]) -> Tensor:
        """Of one number a stretch. Counted, for the largest over processes may pass over a NaN."""
        return self.sum_of_stretches((~self.collect(measure).isfinite()).to(self.sizes)) == 0

    def _over_kinds(self, here: Sequence[Tensor], how: str = "sum") -> Tensor:
        return torch.stack([kind.over_processes(part, how) for kind, part in zip(self.kinds, here, strict=True)])

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
        self.sharded = any(map(is_sharded, self.tensors))
        self.walking = False
        self.moved: list[Stretch] = []  # what is not at home
        self._signature: object = None
        self._stretches: Sequence[Stretch] = ()
        self._layout: Layout | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"walking": False, "moved": [], "_signature": None, "_stretches": (), "_layout": None}

    def taking_part(self, granularity: str) -> Layout:
        """The layout of the tensors that have a gradient now."""
        check_names(granularity, self.names)
        present = [t for t in self.tensors if t.grad is not None and t.requires_grad]
        sparse = [t for t in present if t.grad.is_sparse and _has_rows(t)]  # type: ignore[union-attr]
        dense = [t for t in present if not _has_rows(t)] if sparse else present
        if self.sharded:
            dense = by_sharding(dense)
        signature = _signature(dense, self.sharded), granularity
        if signature != self._signature:
            self._signature, self._layout = signature, None
            self._stretches = list(_cut([t for t in dense if local(t).numel()]))
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
        of = {id(tensor): local(offset) for tensor, offset in zip(self.tensors, offsets, strict=True)}
        for stretch in self.moved:
            stretch.put(stretch.weights() - stretch.home, [of[id(tensor)] for tensor in stretch.tensors])
        return offsets

    @torch.no_grad()
    def go_home(self) -> None:
        """Put the very same bits back. The last comes first: tensors may share their storage."""
        for stretch in reversed(self.moved):
            stretch.restore()
        self.moved = []
        self.forget_derived()

    def forget_derived(self) -> None:
        """The weights have been written: what was computed from them is out of date."""
        if self.sharded:
            forget_derived(self.tensors)
        else:
            torch.clear_autocast_cache()

    def _lay_out(self, stretches: Sequence[Stretch], present: Sequence[Tensor], granularity: str) -> Layout:
        names = self.names or [f"parameter {i}" for i in range(len(self.tensors))]
        groups = Groups(granularity, {id(t): name for t, name in zip(self.tensors, names, strict=True)})
        if self.sharded:  # each process has but parts, and all must count alike
            groups.count(present)
        for stretch in stretches:
            groups.add(stretch)
        device = present[0].device if present else torch.device("cpu")
        sums = torch.float32 if device.type == "mps" else torch.float64  # tiny vectors: as wide as the device can
        return Layout(
            stretches=stretches,
            groups=torch.tensor(groups.of_pieces, dtype=torch.int64, device=device),
            sizes=torch.tensor(groups.sizes, dtype=sums, device=device),
            dimensions=torch.tensor(groups.dimensions, dtype=sums, device=device),
            labels=groups.labels,
            total=_weights_in(present),
            kinds=kinds_of(shardings_of(present), stretches) if self.sharded else (),
        )


def _has_rows(tensor: Tensor) -> bool:
    """Whether its gradient is one of rows; without any, or sparse within them, it is as good as dense."""
    grad = tensor.grad
    return grad is not None and grad.is_sparse and grad.sparse_dim() == 1 and grad._nnz() > 0


def _largest(values: Tensor) -> Tensor:
    return values.amax() if values.numel() else values.sum()


def _signature(tensors: Sequence[Tensor], sharded: bool) -> object:
    """What the buffers were made for. Lists, not a tuple a tensor: a thousand new tuples a step wake the collector."""
    kinds = [t.dtype for t in tensors], [t.device for t in tensors], [t.is_contiguous() for t in tensors]
    places = [id(local(t)) for t in tensors] if sharded else []
    return [id(t) for t in tensors], [t.shape for t in tensors], *kinds, places


def _cut(tensors: Sequence[Tensor]) -> Iterator[Stretch]:
    """Large tensors in slices, neighbouring small ones of a kind together; what is not contiguous stays whole."""
    for (device, dtype, _), run in groupby(tensors, key=lambda t: (t.device, t.dtype, sharding(t))):
        sizes = CPU if device.type == "cpu" else ACCELERATOR
        slices: list[tuple[Tensor, int, int]] = []
        bundles: list[list[Tensor]] = []
        for tensor in run:
            n = local(tensor).numel()
            if n >= sizes.small and local(tensor).is_contiguous():
                slices += [(tensor, start, min(start + sizes.large, n)) for start in range(0, n, sizes.large)]
            elif bundles and _weights_here(bundles[-1]) + n <= sizes.bundle:
                bundles[-1].append(tensor)
            else:
                bundles.append([tensor])
        largest = max([stop - start for _, start, stop in slices] + [_weights_here(bundle) for bundle in bundles])
        scratch = torch.empty(largest, dtype=wide(dtype), device=device)
        yield from (Slice(*part, scratch) for part in slices)
        yield from (Bundle(bundle, scratch) for bundle in bundles)


def _weights_in(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _weights_here(tensors: Sequence[Tensor]) -> int:
    return sum(local(tensor).numel() for tensor in tensors)
