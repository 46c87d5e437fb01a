"""What a run remembers besides its weights and is checkpointed with them, and what it tells while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass
class Progress:
    """`epoch` counts epochs that ended, `step` the steps since; `loss` is the sum over these."""

    epoch: int = 0
    step: int = 0
    updates: int = 0
    passes: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    best: float | None = None
    best_epoch: int | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        """The last epoch's mean loss was not finite."""
        return bool(self.curve) and self.curve[-1]["loss"] is None


class Update(NamedTuple):
    """How far a run is; `valid` is that of the last epoch that ended."""

    done: int
    steps: int
    epoch: int
    epochs: int
    valid: float | None


OnUpdate = Callable[[Update], None]


def nobody(update: Update) -> None:
    """For runs that nobody watches."""
