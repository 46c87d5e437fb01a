"""Functions on batches: tensors in tuples, lists and dictionaries of any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def on_tensors(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """The batch with every tensor changed; everything else stays."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: on_tensors(change, part) for name, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_make"):  # a named tuple
        return batch._make(on_tensors(change, part) for part in batch)
    if isinstance(batch, tuple | list):
        return type(batch)(on_tensors(change, part) for part in batch)
    return batch


def tensors(batch: Any) -> Iterator[Tensor]:
    """All tensors of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from tensors(part)
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from tensors(part)


def example_count(batch: Any, dim: int = 0) -> int:
    """The number of examples of a batch, from its first tensor that has the dimension `dim`; 0 without one."""
    return next((tensor.shape[dim] for tensor in tensors(batch) if tensor.ndim > dim), 0)
