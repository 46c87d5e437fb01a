"""Losses that are the negative logarithm of a known distribution, which the Fisher matrix needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def second_part(batch: Any) -> Tensor:
    """The targets of a batch that is a pair of inputs and targets."""
    return batch[1]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CrossEntropy:
    """The mean cross-entropy of each row, for outputs (rows, .., classes) and targets (rows, ..) of class numbers.

    Args:
        targets: Returns the targets of a batch; by default its second part.
        ignored: Targets with this value, such as padding, do not count. A row without other targets has loss 0.
        label_smoothing: As in torch's `cross_entropy`, from 0 to 1.
    """

    targets: Callable[[Any], Tensor] = second_part
    ignored: int = -100
    label_smoothing: float = 0.0

    def __call__(self, outputs: Tensor, batch: Any) -> Tensor:
        targets = self.targets(batch)
        if targets.shape != outputs.shape[:-1]:
            raise ValueError(
                f"outputs must have the shape of the targets and a last dimension for the classes, got outputs "
                f"{tuple(outputs.shape)} for targets {tuple(targets.shape)}"
            )
        losses = cross_entropy(
            outputs.flatten(0, -2),
            targets.flatten().long(),
            ignore_index=self.ignored,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        if targets.ndim == 1:
            return losses
        counted = (targets != self.ignored).flatten(1).sum(1).clamp(min=1)
        return losses.view(len(targets), -1).sum(1) / counted


@dataclass(frozen=True)
class SquaredError:
    """The mean squared error of each row, for outputs and targets of the same shape (rows, ..)."""

    targets: Callable[[Any], Tensor] = second_part

    def __call__(self, outputs: Tensor, batch: Any) -> Tensor:
        targets = self.targets(batch)
        if targets.shape != outputs.shape:
            raise ValueError(
                f"outputs and targets must have the same shape, got {tuple(outputs.shape)} and {tuple(targets.shape)}"
            )
        return torch.square(outputs - targets).reshape(len(targets), -1).mean(1)
