"""The choice of a run's final weights: the average of its last epochs, or the best epoch on validation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gasam.lab.training.checkpoints import Weights

if TYPE_CHECKING:
    from gasam.lab.training.loop import Training


def keep_weights(training: Training, valid: float) -> None:
    """After an epoch, save its weights if they may be chosen or averaged."""
    progress, checkpoints, averaged = training.progress, training.checkpoints, training.settings.average
    if averaged:
        training.write(checkpoints.epoch(progress.epoch), training.weights())
        # Keep one more than is averaged: a run that is killed before it saves its state resumes one epoch earlier.
        checkpoints.forget_epoch(progress.epoch - averaged - 1)
    if math.isfinite(valid) and training.family.followed.better(valid, progress.best):
        progress.best, progress.best_epoch = valid, progress.epoch
        if not averaged:
            training.write(checkpoints.best, training.weights())


def chosen_weights(training: Training) -> Weights | None:
    """After training, the final weights; None if no epoch had a finite validation score.

    If an averaged run diverged, it falls back to the best epoch, of which no weights are kept: None.
    """
    progress, checkpoints, averaged = training.progress, training.checkpoints, training.settings.average
    if averaged and not progress.diverged:
        return checkpoints.average(progress.epoch, min(averaged, progress.epoch))
    return checkpoints.load(checkpoints.best)
