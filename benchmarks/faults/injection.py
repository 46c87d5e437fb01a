"""Raises a failure at a chosen torch operation or at a chosen line of gasam, and records where that was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

import gasam

SOURCE = str(Path(gasam.__file__).parent)
ALLOCATIONS = ("empty", "clone", "zeros", "ones", "full", "_to_copy", "cat", "stack", "new_", "scalar_tensor")
PLACES = {
    "undo": "undoing .grad",
    "restore": "the restore",
    "_restored": "the restore",
    "_restore_rebound": "the restore",
    "set_aside": "the fold",
    "make_room": "the fold",
    "finish": "the fold",
    "back": "a backward pass",
    "call": "a forward pass",
    "closure": "a closure",
    "count": "the schedule",
    "add": "the watch",
    "step": "an ascent step",
    "read_gradient": "an ascent step",
    "__init__": "the scale and direction",
}
"""By the name of a function of gasam, or of the user's closure, that is running: the innermost one counts."""


_ALLOCATES: dict[str, bool] = {}


def place_of(frame: FrameType | None) -> str:
    """What gasam is doing, judged by the functions on the stack."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE):
            if code.co_filename.endswith("contexts.py"):
                return "around a pass"
            if code.co_name in PLACES and (code.co_name != "step" or code.co_filename.endswith("ascent.py")):
                return PLACES[code.co_name]
        elif code.co_name == "closure":
            return PLACES["closure"]
        elif code.co_name == "around":
            return "around a pass"
        frame = frame.f_back
    return "elsewhere"


class AtOperation(TorchDispatchMode):
    """Raises at operation number `at`, once. Without a number it records the place of every operation.

    Args:
        at: The number of the operation; None means that nothing is raised.
        failure: What to raise.
        only_allocations: Count only operations that allocate memory.
        counting: Count only while this returns True.
    """

    def __init__(
        self,
        at: int | None = None,
        failure: Callable[[], BaseException] = KeyboardInterrupt,
        *,
        only_allocations: bool = False,
        counting: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self.at, self.failure, self.only_allocations, self.counting = at, failure, only_allocations, counting
        self.seen = 0
        self.places: list[tuple[str, bool]] = []  # of every operation, and whether it allocates
        self.raised_in: str | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the check takes longer than the operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name not in _ALLOCATES:
            _ALLOCATES[name] = any(word in name for word in ALLOCATIONS)
        allocates = _ALLOCATES[name]
        if name.startswith("profiler."):  # torch's optimizers record themselves, before and after their step
            pass
        elif self.at is None:
            self.places.append((place_of(sys._getframe(1)), allocates))
        elif self.raised_in is None and (allocates or not self.only_allocations) and self.counting():
            if self.seen == self.at:
                self.raised_in = place_of(sys._getframe(1))
                raise self.failure()
            self.seen += 1
        return func(*args, **(kwargs or {}))


class AtLine:
    """Raises KeyboardInterrupt before line number `at` of gasam that runs, as a signal does between two lines.

    Without a number it records the function of every line.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.seen = 0
        self.places: list[tuple[str, str]] = []
        self.raised_in: str | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "line" or self.raised_in is not None:
            return self._line
        if self.at is None:
            self.places.append((frame.f_code.co_filename, frame.f_code.co_name))
        elif self.seen == self.at:
            self.raised_in = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
            raise KeyboardInterrupt
        self.seen += 1
        return self._line
