"""`Groups`: the weights that take part in a walk, cut into pieces; which of them share a T; sums over groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from operator import attrgetter, is_not
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gasam.distributed import check_gradient, first_row, is_sharded, over_processes, shard_index, sharding
from gasam.torch_private import copy_all, get_gradient, local


class Limits(NamedTuple):
    """Sizes in weights: tensors of up to `small` share a piece; tensors larger than `largest` are cut."""

    small: int
    largest: int


# On a CPU a piece and its intermediate results should fit the caches.
CPU = Limits(small=1 << 14, largest=1 << 17)
# On an accelerator every call is expensive, so the limits only bound the memory of intermediate results.
ACCELERATOR = Limits(small=1 << 18, largest=1 << 24)
COLUMNS = 64
"""The width of the matrix that small tensors share. Each begins with a new row, which also keeps it aligned."""


def limits(tensor: Tensor) -> Limits:
    return CPU if tensor.device.type == "cpu" else ACCELERATOR


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which a walk over weights of this type is computed: float32, or their type if it is wider."""
    return torch.promote_types(dtype, torch.float32)


def products(x: Tensor, y: Tensor) -> Tensor:
    """The sum of x * y in each row of a matrix; one number for a vector."""
    return torch.dot(x, y) if x.ndim == 1 else (x * y).sum(1)


def squares(x: Tensor) -> Tensor:
    """The sum of squares in each row of a matrix; one number for a vector."""
    if x.ndim == 1:
        return torch.dot(x, x)
    # The norm needs no temporary tensor, but adds long float32 rows up one after another.
    return torch.linalg.vector_norm(x, dim=1).square_() if x.shape[1] <= 1 << 10 else (x * x).sum(1)


@dataclass(eq=False)
class Operand:
    """A parameter that takes part: its weights are read from `source`, and w + a is written to `target`."""

    parameter: Tensor
    name: str
    memory: Tensor  # the weights of this process
    source: Tensor  # the same memory, or a copy that is made when a walk begins
    target: Tensor | None = None  # in the memory order of the source; None for a small tensor, which gets a packed one

    def gradient(self) -> Tensor:
        """The dense gradient of these weights; zeros if a later pass gave none."""
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.source)
        if is_sharded(gradient):
            check_gradient(self.parameter)
        return local(gradient).to_dense()


class Piece:
    """A vector of weights of one group, or a matrix whose rows belong to one group each.

    Walks are computed in the type `wide`, and rounded once to the type of the weights.
    """

    for_h: Tensor  # memory for results, which all pieces of a device and type share
    for_v: Tensor
    for_w: Tensor
    for_move: Tensor  # for T v: the target, if what is written there stays until the weights move, else as the others

    def __init__(self, source: Tensor, target: Tensor, shard: int = 0, *, is_free: bool = False) -> None:
        self.source, self.target, self.shard = source, target, shard
        self.wide = wide(target.dtype)
        self.keeps_move = is_free and self.wide == target.dtype
        self.kind = target.device, self.wide
        self.rows = 1 if target.ndim == 1 else len(target)
        self._buffers: dict[str, Tensor] = {}

    def buffer(self, name: str) -> Tensor:
        """A tensor of this shape that is kept between steps; zeros at first."""
        if name not in self._buffers:
            self._buffers[name] = torch.zeros_like(self.target, dtype=self.wide)
        return self._buffers[name]

    def without_padding(self, numbers: Tensor) -> Tensor:
        """The numbers of this shape, with zeros where there is no weight."""
        return numbers

    def weights(self) -> Tensor:
        """w. Do not write to it, because it may be the weights themselves."""
        return self.source.to(self.wide)

    def write(self, values: Tensor, factor: Tensor) -> None:
        """Write w + factor * values."""
        if self.wide == self.target.dtype:
            torch.addcmul(self.source, values, factor, out=self.target)
        else:
            self.target.copy_(torch.addcmul(self.weights(), values, factor))


