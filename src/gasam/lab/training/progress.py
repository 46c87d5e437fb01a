"""The progress of a run: the counters that its checkpoints hold, and the updates that it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass
class Progress:
    """The counters of a run.

    `epoch` is the number of finished epochs, `step` the number of steps since then, `loss` the sum over these steps.
    """

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
        """Whether the last epoch's mean loss was not finite."""
        return bool(self.curve) and self.curve[-1]["loss"] is None


class Update(NamedTuple):
    """The progress of a run in steps and epochs; `valid` is the score of the last finished epoch.

    An update with a `note` is a sentence for the user; its numbers mean nothing.
    """

    done: int
    steps: int
    epoch: int
    epochs: int
    valid: float | None
    note: str = ""


OnUpdate = Callable[[Update], None]


def ignore_update(update: Update) -> None:
    """Ignore updates."""
