"""Squared norms of the gradients of single examples, by tensor, holding no more than a chunk of the gradients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.gradients import squared_norm
from gasam.analysis.objective import Objective
from gasam.analysis.values import check_whole
from gasam.tensors import wide

_HELD_AT_ONCE = 1 << 24


def differentiable_losses(model: nn.Module, objective: Objective, batch: Any) -> Tensor:
    with torch.enable_grad():
        losses = objective(model, batch)
    if not losses.requires_grad:
        raise ValueError("the losses do not depend on any weight: objective.forward must run the model with gradients")
    return losses


def example_squares(losses: Tensor, weights: Sequence[Tensor], chunk: int | None = None) -> Tensor:
    """|grad_i l_j|^2 for example j and tensor i, in double precision on the CPU; the losses' graph is kept.

    A chunk goes backward at once where every operation can be vectorised, else example by example. By default it is
    as large as 16 million values allow.
    """
    if chunk is None:
        chunk = max(1, _HELD_AT_ONCE // max(1, sum(weight.numel() for weight in weights)))
    check_whole("chunk", chunk, 1)
    found: list[Tensor] = []
    for start in range(0, len(losses), chunk):
        chosen = torch.zeros(min(chunk, len(losses) - start), len(losses), dtype=losses.dtype, device=losses.device)
        chosen.diagonal(start).fill_(1)
        together = _together(losses, weights, chosen) if len(chosen) > 1 else None
        found.append(_one_by_one(losses, weights, chosen) if together is None else together)
    return torch.cat(found)


def squares(gradients: Sequence[Tensor | None]) -> Tensor:
    """|g_i|^2 by tensor, 0 where there is none."""
    found = [torch.zeros(()) if gradient is None else squared_norm(gradient) for gradient in gradients]
    return torch.stack([square.double().cpu() for square in found])


def _together(losses: Tensor, weights: Sequence[Tensor], chosen: Tensor) -> Tensor | None:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*batching rule.*")
            found = grad(losses, weights, chosen, retain_graph=True, allow_unused=True, is_grads_batched=True)
    except RuntimeError:  # an operation without a rule; if it is anything else, it comes again below
        return None
    none = torch.zeros(len(chosen))
    columns = [none if g is None else g.flatten(1).to(wide(g.dtype)).square().sum(1) for g in found]
    return torch.stack([column.double().cpu() for column in columns], dim=1)


def _one_by_one(losses: Tensor, weights: Sequence[Tensor], chosen: Tensor) -> Tensor:
    rows = [squares(grad(losses, weights, one, retain_graph=True, allow_unused=True)) for one in chosen]
    return torch.stack(rows)
