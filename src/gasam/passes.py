"""One pass: calls the loss function, checks its result, runs backward and reads the factor; interrupts held back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import partial
from inspect import currentframe, signature
from operator import is_not
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gasam.distributed import is_sharded
from gasam.torch_private import get_gradient

Around = Callable[[int, bool], AbstractContextManager[Any]]
Backward = Callable[[Tensor], object]
GradientScale = Tensor | float | Callable[[], Tensor | float]


class Pass(NamedTuple):
    """The result of one pass.

    Attributes:
        loss: The loss, detached, as a scalar tensor.
        gradient_scale: The gradient in `.grad` divided by the gradient of the mean loss.
        loss_scale: `loss` divided by the mean loss; None if it is not known.
    """

    loss: Tensor
    gradient_scale: Tensor | float = 1.0
    loss_scale: Tensor | float | None = 1.0


def plainly(k: int, last: bool) -> AbstractContextManager[Any]:
    """The default `around`: no context manager."""
    return nullcontext()


def check_around(around: Around) -> None:
    """Raise if `around` is not a function of (k, last). A common mistake is `same_noise` instead of `same_noise()`."""
    try:
        signature(around).bind(0, True)
    except (TypeError, ValueError):
        raise TypeError(
            f"around must be a function of (k, last), got {around!r}: give same_noise() or frozen_batchnorm(model)"
        ) from None


def now(scale: GradientScale) -> Tensor | float:
    """The current value of a scale that may be a function."""
    return scale() if callable(scale) else scale


class uninterrupted:  # noqa: N801 - reads as a function
    """Holds back SIGINT (Ctrl-C) inside the block, so that it can't cut off a cleanup, except inside `let()`.

    The first signal that is let through closes the gate, so that cleanup runs undisturbed. One that was held back is
    delivered when the gate opens, or at the end of the block. Python delivers signals in the main thread only.
    """

    def __enter__(self) -> uninterrupted:
        self._before: Any = None
        self._open = self._pending = False
        if threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT)):
            self._before = signal.signal(signal.SIGINT, self._arrived)
        return self

    def __exit__(self, *failure: object) -> None:
        if self._before is not None:
            if signal.getsignal(signal.SIGINT) == self._arrived:
                signal.signal(signal.SIGINT, self._before)
            self._deliver()

    @contextmanager
    def let(self) -> Iterator[None]:
        """Let signals through, for passes and other long calls of the user's functions."""
        self._open = True
        self._deliver()
        try:
            yield
        finally:
            self._open = False

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if self._open:
            self._deliver()

    def _deliver(self) -> None:
        if self._pending:
            self._pending = self._open = False
            self._before(signal.SIGINT, currentframe())


def call(function: Callable[[], Any]) -> tuple[Tensor, Any]:
    """Call the loss function; return the loss with its graph, and its result with the loss detached."""
    if not callable(function):
        raise TypeError(
            f"SharpBackward must be called with a loss function, got {type(function).__name__}: "
            "put `lambda:` before the loss, so that it can be computed again"
        )
    result = function()
    loss = loss_in(result)
    if not isinstance(loss, Tensor):
        hint = ": is a `return` missing?" if loss is None else ""
        raise TypeError(
            "the loss function must return the loss as a tensor, (loss, anything), or an output with a loss, got "
            f"{type(loss).__name__}{hint}"
        )
    if loss.numel() != 1:
        raise ValueError(f"the loss must be a single number, got the shape {tuple(loss.shape)}: take its mean")
    if not loss.requires_grad:
        raise RuntimeError(
            "the loss has no graph to differentiate: call outside torch.no_grad(), do not detach results, and leave "
            "at least one parameter unfrozen"
        )
    return loss, _with_loss(result, loss.detach())


def loss_in(result: Any) -> Any:
    """The loss in a result: the result itself, the first of a tuple, or the "loss" of a mapping."""
    if isinstance(result, tuple) and result:
        return result[0]
    if isinstance(result, Mapping):
        return result.get("loss", result)
    return result


def _with_loss(result: Any, loss: Tensor) -> Any:
    """The result of the loss function, with its loss replaced by this one."""
    if isinstance(result, tuple):
        make = getattr(result, "_make", tuple)  # a namedtuple stays one
        return make((loss, *result[1:]))
    if isinstance(result, MutableMapping):
        result = copy(result)
        result["loss"] = loss
        return result
    return {**result, "loss": loss} if isinstance(result, Mapping) else loss


def back(loss: Tensor, backward: Backward, part: float) -> Tensor:
    """Call `backward` on `part` times the loss; return the factor that both applied to the gradient."""
    with derivatives(loss) as factors, explained():
        backward(loss if part == 1 else loss * part)
    if not factors:
        raise RuntimeError("backward did not differentiate the loss that it received: call .backward() on this loss")
    return factors[0].reshape(()) if len(factors) == 1 else torch.stack(factors).sum()


@contextmanager
def derivatives(tensor: Tensor) -> Iterator[list[Tensor]]:
    """Collect the gradients of a tensor from the backward passes inside the block."""
    seen: list[Tensor] = []
    hook = tensor.register_hook(seen.append)  # type: ignore[no-untyped-call]
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def explained() -> Iterator[None]:
    """Instead of torch's message about a freed graph raise one that names the cause and the cure."""
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise RuntimeError(
            "the loss depends on a result of an earlier pass, or on one that was computed before the call: "
            "compute everything from the inputs inside the function"
        ) from error


def have_gradients(parameters: Sequence[Tensor]) -> bool:
    return any(map(partial(is_not, None), map(get_gradient, parameters)))  # loops in C, because there may be thousands


def check_reached(parameters: Sequence[Tensor], otherwise: str) -> None:
    """Raise if no parameter has a gradient: because FSDP did not reduce it, or else with this message."""
    if have_gradients(parameters):
        return
    if any(map(is_sharded, parameters)):
        raise RuntimeError(
            "no sharded parameter got a gradient, because set_requires_gradient_sync(False) keeps FSDP from reducing "
            "it: leave it True, also while accumulating, because the walk reads the gradient of every pass"
        )
    raise RuntimeError(otherwise)
