"""One pass: call the loss function, check what it returns, run backward, and read the factor of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gasam.sharded import is_sharded
from gasam.trace import OFF, Trace, plain_trace

Around = Callable[[int, bool], AbstractContextManager[Any]]
Backward = Callable[[Tensor], object]
GradientScale = Tensor | float | Callable[[], Tensor | float]


class Pass(NamedTuple):
    """What one evaluation saw.

    `gradient_scale` is what the gradient of the mean loss was multiplied by on the way to `.grad`. `loss_scale` is how
    many times the mean loss `loss` is; None if that is not known. `alone` is whether `.grad` has only the gradient of
    this pass: before the last one, earlier gradients may have been put back.
    """

    loss: Tensor
    gradient_scale: Tensor | float = 1.0
    loss_scale: Tensor | float | None = 1.0
    alone: bool = True


def plainly(k: int, last: bool) -> AbstractContextManager[Any]:
    """Nothing around a pass."""
    return nullcontext()


def check_around(around: Around) -> None:
    """The usual slip is to give `same_noise` or `frozen_batchnorm` itself, not what it returns."""
    try:
        signature(around).bind(0, True)
    except (TypeError, ValueError):
        raise TypeError(
            f"around must be a function of (k, last), got {around!r}: same_noise() and frozen_batchnorm(model) give one"
        ) from None


def now(scale: GradientScale) -> Tensor | float:
    """The factor of this pass, where it may be a function."""
    return scale() if callable(scale) else scale


def plain_pass(
    function: Callable[[], Any],
    backward: Backward,
    around: Around,
    gradient_scale: GradientScale = 1.0,
    strength: float = 1.0,
    *,
    reason: int = OFF,
) -> tuple[Any, Trace]:
    """One pass without a walk: what the caller gets, and the trace that says so."""
    with around(0, True):
        loss, returned = call(function)
        backward(loss)
    return returned, plain_trace(loss, strength, now(gradient_scale), reason=reason)


def call(function: Callable[[], Any]) -> tuple[Tensor, Any]:
    """The loss with its graph, and what the caller gets: the same with the loss detached."""
    if not callable(function):
        raise TypeError(
            f"a loss function must be given, not its result, got {type(function).__name__}: "
            "put `lambda:` before the loss, so that it can be computed again"
        )
    result = function()
    loss = loss_in(result)
    if not isinstance(loss, Tensor):
        raise TypeError(
            "the loss function must return the loss as a tensor, (loss, anything), or an output with a loss, got "
            f"{type(loss).__name__}" + (": is a `return` missing?" if loss is None else "")
        )
    if loss.numel() != 1:
        raise ValueError(f"the loss must be a single number, got the shape {tuple(loss.shape)}: take its mean")
    if not loss.requires_grad:
        raise RuntimeError(
            "the loss has no graph to go back through: is the call inside torch.no_grad(), is a result detached, "
            "or is every parameter frozen?"
        )
    return loss, _with_loss(result, loss.detach())


def loss_in(result: Any) -> Any:
    """The loss itself, the first of a tuple, or the loss of a dictionary or a Hugging Face output."""
    if isinstance(result, tuple) and result:
        return result[0]
    if isinstance(result, Mapping):
        return result.get("loss", result)
    return result


def _with_loss(result: Any, loss: Tensor) -> Any:
    """What the function returned, with this loss in it."""
    if isinstance(result, tuple):
        make = getattr(result, "_make", tuple)  # a namedtuple stays one
        return make((loss, *result[1:]))
    if isinstance(result, MutableMapping):
        result = copy(result)
        result["loss"] = loss
        return result
    return {**result, "loss": loss} if isinstance(result, Mapping) else loss


def back(loss: Tensor, backward: Backward, part: float) -> Tensor:
    """Call backward on a part of the loss; return by what `backward` and the part multiplied its gradient."""
    factors: list[Tensor] = []
    hook = loss.register_hook(factors.append)  # type: ignore[no-untyped-call]
    try:
        backward(loss if part == 1 else loss * part)
    finally:
        hook.remove()
    if not factors:
        raise RuntimeError("backward did not go back through the loss it was given: it must call .backward() on it")
    return torch.stack(factors).sum()


def check_untouched(parameters: Sequence[Tensor]) -> None:
    if any(parameter.grad is not None for parameter in parameters):
        raise RuntimeError("the loss function called backward itself: return the loss, SharpBackward calls backward")


def check_kept(parameters: Sequence[Tensor]) -> None:
    """Called where there were gradients before the loss function ran."""
    if all(parameter.grad is None for parameter in parameters):
        raise RuntimeError(
            "the loss function cleared the gradients, and with them those of the earlier passes: call zero_grad "
            "outside of it"
        )


def check_reached(parameters: Sequence[Tensor]) -> None:
    if any(parameter.grad is not None for parameter in parameters):
        return
    check_reduced(parameters)
    raise RuntimeError("no parameter got a gradient: the loss does not depend on the parameters given here")


def check_reduced(parameters: Sequence[Tensor]) -> None:
    """Called where there is no gradient: explain it if FSDP keeps the gradients."""
    if any(map(is_sharded, parameters)):
        raise RuntimeError(
            "no sharded parameter got a gradient: with set_requires_gradient_sync(False) FSDP keeps it to itself, but "
            "every pass must be reduced, because the walk reads its gradient: leave it True, also while accumulating"
        )
