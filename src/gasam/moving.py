"""The parameters that take part in one step: what to compute with, sums over groups, and T spread over the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gasam.groups import Groups
from gasam.portions import Portion, cut, give_scratch, sum_of_squares, wide
from gasam.sharded import by_sharding, check_gradient, is_sharded, local, over_processes, sharding
from gasam.sparse import SparseRows

Buffers = dict[tuple[str, int], Tensor]


class Moving:
    """Parallel lists with an entry for each parameter, and their portions.

    `places` are the tensors to compute with: a parameter's own memory in this process, or a copy of the rows that a
    sparse gradient touches. `home` has room for their saved bits.
    """

    def __init__(self, present: Sequence[Tensor], names: Sequence[str], granularity: str, buffers: Buffers) -> None:
        self._present = [id(parameter) for parameter in present]
        self._buffers = buffers
        self.sharded = any(map(is_sharded, present))
        self.parameters = by_sharding(present) if self.sharded else list(present)
        self.memory = [local(parameter).detach() for parameter in self.parameters]
        self.sparse = {i: SparseRows(p) for i, p in enumerate(self.parameters) if SparseRows.fit(p)}
        self.places = [self.sparse[i].values if i in self.sparse else own for i, own in enumerate(self.memory)]
        self.home = [self._buffer("home", i, place.dtype) for i, place in enumerate(self.places)]
        kinds = [(own.device, own.dtype, sharding(p)) for own, p in zip(self.memory, self.parameters, strict=True)]
        cuts = cut(self.places, kinds, whole=self.sparse)
        self.portions = [Portion(self.places, self.home, *where) for where in cuts]
        give_scratch(self.portions)
        self.total = sum(parameter.numel() for parameter in present)  # n
        name_of = dict(zip(self._present, names, strict=True))
        self.groups = Groups(granularity)
        for i, parameter in enumerate(self.parameters):
            self.groups.add(parameter, name_of[id(parameter)], self.sparse[i].rows if i in self.sparse else None)
        self._prepare_sums()

    def _prepare_sums(self) -> None:
        device = self.places[0].device if self.places else torch.device("cpu")
        types = {(place.device, wide(place.dtype)) for place in self.places}
        self._common = types.pop() if len(types) == 1 else None
        kind = torch.float32 if device.type == "mps" else torch.float64  # the widest of the device: sums are few
        self.sizes = torch.tensor(self.groups.sizes, dtype=kind, device=device)  # n_i
        self._shardings: list[tuple[object, slice]] = []  # each with the place of its entries
        entries: list[int] = []
        for portion in self.portions:
            first, own = len(entries), sharding(self.parameters[portion.start])
            for number in self.groups.of[portion.start : portion.stop]:
                entries += [number] if isinstance(number, int) else number[portion.rows or slice(None)]
            if self._shardings and self._shardings[-1][0] == own:
                first = self._shardings.pop()[1].start
            self._shardings.append((own, slice(first, len(entries))))
        self._group_of_entry = torch.tensor(entries, dtype=torch.int64, device=device)

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
        return map(Tensor.is_set_to, self.memory, parameters)

    def gradients(self) -> list[Tensor]:
        """Of the places; zero where a parameter has none."""
        gradients = [parameter.grad for parameter in self.parameters]
        if self.sparse or self.sharded or any(each is None or each.is_sparse for each in gradients):
            return [self._gradient(i, gradient) for i, gradient in enumerate(gradients)]
        return gradients  # type: ignore[return-value]

    def buffers(self, purpose: str) -> list[Tensor]:
        """Tensors like the places in the type of the walk, kept from step to step: fresh memory is expensive."""
        return [self._buffer(purpose, i, wide(place.dtype)) for i, place in enumerate(self.places)]

    def squares(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """For `sum`: of each portion the sums of squares of its tensors, or of their rows where these are groups."""
        return [self.powers(portion.widened(tensors), 2.0) for portion in self.portions]

    def powers(self, values: list[Tensor], p: float) -> Tensor:
        """For `sum`: the sums of |values|^p."""
        if p != 2.0 or self.groups.granularity == "filter":
            return self.entries([each.abs().pow_(p) for each in values])
        if len(values) == 1:
            return sum_of_squares(values[0]).reshape(1)
        return torch.stack(torch._foreach_norm(values)).to(self.sizes).square()

    def entries(self, values: list[Tensor]) -> Tensor:
        """For `sum`: the sum of each tensor, or of its rows where these are groups."""
        return torch.hstack([each.flatten(1).sum(1) if self.groups.by_rows(each) else each.sum() for each in values])

    def weight_squares(self) -> list[Tensor]:
        """The rows that a sparse gradient does not touch belong to a group, too, unless rows are groups."""
        if self.groups.granularity == "filter":
            return self.squares(self.places)
        return self.squares(self.memory)

    def sum(self, *measured: Sequence[Tensor], doubt: Tensor | float = 0.0) -> Tensor:
        """A row for each list of measured values, which may be empty: their sum for each group, over all processes.

        All rows take one collective for each way of sharding. `doubt` is 0, or NaN: that reaches every process.
        """
        total = self.sizes.new_zeros(len(measured), len(self.sizes))
        if not self.portions:
            return total
        entries = total.new_zeros(len(measured), len(self._group_of_entry))
        for row, values in zip(entries, measured, strict=True):
            if values:
                torch.cat([each.to(total) for each in values], out=row)
        for own, part in self._shardings:
            here = torch.zeros_like(total).index_add_(1, self._group_of_entry[part], entries[:, part])
            total += over_processes(here + doubt, own)
        return total

    def largest(self, measured: Sequence[Tensor]) -> Tensor:
        """The largest of some numbers >= 0, over all processes."""
        largest = torch.stack([self.sizes.new_zeros(()), *(value.to(self.sizes) for value in measured)]).amax()
        for own, _ in self._shardings:
            largest = over_processes(largest, own, "max")
        return largest

    def spread(self, values: Tensor) -> list[Tensor]:
        """A number for each group, or one for all, as tensors that broadcast over the places."""
        if self._common is not None:
            values = values.to(*self._common)
        if values.ndim == 0:
            spread = [values] * len(self.places)
        elif self.groups.granularity == "filter":
            spread = [self._of_rows(i, values) for i in range(len(self.places))]
        else:
            each = values.unbind()
            spread = [each[number] for number in self.groups.of]  # type: ignore[index]
        if self._common is not None:
            return spread
        return [value.to(place.device, wide(place.dtype)) for value, place in zip(spread, self.places, strict=True)]

    def _of_rows(self, i: int, values: Tensor) -> Tensor:
        number, place = self.groups.of[i], self.places[i]
        if isinstance(number, int):
            return values[number]
        return values[number.start : number.stop].view(-1, *[1] * (place.ndim - 1))

    def _gradient(self, i: int, gradient: Tensor | None) -> Tensor:
        if gradient is None:
            return torch.zeros_like(self.places[i])
        if i in self.sparse:
            return self.sparse[i].of(gradient)
        if is_sharded(gradient):
            check_gradient(self.parameters[i])
        return local(gradient).to_dense()

    def _buffer(self, purpose: str, i: int, dtype: torch.dtype) -> Tensor:
        place, key = self.places[i], (purpose, id(self.parameters[i]))
        if i in self.sparse:
            return torch.empty_like(place, dtype=dtype)
        found = self._buffers.get(key)
        if found is None or (found.shape, found.dtype, found.device) != (place.shape, dtype, place.device):
            found = self._buffers[key] = torch.empty_like(place, dtype=dtype)
        return found
