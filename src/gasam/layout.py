"""`Layout`: the parameters of one step, how they are split into portions and groups, and sums over groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from gasam.portions import Portion, cut, sum_of_squares
from gasam.sharded import by_sharding, check_gradient, first_row, is_sharded, over_processes, sharding
from gasam.torch_private import local

Buffers = dict[object, dict[str, Tensor]]


class Layout:
    """The parameters that have a gradient, as parallel lists, with their portions and groups.

    `storage` holds the local part of each parameter. `operands` are the tensors to compute with: the same memory, or a
    copy of the rows that a sparse gradient touches.
    """

    def __init__(
        self,
        present: Sequence[Tensor],
        names: Sequence[str],
        granularity: str,
        buffers: Buffers,
        strengths: Sequence[float] = (),
    ) -> None:
        self._present = [id(parameter) for parameter in present]
        self.sharded = any(map(is_sharded, present))
        self.parameters = by_sharding(present) if self.sharded else list(present)
        self.storage = [local(parameter).detach() for parameter in self.parameters]
        touched = {i: _touched_rows(parameter) for i, parameter in enumerate(self.parameters)}
        self.sparse = {i: SparseRows(self.storage[i], rows) for i, rows in touched.items() if rows is not None}
        self.operands = [self.sparse[i].values if i in self.sparse else t for i, t in enumerate(self.storage)]
        self.total = sum(parameter.numel() for parameter in present)  # n
        name_of = dict(zip(self._present, names, strict=True))
        strength_of = dict(zip(self._present, strengths, strict=False))
        self.groups = Groups(granularity)
        for i, parameter in enumerate(self.parameters):
            strength = strength_of.get(id(parameter), 1.0)
            self.groups.add(parameter, name_of[id(parameter)], touched[i], strength)
        kinds = [(t.device, t.dtype, sharding(p)) for t, p in zip(self.storage, self.parameters, strict=True)]
        cuts = cut(self.operands, kinds, whole=self.sparse)
        self.portions = [Portion(number, self.operands, *where) for number, where in enumerate(cuts)]
        self.buffers: Buffers = {}
        self._give_memory(buffers)
        self._find_entries()

    def _give_memory(self, known: Buffers) -> None:
        """Reuse buffers of equal portions of an earlier layout, and share one scratch tensor per device and type."""
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
        """Find the group of each entry of all portions, and which entries are summed over processes."""
        device = self.operands[0].device if self.operands else torch.device("cpu")
        kind = torch.float32 if device.type == "mps" else torch.float64  # the widest of the device; sums are few
        self.sizes = torch.tensor(self.groups.sizes, dtype=kind, device=device)  # n_i
        self.strengths: Tensor | None = None  # factors of T; None if all are 1
        if any(strength != 1 for strength in self.groups.strengths):
            self.strengths = self.sizes.new_tensor(self.groups.strengths)
        self._shardings: list[tuple[object, slice]] = []  # each with the range of its entries
        self._counts: list[int] = []  # entries of each portion
        numbers: list[int] = []  # the group of each entry
        for kind_of_sharding, portions in groupby(self.portions, lambda each: sharding(self.parameters[each.start])):
            first = len(numbers)
            for portion in portions:
                runs = _merged(self._runs(portion))
                portion.set_entries([size for _, size in runs])
                self._counts.append(len(runs))
                numbers += [number for number, _ in runs]
            self._shardings.append((kind_of_sharding, slice(first, len(numbers))))
        self._group_of_entry = torch.tensor(numbers, dtype=torch.int64, device=device)

    def _runs(self, portion: Portion) -> Iterator[tuple[int, int]]:
        """Pairs of (group, number of weights) in the order of the flat vector."""
        for number, tensor in zip(self.groups.of[portion.start : portion.stop], portion.operands, strict=True):
            if isinstance(number, int):
                yield number, tensor.numel()
            else:
                size_of_row = tensor[0].numel() if len(tensor) else 0
                yield from ((group, size_of_row) for group in number[portion.rows or slice(None)])

    def fits(self, present: Sequence[Tensor], granularity: str) -> bool:
        """Whether another step can reuse this layout: same tensors, same memory, and no sparse gradients."""
        return (
            not self.sparse
            and granularity == self.groups.granularity
            and [id(parameter) for parameter in present] == self._present
            and all(self.in_place())
            and not any(parameter.grad.is_sparse for parameter in present)  # type: ignore[union-attr]
        )

    def in_place(self) -> Iterator[bool]:
        """Whether each parameter still uses the memory it had when the layout was made."""
        parameters = map(local, self.parameters) if self.sharded else self.parameters
        return map(Tensor.is_set_to, self.storage, parameters)

    def gradients(self) -> list[Tensor]:
        """The gradients of the operands; zeros for a parameter without a gradient."""
        gradients = [parameter.grad for parameter in self.parameters]
        if self.sparse or self.sharded or any(each is None or each.is_sparse for each in gradients):
            return [self._gradient(i, gradient) for i, gradient in enumerate(gradients)]
        return gradients  # type: ignore[return-value]

    def weight_squares(self) -> list[Tensor]:
        """Squared weights for `sum`, including rows that a sparse gradient does not touch, unless rows are groups."""
        return [self._all_squares(portion) for portion in self.portions]

    def _all_squares(self, portion: Portion) -> Tensor:
        if portion.start in self.sparse and not self.groups.by_rows(self.parameters[portion.start]):
            return sum_of_squares(self.storage[portion.start].to(portion.wide).reshape(-1)).reshape(1)
        return portion.squares(portion.weights())

    def untouched_squares(self) -> Tensor:
        """The sum of squares of the weights outside all groups: rows without a gradient, if rows are groups."""
        total = self.sizes.new_zeros(())
        for i, rows in self.sparse.items():
            if self.groups.by_rows(self.parameters[i]):
                others = self.storage[i].index_fill(0, rows.rows, 0.0)
                total = total + others.to(total.dtype).square().sum().to(total)
        return total

    def sum(self, *measured: Sequence[Tensor], nan_flag: Tensor | float = 0.0) -> Tensor:
        """For each list, the sums of the portions' entries, added up by group and over all processes.

        Returns one row per list. All rows share one collective for each kind of sharding. A list may be empty.
        `nan_flag` is 0, or NaN if the local loss is not finite; it is added, so that NaN reaches every process.
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

    def largest_magnitude(self, vectors: Iterable[Tensor]) -> Tensor:
        """The largest absolute value in the portions' vectors, over all processes."""
        found = [values.abs().amax().to(self.sizes) for values in vectors if values.numel()]
        largest = torch.stack([self.sizes.new_zeros(()), *found]).amax()
        for kind_of_sharding, _ in self._shardings:
            largest = over_processes(largest, kind_of_sharding, "max")
        return largest

    def to_entries(self, values: Tensor) -> Sequence[Tensor]:
        """Convert one number per group, or one for all groups, into the argument of `Portion.spread`."""
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


