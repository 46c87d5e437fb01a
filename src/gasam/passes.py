"""Contexts around a pass: what the passes of one step share, and what only the clean one may change.

Each is made once and given as `around`; `together` joins several. They nest, and undo themselves on exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gasam.evaluation import Around


class same_noise:  # noqa: N801 - reads as a function, like contextlib.suppress
    """Every pass of a step draws the same random numbers, so the same dropout masks.

    Afterwards the generators stand where one plain pass would have left them. Covers the CPU and the accelerators
    in use; a generator of the caller's own is the caller's.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._starts: dict[int, list[Tensor]] = {}  # by depth: a walk inside a pass has its own

    def __call__(self, k: int, last: bool) -> AbstractContextManager[None]:
        return self._pass(k)

    @contextmanager
    def _pass(self, k: int) -> Iterator[None]:
        depth, self._depth = self._depth, self._depth + 1
        now = _generator_states()
        try:
            if k == 0:
                self._starts[depth] = now
                yield
            else:
                _set_generator_states(self._starts[depth])
                try:
                    yield
                finally:
                    _set_generator_states(now)
        finally:
            self._depth = depth


def frozen_batchnorm(model: nn.Module) -> Around:
    """Running statistics count the clean pass only; the passes themselves normalise by their batch as ever."""

    @contextmanager
    def frozen() -> Iterator[None]:
        norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        before = [module.track_running_stats for module in norms]
        try:
            for module in norms:
                module.track_running_stats = False
            yield
        finally:
            for module, tracked in zip(norms, before, strict=True):
                module.track_running_stats = tracked

    return lambda k, last: frozen() if k > 0 else ExitStack()


def together(*arounds: Around) -> Around:
    """All of them around each pass, the first outermost."""

    @contextmanager
    def around(k: int, last: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for each in arounds:
                stack.enter_context(each(k, last))
            yield

    return around


def _accelerators() -> list[tuple[Any, int]]:
    """(device module, index) of every accelerator that has been used, so that asking wakes none up."""
    device = torch.accelerator.current_accelerator()
    if device is None:
        return []
    module = torch.get_device_module(device)
    if hasattr(module, "is_initialized") and not module.is_initialized():
        return []
    return [(module, i) for i in range(torch.accelerator.device_count())]


def _generator_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(module.get_rng_state(index) for module, index in _accelerators())]


def _set_generator_states(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for (module, index), state in zip(_accelerators(), states[1:], strict=False):
        module.set_rng_state(state, index)