class Packed(Piece):
    """Small tensors in one matrix with zeros between them, each in rows of its own: copies that the walk displaces."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.counts = [-(-tensor.numel() // COLUMNS) for tensor in tensors]
        matrix = tensors[0].new_zeros(sum(self.counts), COLUMNS)
        super().__init__(matrix, matrix)
        self._tensors, self._shapes = tensors, [(tensor.shape, tensor.stride()) for tensor in tensors]
        self._views: dict[str, list[Tensor]] = {}
        self.copies = self._views_of(matrix)

    def load(self) -> None:
        """Copy w."""
        copy_all(self.copies, self._tensors)

    def without_padding(self, numbers: Tensor) -> Tensor:
        return numbers.masked_fill(self._padding, 0.0)

    @cached_property
    def _padding(self) -> Tensor:
        padding = torch.ones_like(self.target, dtype=torch.bool)
        for view in self._views_of(padding):
            view.fill_(False)
        return padding

    def _views_of(self, matrix: Tensor) -> list[Tensor]:
        """A view of the matrix for each tensor, with the strides of the tensor."""
        rows = accumulate(self.counts, initial=0)
        return [matrix.as_strided(*shape, row * COLUMNS) for shape, row in zip(self._shapes, rows, strict=False)]

    def read(self, tensors: list[Tensor], name: str) -> Tensor:
        """The tensors as a matrix, which is kept under this name until the next call."""
        if name not in self._views:
            self._views[name] = self._views_of(self.buffer(name))
        copy_all(self._views[name], tensors)
        return self.buffer(name)


class Groups:
    """The groups of the operands, numbered from 0, and the pieces in which their weights are handled.

    With granularity "element" or "model" each tensor is a group here, for the cap and the trace. T is then one per
    weight or one for the model.
    """

    def __init__(self, operands: Sequence[Operand], granularity: str) -> None:
        self.operands, self.granularity = operands, granularity
        self._parameters = [operand.parameter for operand in operands]
        self.total = sum(parameter.numel() for parameter in self._parameters)  # n
        self.sharded = any(map(is_sharded, self._parameters))
        device = operands[0].source.device if operands else torch.device("cpu")
        kind = torch.float32 if device.type == "mps" else torch.float64  # the widest of the device; sums are few
        sizes, of = self._number()
        self.sizes = torch.tensor(sizes, dtype=kind, device=device)  # n_i
        self._cut(of)
        self._share_scratch()

    def _number(self) -> tuple[list[int], list[list[int]]]:
        """Name and number the groups: their sizes, and for each operand the groups of its rows here."""
        self.names = list[str]()
        sizes, of = list[int](), list[list[int]]()
        numbers, seen = dict[object, int](), Counter[str]()
        by_module = self.granularity == "module"
        for i, operand in enumerate(self.operands):
            parameter, name, in_rows = operand.parameter, operand.name, by_rows(operand.parameter, self.granularity)
            names = [f"{name}[{row}]" for row in range(len(parameter))] if in_rows else [name]
            seen[name] += 1  # 2 for a parameter of a second model, whose modules have groups of their own
            here = []
            for row, label in enumerate([name.rpartition(".")[0]] if by_module else names):
                number = numbers.setdefault((label, seen[name]) if by_module else (i, row), len(sizes))
                if number == len(sizes):
                    self.names.append(label)
                    sizes.append(0)
                sizes[number] += parameter.numel() // len(names)
                here.append(number)
            first = first_row(parameter)  # this process may hold only some rows of a sharded parameter
            of.append(here[first : first + len(operand.source)] if in_rows else here)
        return sizes, of

    def _cut(self, of: list[list[int]]) -> None:
        """Make the pieces; find the group of each row, and which sums are added up over which processes."""
        small: dict[Any, list[int]] = {}
        for i, operand in enumerate(self.operands):
            if operand.target is None:
                small.setdefault((operand.memory.device, operand.memory.dtype), []).append(i)
        self.packs = [(Packed([self.operands[i].memory for i in members]), members) for members in small.values()]
        self._large = [i for i, operand in enumerate(self.operands) if operand.target is not None]
        self.pieces: list[Piece] = []
        rows, kinds = list[int](), list[Any]()
        for packed, members in self.packs:
            self.pieces.append(packed)
            for i, count, copy in zip(members, packed.counts, packed.copies, strict=True):
                self.operands[i].target = copy
                rows += of[i] * count
                kinds += [None] * count
        for i in self._large:
            operand, kind = self.operands[i], sharding(self._parameters[i])
            is_free, shard = operand.target is not operand.memory, shard_index(self._parameters[i])
            for source, target in zip(self._parts(i, operand.source), self._parts(i, operand.target), strict=True):
                self.pieces.append(Piece(source, target, shard, is_free=is_free))
                rows += of[i]
                kinds += [kind] * len(of[i])
        self._shardings = list(dict.fromkeys(map(sharding, self._parameters)))  # the same in all processes
        self._counts = [piece.rows for piece in self.pieces]
        self._group_of_row = torch.tensor(rows, dtype=torch.int64, device=self.sizes.device)
        places = [self._shardings.index(kind) * len(self.sizes) for kind in kinds]
        self._place_of_row = self._group_of_row + self._group_of_row.new_tensor(places)

    def _parts(self, i: int, tensor: Any) -> Sequence[Tensor]:
        """A tensor of a large operand as the parts of its pieces: a matrix if its rows are groups, else vectors."""
        like = self.operands[i].source
        if tensor.numel() == 0:
            return ()
        if not like.is_contiguous():
            tensor = tensor.permute(sorted(range(like.ndim), key=like.stride, reverse=True))
        if by_rows(self._parameters[i], self.granularity):
            return (tensor.reshape(len(tensor), -1),)
        return torch.split(tensor.reshape(-1), limits(tensor).largest)

    def _share_scratch(self) -> None:
        """Scratch tensors for each device and type, because allocation costs more than the arithmetic."""
        self._kinds = {piece.kind for piece in self.pieces}
        for kind in self._kinds:
            alike = [piece for piece in self.pieces if piece.kind == kind]
            memory = torch.empty(4, max(piece.target.numel() for piece in alike), device=kind[0], dtype=kind[1])
            for piece in alike:
                shape = piece.target.shape
                views = (part[: shape.numel()].view(shape) for part in memory)
                piece.for_h, piece.for_v, piece.for_w, piece.for_move = views
                piece.for_move = piece.target if piece.keeps_move else piece.for_move

    def gradients(self) -> list[Tensor]:
        """The gradient of each operand."""
        if not self.sharded:
            found = list(map(get_gradient, self._parameters))
            if all(map(partial(is_not, None), found)) and not any(map(attrgetter("is_sparse"), found)):
                return found
        return [operand.gradient() for operand in self.operands]

    def split(self, vectors: Sequence[Tensor], name: str = "gradient") -> list[Tensor]:
        """Cut a list that is parallel to the operands into the parts of the pieces, in any type.

        Do not write to the parts, because they may be the tensors themselves. The parts of packed tensors are valid
        until the next call with this name.
        """
        parts = [packed.read([vectors[i] for i in members], name) for packed, members in self.packs]
        for i in self._large:
            parts += self._parts(i, vectors[i])
        return parts

    def noise(self, seed: int) -> Iterable[Tensor]:
        """Numbers drawn uniformly from -1 to 1 for each piece, in memory that is used again for the next piece."""
        return _Noisy(self.pieces, seed)

    def each(self, parts: Iterable[Tensor]) -> Iterator[tuple[Piece, Tensor]]:
        """The pieces with their parts, in the type of the walk."""
        for piece, part in zip(self.pieces, parts, strict=True):
            yield piece, part.to(piece.wide)

    def sums(self, count: int, found: Iterable[Sequence[Tensor]], doubt: Tensor | float = 0.0) -> Tensor:
        """Add up, by group and over all processes, `count` numbers for each row of each piece.

        Returns a row for each of them. All share one collective for each kind of sharding. `doubt` is 0, or NaN if the
        loss of this process is not finite; it is added, so that NaN reaches every process.
        """
        groups, device = len(self.sizes), self.sizes.device
        total = self.sizes.new_zeros(count, len(self._shardings) * groups)
        columns = [torch.hstack([each.to(device) for each in column]) for column in zip(*found, strict=True)]
        if columns:
            total.index_add_(1, self._place_of_row, torch.stack(columns).to(total))
        total = total + doubt
        if not self.sharded:
            return total
        parts = zip(torch.split(total, groups, dim=1), self._shardings, strict=True)
        return torch.stack([over_processes(here, kind) for here, kind in parts]).sum(0)

    def largest(self, vectors: Iterable[Tensor]) -> Tensor:
        """The largest absolute value in the pieces' vectors, over all processes."""
        found = [values.abs().amax().to(self.sizes) for values in vectors]
        largest = torch.stack([self.sizes.new_zeros(()), *found]).amax()
        for kind in self._shardings:
            largest = over_processes(largest, kind, "max")
        return largest

    def spread(self, numbers: Tensor) -> list[Tensor]:
        """A number for each group, or one for all groups, as factors for each piece: one for each of its rows."""
        rows = numbers.expand(self.sizes.shape)[self._group_of_row]
        of_kind = {kind: torch.split(rows.to(*kind), self._counts) for kind in self._kinds}
        factors = [of_kind[piece.kind][i] for i, piece in enumerate(self.pieces)]
        pairs = zip(factors, self.pieces, strict=True)
        return [factor if piece.target.ndim == 1 else factor.unsqueeze(1) for factor, piece in pairs]


