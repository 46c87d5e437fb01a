"""The training loop of every set-up and variant: the lines that a user has, and what is recorded after each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Generator, nn

from benchmarks.first_use.setup import Setup
from gasam import SharpBackward

History = dict[str, list[float]]
MakeSharp = Callable[[nn.Module], SharpBackward | None]


def train(setup: Setup, make_sharp: MakeSharp, seed: int, epochs: int) -> History:
    """Train one model and evaluate it after each epoch.

    Args:
        setup: The training program.
        make_sharp: The variant: a function that returns the model's `SharpBackward`, or None for plain training.
        seed: Decides the initial weights, the order of the batches and the dropout masks.
        epochs: Number of epochs.

    Returns:
        One value for each epoch of "validation", "test", "train_loss" (mean over the epoch's clean passes), "passes"
        (forward and backward passes so far) and "seconds" (processor time of training so far, without evaluation).
    """
    torch.manual_seed(seed)
    order = Generator().manual_seed(seed)
    model = setup.model()
    optimizer = setup.make_optimizer(model)
    sharp = make_sharp(model)
    history: History = {name: [] for name in ("validation", "test", "train_loss", "passes", "seconds")}
    passes, seconds = 0, 0.0
    for _ in range(epochs):
        start = time.process_time()
        loss, taken = _epoch(setup, model, optimizer, sharp, order)
        passes, seconds = passes + taken, seconds + time.process_time() - start
        values = {"train_loss": loss, "passes": passes, "seconds": seconds, **_scores(setup, model)}
        for name, value in values.items():
            history[name].append(value)
    return history


def _epoch(
    setup: Setup, model: nn.Module, optimizer: torch.optim.Optimizer, sharp: SharpBackward | None, order: Generator
) -> tuple[float, int]:
    """The mean loss of the epoch and the number of passes."""
    model.train()
    losses: list[float] = []
    passes = 0
    carried: Any = None
    for batch in setup.batches(order):
        optimizer.zero_grad()
        loss_function = partial(setup.loss, model, batch, carried)
        if sharp is None:
            loss, carried = loss_function()
            loss.backward()  # type: ignore[no-untyped-call]
            passes += 1
        else:
            loss, carried = sharp(loss_function)
            passes += 1 if sharp.last is None else len(sharp.last.losses)
        if setup.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
        optimizer.step()
        losses.append(loss.item())
    return math.fsum(losses) / len(losses), passes


@torch.no_grad()
def _scores(setup: Setup, model: nn.Module) -> dict[str, float]:
    model.eval()
    return {"validation": setup.score(model, "valid"), "test": setup.score(model, "test")}
