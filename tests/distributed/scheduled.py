"""Checks that DDP and FSDP2 share: the schedule follows all workers' losses, and an overflow reaches all of them."""

import math
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, ga_sam


def schedule_error(model, own_rows) -> float:
    """How far the strengths are from those of the mean loss of all workers, computed again in plain Python."""
    sharp = SharpBackward(model, ga_sam(budget=0.05, cap=0.05), schedule=Schedule(progress=0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, y = own_rows
    losses, strengths = [], []
    for _ in range(45):
        optimizer.zero_grad()
        loss = sharp(lambda: cross_entropy(model(x), y)).clone()
        strengths.append(sharp.last.strength)
        optimizer.step()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, strengths)
    assert all(other == strengths for other in of_all)
    assert max(strengths) > 0
    initial = smoothed = sum(losses[:10]) / 10
    expected = [0.0] * 20
    for block in (1, 2, 3):
        smoothed = 0.6 * smoothed + 0.4 * sum(losses[10 * block : 10 * block + 10]) / 10
        expected += [min(1.0, max(0.0, (initial - smoothed) / (0.1 * initial)))] * 10
    return max(abs(found - other) for found, other in zip(strengths, expected, strict=False))


def overflow_gradients(model, own_rows, gradients_of) -> bool:
    """One worker's displaced pass overflows: do all workers get the clean gradient?"""
    x, y = own_rows
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    clean = [g.clone() for g in gradients_of(model)]
    model.zero_grad()
    passes = []

    def loss():
        passes.append(1)
        breaks = len(passes) == 2 and dist.get_rank() == 1
        return cross_entropy(model(x), y) * (math.inf if breaks else 1.0)

    SharpBackward(model, ga_sam(0.3), on_overflow="clean")(loss)
    return all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(gradients_of(model), clean, strict=True))


def weighted_walk_error(model, own_rows, gradients_of, around=None) -> float:
    """How far the gradient of a walk of weight 3 is from g_0 + 3 (fold - g_0), for both risks; every third step walks.

    A wrong number of passes gives an infinite error.
    """
    x, y = own_rows

    def gradient(sharp=None):
        model.zero_grad()
        sharp(lambda: cross_entropy(model(x), y)) if sharp else cross_entropy(model(x), y).backward()
        return torch.cat([g.reshape(-1).clone() for g in gradients_of(model)])

    clean, errors = gradient(), []
    for risk in ("mean", "final"):
        walk = replace(ga_sam(0.3, steps=2), risk=risk)
        fold = gradient(SharpBackward(model, walk, around=around))
        sharp = SharpBackward(model, walk, schedule=Schedule(every=3), around=around)
        found, passes = gradient(sharp), [len(sharp.last.losses)]
        errors.append((found - clean - 3 * (fold - clean)).norm().item() / found.norm().item())
        for _ in range(3):
            gradient(sharp)
            passes.append(len(sharp.last.losses))
        errors.append(0.0 if passes == [3, 1, 1, 3] else math.inf)
    return max(errors)
