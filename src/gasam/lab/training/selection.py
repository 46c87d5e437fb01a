"""Which weights of a run are judged: the average of its last epochs, or those of the epoch best on validation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gasam.lab.training.checkpoints import Weights

if TYPE_CHECKING:
    from gasam.lab.training.loop import Training


def keep_weights(training: Training, valid: float) -> None:
    """After an epoch: keep its weights if they may be judged."""
    progress, checkpoints, averaged = training.progress, training.checkpoints, training.settings.average
    if averaged:
        training.write(checkpoints.epoch(progress.epoch), training.weights())
        # One more than is averaged: a run that is killed before it saves its state goes on from the epoch before.
        checkpoints.forget_epoch(progress.epoch - averaged - 1)
    if math.isfinite(valid) and training.family.followed.better(valid, progress.best):
        progress.best, progress.best_epoch = valid, progress.epoch
        if not averaged:
            training.write(checkpoints.best, training.weights())


def chosen_weights(training: Training) -> Weights | None:
    """After training: the weights to be judged. None if there is no finite number, or if an averaged run diverged."""
    progress, checkpoints, averaged = training.progress, training.checkpoints, training.settings.average
    if averaged and not progress.diverged:
        return checkpoints.average(progress.epoch, min(averaged, progress.epoch))
    return checkpoints.load(checkpoints.best)
