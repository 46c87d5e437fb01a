"""Bugs that are planted into the runs: each would lose work after a fault, so the campaign must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def optimizer_state_not_loaded() -> None:
    from accelerate.optimizer import AcceleratedOptimizer

    AcceleratedOptimizer.load_state_dict = lambda self, state: None


def wrong_step_after_resume() -> None:
    def change(training: Any) -> None:
        training.progress.step += training.progress.step > 0

    _after_resume(change)


def loss_of_the_epoch_lost() -> None:
    _after_resume(lambda training: training.loss.zero_())


def best_epoch_forgotten() -> None:
    def change(training: Any) -> None:
        training.progress.best, training.progress.best_epoch = None, None

    _after_resume(change)


def schedule_state_lost() -> None:
    from gasam import SharpBackward

    SharpBackward.load_state_dict = lambda self, state: None  # type: ignore[method-assign]


def record_before_the_model() -> None:
    from gasam.lab import records
    from gasam.lab.training import run

    real = run.RunFolder.write

    def write(self: Any, model: Any, family: Any, record: Any, *rest: Any) -> None:
        records.write(self.path.parent / f"{self.path.name}.json", record)
        real(self, model, family, record, *rest)

    run.RunFolder.write = write  # type: ignore[method-assign]


def checkpoint_not_atomic() -> None:

    @contextmanager
    def in_place(file: Path) -> Iterator[Path]:
        yield file

    from gasam.lab import storage

    storage.replaced = in_place


def file_not_synced() -> None:
    """The rename comes before the content is on the disk."""
    from gasam.lab import storage
    from gasam.lab.training import stored

    @contextmanager
    def replaced(file: Path) -> Iterator[Path]:
        partial = file.with_name(f".{file.name}.abcdefgh")
        yield partial
        partial.replace(file)

    storage.replaced = stored.replaced = replaced


def folder_not_synced() -> None:
    from gasam.lab import storage

    storage.sync_folder = lambda folder: None


def _after_resume(change: Callable[[Any], None]) -> None:
    from gasam.lab.training.loop import Training

    real = Training.resume

    def resume(self: Any, *given: Any) -> None:
        real(self, *given)
        if self.progress.updates:
            change(self)

    Training.resume = resume  # type: ignore[method-assign]


BUGS = (
    optimizer_state_not_loaded,
    wrong_step_after_resume,
    loss_of_the_epoch_lost,
    best_epoch_forgotten,
    schedule_state_lost,
    record_before_the_model,
    checkpoint_not_atomic,
    file_not_synced,
    folder_not_synced,
)
