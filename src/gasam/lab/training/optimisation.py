"""The optimizers and learning-rate schedules that a recipe can name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gasam.lab.families.family import Recipe


def optimizer_for(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    rate, decay = recipe.learning_rate, recipe.weight_decay
    parameters: Any = model.parameters()
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, weight_decay=decay)
    adam = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return adam(parameters, rate, recipe.betas, weight_decay=decay, fused=True)


def rate_factor(recipe: Recipe, epoch: int, update: int, updates: int) -> float:
    """The learning rate of an update as a multiple of the full one. It has no state to save in a checkpoint.

    Args:
        recipe: Names the schedule. "halving" halves the rate in every epoch after `halve_after`. The others rise
            linearly for `warmup` updates. Then "inverse_sqrt" falls with the square root of the number of updates,
            and "linear" and "cosine" fall to zero at the end.
        epoch: The epoch, counted from 1.
        update: The update, counted from 1 over all epochs.
        updates: The number of updates of the whole run.
    """
    warmup = max(1, recipe.warmup)
    if recipe.schedule == "halving":
        return float(0.5 ** max(0, epoch - recipe.halve_after))
    if recipe.schedule == "inverse_sqrt":
        return min(update / warmup, math.sqrt(warmup / update))
    if recipe.schedule == "constant":
        return 1.0
    if update <= recipe.warmup:
        return update / warmup
    left = (updates - update + 1) / max(1, updates - recipe.warmup)
    return left if recipe.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2
