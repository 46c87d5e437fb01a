"""The gradients of single examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.gradients import squared_norm
from gasam.analysis.objective import Objective


def example_gradients(
    model: nn.Module, objective: Objective, batch: Any, losses: Tensor, weights: Sequence[Tensor]
) -> Iterator[tuple[Tensor | None, ...]]:
    """Of each of the batch's losses, in order; None for a weight that it does not depend on.

    They cost least when each example is alone in its batch, so the batch is cut into rows where that gives the very
    losses that the whole batch gave; else a loss is sent back through the whole batch.
    """
    rows = len(losses)

    def alone(dimension: int, i: int) -> Tensor | None:
        try:
            found = objective(model, row(batch, dimension, i, rows))
        except Exception:  # whatever the user's code makes of half a batch, there is another way
            return None
        equal = found.requires_grad and same(found.detach(), losses[i : i + 1].detach())
        return found.squeeze(0) if equal else None

    counted = (d for d in (0, 1) if rows > 1 and all(alone(d, i) is not None for i in (0, rows - 1)))
    dimension = next(counted, None)
    for i in range(rows):
        loss = None if dimension is None else alone(dimension, i)
        if loss is None:
            yield grad(losses[i], weights, retain_graph=True, allow_unused=True)
        else:
            yield grad(loss, weights, allow_unused=True)


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


def same(found: Tensor, expected: Tensor) -> bool:
    """Alone or in a batch, a loss is rounded differently."""
    near = torch.finfo(expected.dtype).eps ** 0.5
    return found.shape == expected.shape and bool(torch.allclose(found, expected, rtol=near, atol=near))


def squares(gradients: Sequence[Tensor | None]) -> Tensor:
    """|g_i|^2 by tensor, 0 where there is none, in double precision on the CPU."""
    found = [torch.zeros(()) if gradient is None else squared_norm(gradient) for gradient in gradients]
    return torch.stack([square.double().cpu() for square in found])