class Groups:
    """The groups of the parameters, numbered from 0.

    `of` has an entry for each parameter: the number of its group, or a range with a number for each of its rows. With
    granularity "element" or "model" each tensor is a group here, for the cap and the trace. T is then one per weight or
    one for the model.
    """

    def __init__(self, granularity: str) -> None:
        self.granularity = granularity
        self.of: list[int | range] = []
        self.sizes: list[int] = []  # n_i
        self.dimensions: list[int] = []  # of the group's tensor, or the largest of several
        self.names: list[str] = []  # of the group's tensor or module
        self.strengths: list[float] = []  # "perturb" of the user's parameter group
        self._numbers: dict[object, int] = {}
        self._rows: list[tuple[int, Tensor | range]] = []  # (first group, rows) of parameters whose rows are groups

    def add(self, parameter: Tensor, name: str, touched: Tensor | None = None, strength: float = 1.0) -> None:
        """`touched` are the rows of a sparse gradient. With granularity "filter" the other rows have no group."""
        if self.by_rows(parameter):
            first = len(self.names)
            rows = range(len(parameter)) if touched is None else touched
            here = range(first, first + len(rows))
            if touched is None:  # this process holds only some rows of a sharded parameter
                here = here[first_row(parameter) :][: len(local(parameter))]
            self.of.append(here)
            self._rows.append((first, rows))
            self._append(name, math.prod(parameter.shape[1:]), parameter.ndim, strength, times=len(rows))
            return
        key: object = id(parameter)
        if self.granularity == "module":
            key = name = name.rpartition(".")[0]
        number = self._numbers.setdefault(key, len(self.names))
        if number == len(self.names):
            self._append(name, 0, 0, strength)
        self.of.append(number)
        self.sizes[number] += parameter.numel()
        self.dimensions[number] = max(self.dimensions[number], parameter.ndim)

    def by_rows(self, tensor: Tensor) -> bool:
        return self.granularity == "filter" and tensor.ndim >= 2

    def labels(self) -> list[str]:
        """The names of the groups, with the number of the row if the group is a row."""
        labels = list(self.names)
        for first, rows in self._rows:
            for i, row in enumerate(rows if isinstance(rows, range) else rows.tolist(), start=first):
                labels[i] = f"{labels[i]}[{row}]"
        return labels

    def _append(self, name: str, size: int, dimensions: int, strength: float, times: int = 1) -> None:
        self.names += [name] * times
        self.sizes += [size] * times
        self.dimensions += [dimensions] * times
        self.strengths += [strength] * times


class SparseRows:
    """The rows of an embedding that its sparse gradient touches. Only these rows are saved and moved.

    `values` is a copy of the rows to compute with, and `write` copies it back.
    """

    def __init__(self, storage: Tensor, rows: Tensor) -> None:
        self.storage = storage
        self.rows = rows
        self.values = storage.index_select(0, rows)

    def of(self, gradient: Tensor) -> Tensor:
        """These rows of a gradient, sparse or dense."""
        gradient = gradient.coalesce() if gradient.is_sparse else gradient
        return gradient.index_select(0, self.rows).to_dense()

    def write(self) -> None:
        self.put(self.values, self.storage)

    def put(self, values: Tensor, target: Tensor) -> None:
        target.index_copy_(0, self.rows, values)


def _touched_rows(parameter: Tensor) -> Tensor | None:
    """The rows of its sparse gradient. None if the gradient is handled as dense: no rows, or sparse within rows."""
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse or gradient.sparse_dim() != 1:
        return None
    rows = gradient.coalesce().indices()[0]
    return rows if len(rows) else None


def _merged(runs: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge neighbouring runs of the same group."""
    return [(number, sum(size for _, size in same)) for number, same in groupby(runs, key=itemgetter(0))]
