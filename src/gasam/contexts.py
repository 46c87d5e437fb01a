"""Context managers for passes, given as `around`: `same_noise`, `frozen_batchnorm` and `together`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gasam.distributed import is_expanded
from gasam.passes import Around
from gasam.torch_private import version


class same_noise:  # noqa: N801 - reads as a function, like contextlib.suppress
    """All passes of a step draw the same random numbers, and so use the same dropout masks.

    Afterwards the random number generators are in the state that one plain pass would leave. Covers torch's default
    generators of the CPU and of the accelerators in use, not generators that you create.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._rewinds: dict[int, Callable[[], None]] = {}  # by nesting depth, because a pass may contain a walk

    @contextmanager
    def __call__(self, k: int, last: bool) -> Iterator[None]:
        depth, restore = self._depth, _restore_noise()
        if k == 0:
            self._rewinds[depth] = restore
        elif k > 0:  # passes of `ascent`, before the first, have k = -1
            self._rewinds[depth]()
        self._depth = depth + 1
        try:
            yield
        finally:
            self._depth = depth
            if k != 0:
                restore()


class frozen_batchnorm:  # noqa: N801
    """Only the first pass of the loss function updates running statistics. All normalise by those of their batch.

    Running statistics are all buffers that a clean pass changes, for example those of BatchNorm, InstanceNorm and
    spectral norm. They are restored after each displaced pass.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"frozen_batchnorm needs the model, got {type(model).__name__}")
        self.model = model
        self._changed: set[tuple[nn.Module, str]] | None = None  # by clean passes so far

    def __call__(self, k: int, last: bool) -> AbstractContextManager[Any]:
        if k == 0:
            return nullcontext() if last else self._watched()
        buffers = _buffers(self.model)
        if k > 0:
            buffers = {place: buffer for place, buffer in buffers.items() if place in (self._changed or ())}
        return restored(buffers)  # of a pass of `ascent`, which may be the first of all passes, every buffer

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Record which buffers the clean pass changes.

        The first one compares the values of all buffers, because torch does not detect every write. Later ones compare
        torch's version counters, and include "running_" buffers in case a module leaves evaluation mode.
        """
        before = _buffers(self.model)
        versions = {place: (id(buffer), version(buffer)) for place, buffer in before.items()}
        values = {} if self._changed is not None else {place: b.detach().clone() for place, b in before.items()}
        yield
        changed = self._changed or set()
        for place, buffer in _buffers(self.model).items():
            written = versions.get(place) != (id(buffer), version(buffer)) or place[1].startswith("running_")
            if written or (place in values and not buffer.is_meta and not torch.equal(buffer, values[place])):
                changed.add(place)
        self._changed = changed


Buffers = dict[tuple[nn.Module, str], Tensor]


def _buffers(model: nn.Module) -> Buffers:
    found: Buffers = {}
    for module in model.modules():
        named = module.named_buffers(recurse=False, remove_duplicate=False)
        found |= {(module, name): buffer for name, buffer in named}
    return found


@contextmanager
def restored(buffers: Buffers) -> Iterator[None]:
    """Restore buffers and their values after the block. An expanded buffer can't be written: a copy replaces it."""
    values = {place: buffer.detach().clone() for place, buffer in buffers.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, name), buffer in buffers.items():
                value = values[module, name]
                setattr(module, name, value if is_expanded(buffer) else buffer.copy_(value))


class together:  # noqa: N801
    """Combines several context managers around each pass; the first is the outermost."""

    def __init__(self, *arounds: Around) -> None:
        self.arounds = arounds

    @contextmanager
    def __call__(self, k: int, last: bool) -> Iterator[None]:
        with ExitStack() as stack:
            for each in self.arounds:
                stack.enter_context(each(k, last))
            yield


def includes(around: Around, kind: type) -> bool:
    """Whether `around` is, or contains, a context manager of this class."""
    inner = around.arounds if isinstance(around, together) else ()
    return isinstance(around, kind) or any(includes(each, kind) for each in inner)


@contextmanager
def unchanged_state(model: nn.Module | None, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Begin without gradients; afterwards restore them, the model's buffers and the random number generators."""
    gradients, restore_noise = [parameter.grad for parameter in parameters], _restore_noise()
    for parameter in parameters:
        parameter.grad = None
    try:
        with restored({} if model is None else _buffers(model)):
            yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        restore_noise()


Statistics = Literal["clean pass", "every pass"]


def freezing(model: nn.Module | None, batchnorm: object, around: Around) -> Around:
    """`around`, plus `frozen_batchnorm` if the model is given, has buffers, and `batchnorm` is "clean pass"."""
    if batchnorm not in get_args(Statistics):
        raise ValueError(f"batchnorm must be 'clean pass' or 'every pass', got {batchnorm!r}")
    if model is None or batchnorm == "every pass" or includes(around, frozen_batchnorm) or not _buffers(model):
        return around
    return together(frozen_batchnorm(model), around)


def _restore_noise() -> Callable[[], None]:
    """Sets the default generators, of the CPU and of accelerators in use, back to their present state."""
    on_cpu, on_devices = torch.get_rng_state(), list[Tensor]()
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    if module is not None and getattr(module, "is_initialized", lambda: True)():  # does not initialise any other
        on_devices = [module.get_rng_state(i) for i in range(torch.accelerator.device_count())]

    def restore() -> None:
        torch.set_rng_state(on_cpu)
        for i, state in enumerate(on_devices):
            module.set_rng_state(state, i)

    return restore
