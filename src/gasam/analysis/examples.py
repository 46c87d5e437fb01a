"""The gradients of single examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.gradients import squared_norm
from gasam.analysis.objective import Objective
from gasam.analysis.products import dense

Gradients = tuple[Tensor | None, ...]


def example_gradients(
    model: nn.Module, objective: Objective, batch: Any, losses: Tensor, weights: Sequence[Tensor]
) -> Iterator[Gradients]:
    """Of each of the batch's losses, in order; None for a weight that it does not depend on.

    They cost least when each example is alone in its batch, so the batch is cut into rows where that gives the very
    losses that the whole batch gave, and of the largest one the very gradient: losses that depend on each other's rows
    may round to the same numbers. Else a loss is sent back through the whole batch.
    """
    rows, sizes = len(losses), losses.detach().abs()
    largest = int(sizes.argmax())

    def together(i: int) -> Gradients:
        return grad(losses[i], weights, retain_graph=True, allow_unused=True)

    def alone(dimension: int, i: int) -> Gradients | None:
        try:
            found = objective(model, row(batch, dimension, i, rows))
        except Exception:  # whatever the user's code makes of half a batch, there is another way
            return None
        equal = found.requires_grad and same(found.detach(), losses[i : i + 1].detach(), sizes[largest])
        return grad(found.squeeze(0), weights, allow_unused=True) if equal else None

    def cuts(dimension: int) -> bool:
        single = alone(dimension, largest)
        return single is not None and alike(single, together(largest))

    dimension = next((d for d in (0, 1) if rows > 1 and cuts(d)), None)
    for i in range(rows):
        single = None if dimension is None else alone(dimension, i)
        yield together(i) if single is None else single


def row(batch: Any, dimension: int, i: int, rows: int) -> Any:
    """The batch with row i alone in every tensor that has that many of them."""
    if isinstance(batch, Tensor):
        counts = batch.ndim > dimension and batch.shape[dimension] == rows
        return batch.narrow(dimension, i, 1) if counts else batch
    if isinstance(batch, dict):
        return {name: row(part, dimension, i, rows) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [row(part, dimension, i, rows) for part in batch]
        return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    return batch


def same(found: Tensor, expected: Tensor, size: Tensor) -> bool:
    """Alone or in a batch, a loss is rounded differently: by a share of `size`, the largest loss beside it."""
    near = torch.finfo(expected.dtype).eps ** 0.5
    return found.shape == expected.shape and bool(((found - expected).abs() <= near * size).all())


def alike(found: Gradients, expected: Gradients) -> bool:
    """Two gradients of one loss, rounded differently."""
    away = [a if b is None else b if a is None else dense(a) - dense(b) for a, b in zip(found, expected, strict=True)]
    eps = max((torch.finfo(part.dtype).eps for part in expected if part is not None), default=0.0)
    return bool(squares(away).sum() <= eps * squares(expected).sum())


def squares(gradients: Sequence[Tensor | None]) -> Tensor:
    """|g_i|^2 by tensor, 0 where there is none, in double precision on the CPU."""
    found = [torch.zeros(()) if gradient is None else squared_norm(gradient) for gradient in gradients]
    return torch.stack([square.double().cpu() for square in found])
