"""`Groups`: the weights that take part in a walk, as pieces; which of them share a T; sums over groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gasam.distributed import check_gradient, first_row, is_sharded, over_processes, sharding
from gasam.pieces import Packed, Piece, in_memory_order, limits
from gasam.torch_private import get_gradient, local, storage_identity


@dataclass
class Operand:
    """A parameter that takes part: its weights are read from `source`, and w + a is written to `target`."""

    parameter: Tensor  # with a gradient
    name: str
    strength: float  # factor of its T
    memory: Tensor  # all weights of this process
    source: Tensor
    target: Tensor | None = None  # memory of the same layout; None if the pieces may allocate it
    rows: Tensor | None = None  # that its sparse gradient touches; source and target have only these
    place: Tensor | None = None  # where the target is copied to, if the pieces can't write there
    adds: bool = False  # to what other operands write to the same memory

    def gradient(self) -> Tensor:
        """The gradient of these weights; zeros if a later pass gave none."""
        gradient = self.parameter.grad
        if gradient is None:
            return torch.zeros_like(self.source)
        if self.rows is not None:
            gradient = gradient.coalesce() if gradient.is_sparse else gradient
            return gradient.index_select(0, self.rows).to_dense()
        if is_sharded(gradient):
            check_gradient(self.parameter)
        return local(gradient).to_dense()


class Groups:
    """The groups of the operands, numbered from 0, and the pieces in which their weights are handled.

    With granularity "element" or "model" each tensor is a group here, for the cap and the trace. T is then one per
    weight or one for the model.
    """

    def __init__(self, operands: Sequence[Operand], granularity: str, known: dict[object, Packed]) -> None:
        self.operands, self.granularity = operands, granularity
        self._parameters = [operand.parameter for operand in operands]
        self.total = sum(operand.parameter.numel() for operand in operands)  # n
        self.names: list[str] = []
        self.dimensions: list[int] = []  # of the group's tensor, or the largest of several
        sizes, strengths = self._number()
        device = operands[0].source.device if operands else torch.device("cpu")
        kind = torch.float32 if device.type == "mps" else torch.float64  # the widest of the device; sums are few
        self.sizes = torch.tensor(sizes, dtype=kind, device=device)  # n_i
        self.strengths = self.sizes.new_tensor(strengths) if any(s != 1 for s in strengths) else None
        self.plain = not any(o.rows is not None or is_sharded(o.parameter) for o in operands)
        self.packed: dict[object, Packed] = {}
        self.pieces = self._cut(known)
        self._share_scratch()
        self._find_rows()

    def _number(self) -> tuple[list[int], list[float]]:
        """Number the groups; return their sizes and strengths. `_of` has an operand's group, or those of its rows."""
        self._of: list[int | range] = []
        self._rows: list[tuple[int, Iterable[int]]] = []  # (first group, rows) of operands whose rows are groups
        numbers: dict[object, int] = {}
        sizes, strengths = list[int](), list[float]()

        def add(operand: Operand, name: str, size: int, times: int = 1) -> None:
            self.names.extend([name] * times)
            self.dimensions.extend([operand.parameter.ndim] * times)
            sizes.extend([size] * times)
            strengths.extend([operand.strength] * times)

        for operand in self.operands:
            parameter, first = operand.parameter, len(sizes)
            if by_rows(parameter, self.granularity):
                rows: Any = range(len(parameter)) if operand.rows is None else operand.rows
                here = range(first, first + len(rows))
                if operand.rows is None:  # this process holds only some rows of a sharded parameter
                    here = here[first_row(parameter) :][: len(operand.source)]
                self._of.append(here)
                self._rows.append((first, rows))
                add(operand, operand.name, math.prod(parameter.shape[1:]), len(rows))
                continue
            by_module = self.granularity == "module"
            name = operand.name.rpartition(".")[0] if by_module else operand.name
            number = numbers.setdefault(name if by_module else id(parameter), first)
            if number == first:
                add(operand, name, 0)
            sizes[number] += parameter.numel()
            self.dimensions[number] = max(self.dimensions[number], parameter.ndim)
            self._of.append(number)
        return sizes, strengths

    @property
    def find_labels(self) -> Callable[[], list[str]]:
        """Finds the names of the groups when somebody asks, without keeping the groups alive."""
        return partial(_labels, self.names, self._rows)

    def _cut(self, known: dict[object, Packed]) -> list[Piece]:
        """Make the pieces: those with several rows first, because sums are joined in this order."""
        together: dict[Any, list[int]] = {}
        matrices, vectors = list[Piece](), list[Piece]()
        cut_into = list[int](), list[int]()
        for i, operand in enumerate(self.operands):
            source, target = operand.source, operand.target
            if target is None:
                together.setdefault((source.device, source.dtype, sharding(operand.parameter)), []).append(i)
            elif source.numel():
                in_rows = by_rows(operand.parameter, self.granularity)
                pieces = [
                    Piece(*part, [i]) for part in zip(self._parts(i, source), self._parts(i, target), strict=True)
                ]
                pieces[0].whole = operand.memory if operand.rows is not None and not in_rows else None
                (matrices if in_rows else vectors).extend(pieces)
                cut_into[not in_rows].append(i)
        for kind, members in together.items():
            sources = [self.operands[i].source for i in members]
            key = kind, *[(storage_identity(s), s.storage_offset(), s.shape, s.stride()) for s in sources]
            packed = known.get(key) or Packed(sources, members)
            packed.members, self.packed[key] = members, packed
            for i, target in zip(members, packed.targets, strict=True):
                self.operands[i].target = target
        self._order = [*cut_into[0], *cut_into[1]]
        return [*self.packed.values(), *matrices, *vectors]

    def _parts(self, i: int, tensor: Tensor) -> Sequence[Tensor]:
        """A tensor of an operand as the parts of its pieces: a matrix if its rows are groups, else vectors."""
        operand = self.operands[i]
        flat = in_memory_order(tensor, operand.source)
        if by_rows(operand.parameter, self.granularity):
            return (flat.view(len(operand.source), -1),)
        largest = limits(flat).largest
        return (flat,) if len(flat) <= largest or operand.rows is not None else torch.split(flat, largest)

    def _share_scratch(self) -> None:
        """Two scratch tensors for each device and type, because allocation costs more than the arithmetic."""
        self._kinds = {piece.kind for piece in self.pieces}
        for kind in self._kinds:
            alike = [piece for piece in self.pieces if piece.kind == kind]
            lengths = [piece.shape.numel() for piece in alike]
            scratch, spare = torch.empty(2, max(lengths), device=kind[0], dtype=kind[1])
            for piece, length in zip(alike, lengths, strict=True):
                piece.scratch, piece.spare = scratch[:length].view(piece.shape), spare[:length].view(piece.shape)

    def _find_rows(self) -> None:
        """Find the group of each row, and which sums are added up over which processes."""
        kinds = {kind: i for i, kind in enumerate(dict.fromkeys(sharding(o.parameter) for o in self.operands))}
        numbers, places = list[int](), list[int]()
        for piece in self.pieces:
            for position, member in enumerate(piece.members):
                of = self._of[member]
                count = piece.counts[position] if isinstance(piece, Packed) else piece.rows
                here = [of] * count if isinstance(of, int) else of
                first = kinds[sharding(self.operands[member].parameter)] * len(self.sizes)
                numbers += here
                places += [first + number for number in here]
        self._matrices = sum(len(piece.shape) == 2 for piece in self.pieces)
        self._shardings = list(kinds)  # the same in all processes, also in those whose shards are empty
        self._group_of_row = torch.tensor(numbers, dtype=torch.int64, device=self.sizes.device)
        self._place_of_row = self._group_of_row
        if len(kinds) > 1:
            self._place_of_row = torch.tensor(places, dtype=torch.int64, device=self.sizes.device)

    def gradients(self) -> list[Tensor]:
        """The gradient of each operand."""
        if self.plain:
            found = list(map(get_gradient, self._parameters))
            if not any(gradient is None or gradient.is_sparse for gradient in found):
                return found
        return [operand.gradient() for operand in self.operands]

    def split(self, vectors: Sequence[Tensor], name: str = "gradient") -> list[Tensor]:
        """Cut a list that is parallel to the operands into the parts of the pieces, in any type.

        Do not write to the parts, because they may be the tensors themselves. The parts of packed tensors are valid
        until the next call with this name.
        """
        parts = [packed.read([vectors[i] for i in packed.members], name) for packed in self.packed.values()]
        for i in self._order:
            parts += self._parts(i, vectors[i])
        return parts

    def each(self, parts: Sequence[Tensor]) -> Iterator[tuple[Piece, Tensor]]:
        """The pieces with their parts, in the type of the walk."""
        for piece, part in zip(self.pieces, parts, strict=True):
            yield piece, part if part.dtype == piece.wide else part.to(piece.wide)

    def measure(
        self,
        count: int,
        sums_of: Callable[[Piece, Tensor], list[Tensor]],
        parts: Sequence[Tensor],
        doubt: Tensor | float = 0.0,
    ) -> Tensor:
        """Call `sums_of` for each piece with its part; see `sums`."""
        return self.sums(count, [sums_of(piece, part) for piece, part in self.each(parts)], doubt)

    def sums(self, count: int, found: Sequence[Sequence[Tensor]], doubt: Tensor | float = 0.0) -> Tensor:
        """Add up, by group and over all processes, `count` numbers for each row of each piece.

        Returns a row for each of them. All share one collective for each kind of sharding. `doubt` is 0, or NaN if the
        loss of this process is not finite; it is added, so that NaN reaches every process.
        """
        groups = len(self.sizes)
        total = self.sizes.new_zeros(count, len(self._shardings) * groups)
        if found:
            rows = [self._joined(list(column)) for column in zip(*found, strict=True)]
            total.index_add_(1, self._place_of_row, torch.stack(rows))
        total = total + doubt
        if self.plain:
            return total
        parts = zip(torch.split(total, groups, dim=1), self._shardings, strict=True)
        return torch.stack([over_processes(here, kind) for here, kind in parts]).sum(0)

    def _joined(self, column: list[Tensor]) -> Tensor:
        """The numbers of all rows as one vector."""
        if len(self._kinds) > 1:
            column = [each.to(self.sizes) for each in column]
        parts = column[: self._matrices]
        parts += [torch.stack(column[self._matrices :])] if len(column) > self._matrices else []
        return torch.cat(parts).to(self.sizes)

    def largest(self, vectors: Iterable[Tensor]) -> Tensor:
        """The largest absolute value in the pieces' vectors, over all processes."""
        found = [values.abs().amax().to(self.sizes) for values in vectors if values.numel()]
        largest = torch.stack([self.sizes.new_zeros(()), *found]).amax()
        for kind in self._shardings:
            largest = over_processes(largest, kind, "max")
        return largest

    def spread(self, numbers: Tensor) -> list[Tensor]:
        """A number for each group, or one for all groups, as factors for each piece: one for each of its rows."""
        rows, counts = numbers.expand(self.sizes.shape)[self._group_of_row], [piece.rows for piece in self.pieces]
        of_kind = {kind: torch.split(rows.to(*kind), counts) for kind in self._kinds}
        factors = [of_kind[piece.kind][i] for i, piece in enumerate(self.pieces)]
        matrices = [factor.unsqueeze(1) for factor in factors[: self._matrices]]
        return matrices + factors[self._matrices :]

    def untouched_squares(self) -> Tensor:
        """The sum of squares of the weights outside all groups: rows without a gradient, if rows are groups."""
        total = self.sizes.new_zeros(())
        for operand in self.operands:
            if operand.rows is not None and by_rows(operand.parameter, self.granularity):
                others = operand.memory.index_fill(0, operand.rows, 0.0)
                total = total + others.to(total.dtype).square().sum().to(total)
        return total


def by_rows(tensor: Tensor, granularity: str) -> bool:
    """Whether the rows of the tensor are groups."""
    return granularity == "filter" and tensor.ndim >= 2


def _labels(names: list[str], rows_of: list[tuple[int, Iterable[int]]]) -> list[str]:
    """The names of the groups, with the number of the row if the group is a row."""
    labels = list(names)
    for first, rows in rows_of:
        for i, row in enumerate(rows.tolist() if isinstance(rows, Tensor) else rows, start=first):
            labels[i] = f"{labels[i]}[{row}]"
    return labels