class _Noisy:
    """Draws the same numbers in every iteration, so that they need no memory of the size of the model."""

    def __init__(self, pieces: Sequence[Piece], seed: int) -> None:
        self.pieces, self.seed = pieces, seed

    def __iter__(self) -> Iterator[Tensor]:
        generators: dict[Any, torch.Generator] = {}
        memory: dict[Any, Tensor] = {}
        for piece in self.pieces:
            (device, kind), count = piece.kind, piece.target.numel()
            if (device, piece.shard) not in generators:
                seed = self.seed + (piece.shard << 32)
                generators[device, piece.shard] = torch.Generator(device).manual_seed(seed)
            words = torch.empty(-(-count // 8), dtype=torch.int64, device=device)
            words.random_(-(2**63), None, generator=generators[device, piece.shard])
            numbers = words.view(torch.int8)[:count]  # bytes take a sixth of the time of floats
            if piece.kind not in memory or memory[piece.kind].numel() < count:
                memory[piece.kind] = torch.empty(count, device=device, dtype=kind)
            values = memory[piece.kind][:count].copy_(numbers).add_(0.5).div_(127.5)
            yield piece.without_padding(values.view(piece.target.shape))


def by_rows(tensor: Tensor, granularity: str) -> bool:
    """Whether the rows of the tensor are groups."""
    return granularity == "filter" and tensor.ndim >= 2
