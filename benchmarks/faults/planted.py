"""Bugs that are planted into the walk while the campaign runs: it must notice every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.faults import kept, walk
from gasam import backward, fold, schedule, step
from gasam import walk as walks
from gasam.portions import Portion
from gasam.torch_private import copy_all
from gasam.weights import Weights

FAULTS = 1_500
"""The campaign must notice a bug within this many faults."""
SEED = 3


def restore_skips_a_tensor() -> Any:
    def restore(self: Portion) -> None:
        if self.saved and len(self.operands) > 1:
            copy_all(self.operands[1:], self._saved[1:])

    return patch.object(Portion, "restore", restore)


def restore_by_subtraction() -> Any:
    """w + a - a is not w in floating point."""

    def restore(self: Portion) -> None:
        if self.saved:
            for weight, saved in zip(self.operands, self._saved, strict=True):
                weight.sub_(weight - saved)

    return patch.object(Portion, "restore", restore)


def restore_only_after_exceptions() -> Any:
    """KeyboardInterrupt is not an Exception."""

    @contextmanager
    def restored(weights: Weights) -> Iterator[None]:
        try:
            yield
        except Exception:
            weights.walking = False
            weights.restore()
            raise
        except BaseException:
            weights.walking = False
            raise
        weights.walking = False
        weights.restore()

    return patch.object(walks, "_restored", restored)


def saved_weights_are_kept() -> Any:
    """The next walk would start from the weights of an earlier one."""
    original = Weights.restore

    def restore(self: Weights) -> None:
        original(self)
        for portion in self._layout.portions if self._layout is not None else ():
            portion.saved = True

    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(Weights, "restore", restore), patch.object(Weights, "begin", _only_marks):
            yield

    return both()


def _only_marks(weights: Weights) -> None:
    weights.walking = True


def gradients_of_a_half_finished_pass() -> Any:
    return patch.object(fold.Fold, "undo", lambda self: None)


def gradients_are_not_copied_back() -> Any:
    """The caller's tensors are put back, but not the values that the failed pass added to."""

    def undo(self: fold.Fold) -> None:
        for parameter, own in zip(self._parameters, self._callers, strict=True):
            parameter.grad = own

    return patch.object(fold.Fold, "undo", undo)


def failed_step_is_counted() -> Any:
    original = backward.SharpBackward._walk

    def walk_and_count(self: Any, *args: Any) -> Any:
        try:
            return original(self, *args)
        except BaseException:
            self.strength.step += self.strength.schedule is not None
            raise

    def prepare(self: Any, strength: float, original: Any = backward.SharpBackward._prepare) -> Any:
        made, _ = original(self, strength)
        return made, made.undo if made is not None else lambda: None

    @contextmanager
    def both() -> Iterator[None]:
        with patch.object(backward.SharpBackward, "_walk", walk_and_count):
            with patch.object(backward.SharpBackward, "_prepare", prepare):
                yield

    return both()


def schedule_is_half_counted() -> Any:
    """As it was before the campaign: a failure in the count left the loss, but not the step."""
    return patch.object(schedule.Strength, "remembered", lambda self: lambda: None)


def method_keeps_nan() -> Any:
    original = step.MethodState.write

    def write(self: Any, name: str, parameter: Any, value: Any, finite: Any) -> None:
        original(self, name, parameter, value, torch.ones_like(finite))

    return patch.object(step.MethodState, "write", write)


def restore_is_not_repeated() -> Any:
    """As it was before the campaign: a portion that failed once was not written again."""
    original = Weights.restore

    def restore(self: Weights) -> None:
        try:
            original(self)
        except RuntimeError:
            for portion in self._layout.portions if self._layout is not None else ():
                portion.saved = False
            raise

    return patch.object(Weights, "restore", restore)


BUGS: dict[str, Callable[[], Any]] = {
    "the restore skips one tensor": restore_skips_a_tensor,
    "the restore subtracts the offset": restore_by_subtraction,
    "the restore ignores interrupts": restore_only_after_exceptions,
    "the restore is not repeated after a failure": restore_is_not_repeated,
    "the saved weights are kept for the next walk": saved_weights_are_kept,
    "a half-finished pass leaves its gradients": gradients_of_a_half_finished_pass,
    "the caller's gradients are not copied back": gradients_are_not_copied_back,
    "a failed step advances the schedule": failed_step_is_counted,
    "a failed count of the schedule is kept": schedule_is_half_counted,
    "the method keeps NaN": method_keeps_nan,
}


def run(seed: int = SEED, names: Any = BUGS) -> dict[str, int | None]:
    """For each bug, the number of faults until the campaign noticed it; None if it did not."""
    found: dict[str, int | None] = {}
    for name in names:
        with BUGS[name]():
            try:
                result = walk.run(seed, FAULTS, stop_at_first=True)
            except RuntimeError:  # even a step without a fault fails
                found[name] = 0
                continue
        found[name] = result["faults"] if result["lost"] else None
    return found


def write_one(file: Path, name: str) -> None:
    torch.set_num_threads(1)
    kept.write(file, {"bug": name, "faults": run(names=[name])[name]})
