"""The parameters that take part in one step: their portions, their groups, and sums over the groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from gasam.groups import Groups
from gasam.portions import Portion, cut, sum_of_squares
from gasam.sharded import by_sharding, check_gradient, is_sharded, local, over_processes, sharding
from gasam.sparse import SparseRows

Buffers = dict[object, dict[str, Tensor]]


class Moving:
    """The layout of the parameters that have a gradient: lists that run parallel, their portions and groups.

    `storage` has the local part of each parameter. `operands` are the tensors to compute with: the same memory, or a
    copy of the rows that a sparse gradient touches.
    """

    def __init__(self, present: Sequence[Tensor], names: Sequence[str], granularity: str, buffers: Buffers) -> None:
        self._present = [id(parameter) for parameter in present]
        self.sharded = any(map(is_sharded, present))
        self.parameters = by_sharding(present) if self.sharded else list(present)
        self.storage = [local(parameter).detach() for parameter in self.parameters]
        self.sparse = {i: SparseRows(p) for i, p in enumerate(self.parameters) if SparseRows.fit(p)}
        self.operands = [self.sparse[i].values if i in self.sparse else t for i, t in enumerate(self.storage)]
        self.total = sum(parameter.numel() for parameter in present)  # n
        name_of = dict(zip(self._present, names, strict=True))
        self.groups = Groups(granularity)
        for i, parameter in enumerate(self.parameters):
            self.groups.add(parameter, name_of[id(parameter)], self.sparse[i].rows if i in self.sparse else None)
        kinds = [(t.device, t.dtype, sharding(p)) for t, p in zip(self.storage, self.parameters, strict=True)]
        cuts = cut(self.operands, kinds, whole=self.sparse)
        self.portions = [Portion(number, self.operands, *where) for number, where in enumerate(cuts)]
        self.buffers: Buffers = {}
        self._give_memory(buffers)
        self._find_entries()

    def _give_memory(self, known: Buffers) -> None:
        """Give each portion the buffers that an equal one had before, and one scratch per device and type."""
        for kind in {(portion.device, portion.wide) for portion in self.portions}:
            alike = [portion for portion in self.portions if (portion.device, portion.wide) == kind]
            scratch = torch.empty(max(portion.size for portion in alike), device=kind[0], dtype=kind[1])
            for portion in alike:
                tensors = range(portion.start, portion.stop)
                shapes = *(self.operands[i].shape for i in tensors), portion.dtype, portion.device
                key = *(id(self.parameters[i]) for i in tensors), shapes
                self.buffers.setdefault(key, known.get(key, {}))
                portion.use(scratch, self.buffers[key])

    def _find_entries(self) -> None:
        device = self.operands[0].device if self.operands else torch.device("cpu")
        kind = torch.float32 if device.type == "mps" else torch.float64  # the widest of the device: sums are few
        self.sizes = torch.tensor(self.groups.sizes, dtype=kind, device=device)  # n_i
        self._shardings: list[tuple[object, slice]] = []  # with the range of its entries
        self._counts: list[int] = []  # entries of each portion
        numbers: list[int] = []  # the group of each entry
        for portion in self.portions:
            runs = _merged(self._runs(portion))
            portion.set_entries([size for _, size in runs])
            self._counts.append(len(runs))
            first, kind_of_sharding = len(numbers), sharding(self.parameters[portion.start])
            numbers += [number for number, _ in runs]
            if self._shardings and self._shardings[-1][0] == kind_of_sharding:
                first = self._shardings.pop()[1].start
            self._shardings.append((kind_of_sharding, slice(first, len(numbers))))
        self._group_of_entry = torch.tensor(numbers, dtype=torch.int64, device=device)

    def _runs(self, portion: Portion) -> Iterator[tuple[int, int]]:
        """(group, number of weights), in the order of the flat vector."""
        for number, tensor in zip(self.groups.of[portion.start : portion.stop], portion.operands, strict=True):
            if isinstance(number, int):
                yield number, tensor.numel()
            else:
                size_of_row = tensor[0].numel() if len(tensor) else 0
                yield from ((group, size_of_row) for group in number[portion.rows or slice(None)])

    def fits(self, present: Sequence[Tensor], granularity: str) -> bool:
        """Whether another step can use this: the same tensors in the same memory, none with a sparse gradient."""
        return (
            not self.sparse
            and granularity == self.groups.granularity
            and [id(parameter) for parameter in present] == self._present
            and all(self.in_place())
            and not any(parameter.grad.is_sparse for parameter in present)  # type: ignore[union-attr]
        )

    def in_place(self) -> Iterator[bool]:
        """Whether each parameter is still in the memory that was found here."""
        parameters = map(local, self.parameters) if self.sharded else self.parameters
        return map(Tensor.is_set_to, self.storage, parameters)

    def gradients(self) -> list[Tensor]:
        """The gradients of the operands; zero where a parameter has none."""
        gradients = [parameter.grad for parameter in self.parameters]
        if self.sparse or self.sharded or any(each is None or each.is_sparse for each in gradients):
            return [self._gradient(i, gradient) for i, gradient in enumerate(gradients)]
        return gradients  # type: ignore[return-value]

    def weight_squares(self) -> list[Tensor]:
        """For `sum`. Rows that a sparse gradient does not touch count as well, unless each row is a group."""
        return [self._all_squares(portion) for portion in self.portions]

    def _all_squares(self, portion: Portion) -> Tensor:
        if portion.start in self.sparse and not self.groups.by_rows(self.parameters[portion.start]):
            return sum_of_squares(self.storage[portion.start].to(portion.wide).reshape(-1)).reshape(1)
        return portion.squares(portion.weights())

    def untouched_squares(self) -> Tensor:
        """The sum of squares of the weights that no group has: rows without a gradient, if each row is a group."""
        total = self.sizes.new_zeros(())
        for i, rows in self.sparse.items():
            if self.groups.by_rows(self.parameters[i]):
                others = self.storage[i].index_fill(0, rows.rows, 0.0)
                total = total + others.to(total.dtype).square().sum().to(total)
        return total

    def sum(self, *measured: Sequence[Tensor], nan_flag: Tensor | float = 0.0) -> Tensor:
        """One row per list: the sums of the portions' entries, added up for each group over all processes.

        All rows share one collective for each kind of sharding. A list may be empty. `nan_flag` is 0, or NaN if the
        local loss is not finite; adding it tells every process.
        """
        total = self.sizes.new_zeros(len(measured), len(self.sizes))
        if not self.portions:
            return total
        entries = total.new_zeros(len(measured), len(self._group_of_entry))
        for row, sums in zip(entries, measured, strict=True):
            if sums:
                torch.cat([each.to(total) for each in sums], out=row)
        for kind_of_sharding, part in self._shardings:
            here = torch.zeros_like(total).index_add_(1, self._group_of_entry[part], entries[:, part])
            total += over_processes(here + nan_flag, kind_of_sharding)
        return total

    def largest(self, measured: Sequence[Tensor]) -> Tensor:
        """The largest of some numbers >= 0, in all processes."""
        largest = torch.stack([self.sizes.new_zeros(()), *(value.to(self.sizes) for value in measured)]).amax()
        for kind_of_sharding, _ in self._shardings:
            largest = over_processes(largest, kind_of_sharding, "max")
        return largest

    def to_entries(self, values: Tensor) -> Sequence[Tensor]:
        """A number for each group, or one for all, as `Portion.spread` takes it."""
        if values.ndim == 0:
            return [values] * len(self.portions)
        return torch.split(values[self._group_of_entry], self._counts)

    def _gradient(self, i: int, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            return torch.zeros_like(self.operands[i])
        if i in self.sparse:
            return self.sparse[i].of(gradient)
        if is_sharded(gradient):
            check_gradient(self.parameters[i])
        return local(gradient).to_dense()


def _merged(runs: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring runs of one group become one."""
    return [(number, sum(size for _, size in same)) for number, same in groupby(runs, key=itemgetter(0))]
