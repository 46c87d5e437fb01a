"""Stretches of weights: read, saved, moved and put back. The only file with fused calls and sparse gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# A stretch of this many weights and its scratch stay in a core's cache, so each weight crosses memory once a pass.
# Elsewhere a large tensor is one call, and only small tensors are put together.
_CACHE_SIZED = 1 << 16
_FEW_CALLS = 1 << 22


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which weights of this type are walked: float32, or their own where that is wider."""
    return torch.promote_types(dtype, torch.float32)


def sums(device: torch.device) -> torch.dtype:
    """The type in which the stretches' sums are added up: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def stretch_size(device: torch.device) -> int:
    return _CACHE_SIZED if device.type == "cpu" else _FEW_CALLS


def inverse(value: Tensor) -> Tensor:
    """1 / value, and 0 where value is 0."""
    return torch.where(value > 0, 1 / value, 0.0)


class Stretch:
    """Weights that are handled at once: a slice of one large tensor, or several small tensors side by side.

    What `weights` and `gradient` return is flat, in the wide type, and may alias the tensors: read it only.
    `home` keeps the saved bits, `position` the walk's x / epsilon, `scale` an element-wise T; kept from step to step,
    since fresh large buffers cost more than the arithmetic done in them.
    """

    def __init__(self, tensors: Sequence[Tensor], span: slice | None = None) -> None:
        self.tensors = list(tensors)
        self.span = span
        first = self.tensors[0]
        self.dtype, self.wide, self.device = first.dtype, wide(first.dtype), first.device
        self.size = span.stop - span.start if span else sum(t.numel() for t in self.tensors)
        self.pieces = slice(0, 0)
        self.lengths: Tensor | None = None
        self.home: Tensor | None = None
        self.position: Tensor | None = None
        self.scale: Tensor | None = None
        self._home_views: list[Tensor] = []

    def weights(self) -> Tensor:
        return self._flat(self.tensors)

    def gradient(self) -> Tensor:
        return self._flat([_gradient(tensor) for tensor in self.tensors])

    def has_gradient(self) -> bool:
        return any(tensor.grad is not None for tensor in self.tensors)

    def save(self) -> None:
        if self.home is None:
            self.home = torch.empty(self.size, dtype=self.dtype, device=self.device)
            self._home_views = self._parts(self.home, self.tensors)
        torch._foreach_copy_(self._home_views, self._targets(self.tensors))

    def restore(self) -> None:
        torch._foreach_copy_(self._targets(self.tensors), self._home_views)

    def displace(self, offset: Tensor) -> None:
        """Put the weights at home + offset, rounded once where they are stored in low precision."""
        assert self.home is not None
        if self.span and self.dtype == self.wide:
            torch.add(self.home, offset, out=self._targets(self.tensors)[0])
        else:
            self.put(self.home + offset, self.tensors)

    def put(self, values: Tensor, tensors: Sequence[Tensor]) -> None:
        """Write flat values where the stretch lies in these tensors, shaped like the weights."""
        torch._foreach_copy_(self._targets(tensors), self._parts(values, tensors))

    def spread(self, pieces: Tensor) -> Tensor:
        """One value a piece, over the pieces' weights; a stretch of one piece gets a single number."""
        own = pieces[self.pieces].to(self.device, self.wide)
        if self.lengths is None:
            return own[0]
        return torch.repeat_interleave(own, self.lengths, output_size=self.size)

    def squares(self, flat: Tensor) -> Tensor:
        """The sum of squares of each piece."""
        if self.lengths is None:
            return torch.dot(flat, flat).reshape(1)
        return torch.segment_reduce(flat * flat, "sum", lengths=self.lengths, unsafe=True)

    def weight_squares(self) -> Tensor:
        return self.squares(self.weights())

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        if self.span:
            return tensors[0].reshape(-1)[self.span].to(self.wide)
        flat: Tensor = torch._utils._flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
        return flat.to(self.wide)

    def _targets(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensors[0].view(-1)[self.span]] if self.span else list(tensors)

    def _parts(self, values: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Flat values as views that match the targets."""
        return [values] if self.span else list(torch._utils._unflatten_dense_tensors(values, tensors))  # type: ignore[no-untyped-call]


class SparseRows(Stretch):
    """The rows of an embedding with a sparse gradient that the clean pass touched; the others stay where they are."""

    def __init__(self, tensor: Tensor) -> None:
        assert tensor.grad is not None
        super().__init__([tensor])
        self.rows = tensor.grad.coalesce().indices()[0]
        self.size = len(self.rows) * tensor[0].numel()

    def weights(self) -> Tensor:
        return self._flat([self.tensors[0].index_select(0, self.rows)])

    def gradient(self) -> Tensor:
        gradient = _gradient(self.tensors[0])
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            if torch.equal(gradient.indices()[0], self.rows):
                return self._flat([gradient.values()])
        touched = gradient.index_select(0, self.rows)
        return self._flat([touched.to_dense() if touched.is_sparse else touched])

    def save(self) -> None:
        self.home = self.tensors[0].index_select(0, self.rows).reshape(-1)

    def restore(self) -> None:
        assert self.home is not None
        self.put(self.home, self.tensors)

    def displace(self, offset: Tensor) -> None:
        assert self.home is not None
        self.put(self.home + offset, self.tensors)

    def put(self, values: Tensor, tensors: Sequence[Tensor]) -> None:
        target = tensors[0]
        target.index_copy_(0, self.rows, values.to(target.dtype).view(len(self.rows), *target.shape[1:]))

    def weight_squares(self) -> Tensor:
        if self.lengths is None:
            whole = self.tensors[0].reshape(-1).to(self.wide)
            return torch.dot(whole, whole).reshape(1)
        return super().weight_squares()


def add_gradients(totals: list[Tensor | None], gradients: Sequence[Tensor | None]) -> None:
    """totals += gradients, in place where both are of one layout; what is taken over is copied.

    The copy matters: a gradient may be a view of a communication bucket that the next pass overwrites.
    """
    for i, gradient in enumerate(gradients):
        total = totals[i]
        if gradient is None:
            continue
        if total is None:
            totals[i] = gradient.detach().clone()
        elif total.is_sparse and not gradient.is_sparse:
            totals[i] = gradient.detach() + total
        else:
            total.add_(gradient.detach())


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
