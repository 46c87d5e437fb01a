"""Stretches of weights: read, saved, moved and put back. The only file with fused calls and sparse gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gasam.sharded import local, sharding

_SUMMED_AT_ONCE = 1 << 18


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which weights of this type are walked: float32, or their own where that is wider."""
    return torch.promote_types(dtype, torch.float32)


def inverse(value: Tensor) -> Tensor:
    """1 / value, and 0 where value is 0."""
    return torch.where(value > 0, 1 / value, 0.0)


def sum_of_squares(flat: Tensor) -> Tensor:
    """In parts: one float32 sum over 20 million values is off by a thousandth on a CPU."""
    if flat.numel() <= _SUMMED_AT_ONCE:
        return torch.dot(flat, flat)
    return torch.stack([torch.dot(part, part) for part in torch.split(flat, _SUMMED_AT_ONCE)]).sum()


class Stretch(ABC):
    """Weights that are handled at once: `tensors`, or of sharded ones the `places`, the parts in this process.

    What `weights` and `gradient` return is flat and in the wide type. It may be the tensors themselves, so it is read
    only; it may be the scratch, so it is valid until the next call.
    `home` keeps the saved bits, `position` the walk's y = x / epsilon, `scale` an element-wise T. They stay from step
    to step: fresh buffers cost more than the arithmetic done in them. `scratch` is for whoever handles the stretch,
    and shared with the others of its kind.
    """

    def __init__(self, tensors: Sequence[Tensor], size: int, scratch: Tensor) -> None:
        self.tensors = list(tensors)
        self.places = [local(tensor) for tensor in tensors]
        self.sharding = sharding(self.tensors[0])
        self.size = size
        self.scratch = scratch[:size]
        first = self.tensors[0]
        self.dtype, self.wide, self.device = first.dtype, wide(first.dtype), first.device
        self.pieces = slice(0, 0)  # which pieces of the layout lie here
        self.lengths: Tensor | None = None  # how long each is; None where there is but one
        self.home = self.empty(0)
        self.position = self.empty(0)
        self.scale = self.empty(0)

    @abstractmethod
    def weights(self) -> Tensor: ...

    @abstractmethod
    def gradient(self) -> Tensor:
        """Zero where there is none."""

    @abstractmethod
    def save(self) -> None: ...

    @abstractmethod
    def restore(self) -> None: ...

    @abstractmethod
    def displace(self, direction: Tensor, reach: Tensor) -> None:
        """Put the weights at home + direction * reach, rounded once where they are stored in low precision.

        The direction may be in the scratch, and is gone afterwards.
        """

    @abstractmethod
    def put(self, values: Tensor, tensors: Sequence[Tensor]) -> None:
        """Write flat values where this stretch lies in tensors shaped like the places."""

    def weight_squares(self) -> Tensor:
        """The sum of squares of each piece's weights."""
        return self.squares(self.weights())

    def squares(self, flat: Tensor) -> Tensor:
        """The sum of squares of each piece."""
        if self.lengths is None:
            return sum_of_squares(flat)
        return torch.segment_reduce(flat * flat, "sum", lengths=self.lengths, unsafe=True)

    def empty(self, size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(size, dtype=dtype or self.wide, device=self.device)

    def _gradients(self) -> list[Tensor | None]:
        gradients = [tensor.grad for tensor in self.tensors]
        if self.sharding is None:
            return gradients
        return [None if gradient is None else local(gradient) for gradient in gradients]

    def _widened(self, flat: Tensor) -> Tensor:
        return flat if flat.dtype == self.wide else flat.to(self.wide)


class Slice(Stretch):
    """A part of one contiguous tensor: no copies but home."""

    def __init__(self, tensor: Tensor, start: int, stop: int, scratch: Tensor) -> None:
        super().__init__([tensor], stop - start, scratch)
        self.start, self.stop = start, stop
        self._here: Tensor | None = None  # the weights, from save to restore

    def weights(self) -> Tensor:
        return self._widened(self._part(self.places[0]))

    def gradient(self) -> Tensor:
        [gradient] = self._gradients()
        if gradient is None:
            return self.empty(self.size).zero_()
        return self._widened(self._part(gradient.to_dense() if gradient.is_sparse else gradient))

    def save(self) -> None:
        if not self.home.numel():
            self.home = self.empty(self.size, self.dtype)
        self._here = self._part(self.places[0])
        self.home.copy_(self._here)

    def restore(self) -> None:
        assert self._here is not None
        self._here.copy_(self.home)

    def displace(self, direction: Tensor, reach: Tensor) -> None:
        assert self._here is not None
        if self.dtype == self.wide:
            torch.addcmul(self.home, direction, reach, out=self._here)
        else:
            self._here.copy_(torch.addcmul(self.home.to(self.wide), direction, reach))

    def put(self, values: Tensor, tensors: Sequence[Tensor]) -> None:
        self._part(tensors[0]).copy_(values)

    def _part(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(-1)[self.start : self.stop]


class Bundle(Stretch):
    """Several small tensors side by side, or one that is not contiguous: gathered and scattered by one call each."""

    def __init__(self, tensors: Sequence[Tensor], scratch: Tensor) -> None:
        super().__init__(tensors, sum(local(tensor).numel() for tensor in tensors), scratch)
        self._scratch_views = _parts(self.scratch, self.places)
        self._home_views: list[Tensor] = []

    def weights(self) -> Tensor:
        torch._foreach_copy_(self._scratch_views, self.places)
        return self.scratch

    def gradient(self) -> Tensor:
        gradients = self._gradients()
        if any(gradient is None or gradient.is_sparse for gradient in gradients):
            pairs = zip(gradients, self.places, strict=True)
            gradients = [torch.zeros_like(place) if grad is None else grad.to_dense() for grad, place in pairs]
        torch._foreach_copy_(self._scratch_views, gradients)  # type: ignore[arg-type]
        return self.scratch

    def save(self) -> None:
        if not self._home_views:
            self.home = self.empty(self.size, self.dtype)
            self._home_views = _parts(self.home, self.places)
        torch._foreach_copy_(self._home_views, self.places)

    def restore(self) -> None:
        torch._foreach_copy_(self.places, self._home_views)

    def displace(self, direction: Tensor, reach: Tensor) -> None:
        torch.addcmul(self._widened(self.home), direction, reach, out=self.scratch)
        torch._foreach_copy_(self.places, self._scratch_views)

    def put(self, values: Tensor, tensors: Sequence[Tensor]) -> None:
        torch._foreach_copy_(list(tensors), _parts(values, tensors))


class SparseRows(Stretch):
    """The rows of an embedding with a sparse gradient that the clean pass touched; the others stay where they are.

    `by_row`: each row is a group of its own. Else the untouched rows belong to the group too.
    """

    def __init__(self, tensor: Tensor, by_row: bool) -> None:
        assert tensor.grad is not None
        self.by_row = by_row
        self.rows = tensor.grad.coalesce().indices()[0]
        size = len(self.rows) * tensor[0].numel()
        super().__init__([tensor], size, torch.empty(size, dtype=wide(tensor.dtype), device=tensor.device))

    def weights(self) -> Tensor:
        return self._widened(self._touched(self.tensors[0]))

    def gradient(self) -> Tensor:
        gradient = self.tensors[0].grad
        return self.empty(self.size).zero_() if gradient is None else self._widened(self._touched(gradient))

    def save(self) -> None:
        self.home = self._touched(self.tensors[0])

    def restore(self) -> None:
        self.put(self.home, self.tensors)

    def displace(self, direction: Tensor, reach: Tensor) -> None:
        self.put(torch.addcmul(self._widened(self.home), direction, reach), self.tensors)

    def put(self, values: Tensor, tensors: Sequence[Tensor]) -> None:
        target = tensors[0]
        target.index_copy_(0, self.rows, values.to(target.dtype).view(len(self.rows), *target.shape[1:]))

    def weight_squares(self) -> Tensor:
        return super().weight_squares() if self.by_row else sum_of_squares(self.tensors[0].reshape(-1).to(self.wide))

    def _touched(self, tensor: Tensor) -> Tensor:
        rows = tensor.coalesce() if tensor.is_sparse else tensor
        return rows.index_select(0, self.rows).to_dense().reshape(-1)


def added(total: Tensor | None, gradient: Tensor) -> Tensor:
    """total + gradient, in place where both are of one layout; what is taken over is copied.

    The copy matters: a gradient may be a view of a communication bucket that the next pass overwrites.
    """
    if total is None:
        return gradient.detach().clone()
    if total.is_sparse and not gradient.is_sparse:
        return gradient.detach() + total
    return total.add_(gradient.detach())


def aliased(gradients: Sequence[Tensor | None]) -> bool:
    """Whether two of them may overlap in one storage, as autograd may leave them: adding in place is wrong."""
    here = [local(g) for g in gradients if g is not None and not g.is_sparse]
    storages = [g.untyped_storage()._cdata for g in here]
    if len(set(storages)) == len(storages):
        return False
    spans = sorted((at, *_span(g)) for at, g in zip(storages, here, strict=True) if g.numel())
    return any(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(spans))


def _span(tensor: Tensor) -> tuple[int, int]:
    """From which byte of its storage to which one it may lie."""
    start, size, length = int(tensor.storage_offset()), tensor.element_size(), tensor.numel()
    if not tensor.is_contiguous():
        length = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (start + length) * size


def _parts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """A flat tensor as views shaped like the tensors."""
    return list(torch._utils._unflatten_dense_tensors(flat, tensors))  # type: ignore[no-untyped-call]
