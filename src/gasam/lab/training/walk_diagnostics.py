"""Means over the walks of an epoch: how far they move the weights, how strongly, and by how much the loss rises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from gasam.trace import CLIMBED, Trace, comparable_norms

TOGETHER = 64
"""Walks whose numbers are computed together, because many small operations would slow a training step down."""
LARGEST = 1 << 20
"""Numbers that wait at most; walks with many groups are computed earlier."""
MEANS = ("ratio", "largest_ratio", "capped", "predicted_rise", "rise")


class _Walk(NamedTuple):
    """What is kept of a trace until its numbers are computed; the tensors of groups are empty if it has none.

    The loss functions of all tasks return a mean, so losses need no scale.
    """

    outcome: Tensor
    loss: Tensor
    last_loss: Tensor
    predicted_rise: Tensor
    norm: Tensor
    rms_weight: Tensor
    offsets: Tensor
    weights: Tensor
    sizes: Tensor
    capped: Tensor


class WalkDiagnostics:
    """Sums up the walks of an epoch on the device, without synchronising before the epoch ends.

    Args:
        capped: Whether the walks have a cap; without one the share of capped groups is left out.
        device: The device of the model.
    """

    def __init__(self, capped: bool, device: torch.device) -> None:
        self._has_cap = capped
        self._sums = torch.zeros(1 + len(MEANS), dtype=torch.float64, device=device)  # finite walks, then MEANS
        self._start()

    def _start(self) -> None:
        self._walks, self._strength, self._has_groups = 0, 0.0, True
        self._waiting: list[_Walk] = []
        self._sums.zero_()

    def add(self, trace: Trace) -> None:
        """Count a training step; one without a walk changes nothing."""
        if len(trace.losses) == 1:
            return
        self._walks += 1
        self._strength += trace.strength
        walk = _kept(trace)
        if self._waiting and self._waiting[-1].offsets.shape != walk.offsets.shape:
            self._compute()
        self._waiting.append(walk)
        self._has_groups = trace.groups is not None
        if len(self._waiting) >= min(TOGETHER, 1 + LARGEST // max(1, len(walk.offsets))):
            self._compute()

    def end_epoch(self, accelerator: Accelerator) -> dict[str, Any]:
        """The entry `walk` of the epoch's row in the curve, or nothing if there was no walk. The next epoch begins.

        Means are over the finite walks. Processes have the same walks but other losses, so their rises are averaged.
        """
        if not self._walks:
            return {}
        self._compute()
        finite, *sums = accelerator.reduce(self._sums, reduction="mean").tolist()
        row: dict[str, Any] = {"walks": self._walks}
        if self._has_groups:
            row["strength"] = self._strength / self._walks
        known = set(MEANS) if self._has_groups else {"rise"}
        known -= set() if self._has_cap else {"capped"}
        if finite:
            means = {name: total / finite for name, total in zip(MEANS, sums, strict=True) if name in known}
            row |= {name: mean for name, mean in means.items() if math.isfinite(mean)}
        self._start()
        return {"walk": row}

    def state_dict(self) -> dict[str, Any]:
        """The walks since the last epoch, with those that wait, so that a resumed run adds in the same order."""
        return {
            "walks": self._walks,
            "strength": self._strength,
            "has_groups": self._has_groups,
            "sums": self._sums.clone(),
            "waiting": [tuple(walk) for walk in self._waiting],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        device = self._sums.device
        self._walks, self._strength, self._has_groups = state["walks"], state["strength"], state["has_groups"]
        self._sums = state["sums"].to(device)
        self._waiting = [_Walk(*(part.to(device) for part in walk)) for walk in state["waiting"]]

    @torch.no_grad()
    def _compute(self) -> None:
        """Add the numbers of the waiting walks to the sums. A walk that was not finite or did not move adds nothing."""
        if not self._waiting:
            return
        walks = _Walk(*(torch.stack(parts) for parts in zip(*self._waiting, strict=True)))
        self._waiting = []
        ratio = walks.norm / walks.weights.square().sum(1).sqrt().clamp(min=1e-30)
        ratios = walks.offsets / comparable_norms(walks.weights, walks.sizes, walks.rms_weight.unsqueeze(1))
        nothing = torch.zeros_like(ratio)
        largest = ratios.amax(1) if ratios.shape[1] else nothing
        capped = walks.capped.double().mean(1) if ratios.shape[1] else nothing
        climbed = walks.outcome == CLIMBED
        rise = walks.last_loss.double() - walks.loss.double()
        numbers = torch.stack([part.double() for part in (ratio, largest, capped, walks.predicted_rise, rise)])
        numbers = torch.where(climbed, numbers, 0.0)
        self._sums += torch.cat([climbed.sum().double().reshape(1), numbers.sum(1)])


def _kept(trace: Trace) -> _Walk:
    groups, first, last, norm = trace.groups, trace.losses[0], trace.losses[-1], trace.norms[-1]
    if groups is None or trace.predicted_rise is None:
        empty, nothing = norm.new_empty(0), torch.zeros_like(norm)
        return _Walk(trace.active, first, last, nothing, norm, nothing, empty, empty, empty, empty)
    of_groups = groups.rms_weight, groups.offsets, groups.weights, groups.sizes, groups.capped
    return _Walk(trace.active, first, last, trace.predicted_rise, norm, *of_groups)
