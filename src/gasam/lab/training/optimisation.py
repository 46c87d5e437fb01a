"""The optimizers and learning-rate schedules that a recipe can name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from gasam.lab.families import Recipe


def optimizer_for(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    rate, decay = recipe.learning_rate, recipe.weight_decay
    parameters: Any = model.parameters()
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, weight_decay=decay)
    adam = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return adam(parameters, rate, recipe.betas, weight_decay=decay, fused=True)


def learning_rate(recipe: Recipe, epoch: int, update: int) -> float:
    """The learning rate of an update. It has no state, so a checkpoint need not save it.

    Args:
        recipe: Names the schedule. "halving" halves the rate in every epoch after `halve_after`. "inverse_sqrt" rises
            linearly for `warmup` updates, then falls with the square root of their number.
        epoch: The epoch, counted from 1.
        update: The update, counted from 1 over all epochs.
    """
    if recipe.schedule == "halving":
        return recipe.learning_rate * 0.5 ** max(0, epoch - recipe.halve_after)
    if recipe.schedule == "inverse_sqrt":
        warmup = max(1, recipe.warmup)
        return recipe.learning_rate * min(update / warmup, math.sqrt(warmup / update))
    return recipe.learning_rate
