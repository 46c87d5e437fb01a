"""One pass: calls the loss function, checks its result, runs backward and reads the factor of the gradient."""

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
    """The result of one pass, as `evaluate` returns it to `climb`.

    Attributes:
        loss: The loss, detached, as a scalar tensor.
        gradient_scale: The gradient in `.grad` divided by the gradient of the mean loss.
        loss_scale: `loss` divided by the mean loss; None if it is not known.
        alone: Whether `.grad` holds the gradient of this pass only. Before the last pass, earlier gradients may have
            been put back.
    """

    loss: Tensor
    gradient_scale: Tensor | float = 1.0
    loss_scale: Tensor | float | None = 1.0
    alone: bool = True


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


def plain_pass(
    function: Callable[[], Any],
    backward: Backward,
    around: Around,
    gradient_scale: GradientScale = 1.0,
    strength: float = 1.0,
    *,
    reason: int = OFF,
) -> tuple[Any, Trace]:
    """Run one pass without a walk; return the result for the caller, and its trace."""
    with around(0, True):
        loss, returned = call(function)
        backward(loss)
    return returned, plain_trace(loss, strength, now(gradient_scale), reason=reason)


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
        raise TypeError(
            "the loss function must return the loss as a tensor, (loss, anything), or an output with a loss, got "
            f"{type(loss).__name__}" + (": is a `return` missing?" if loss is None else "")
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
    factors: list[Tensor] = []
    hook = loss.register_hook(factors.append)  # type: ignore[no-untyped-call]
    try:
        backward(loss if part == 1 else loss * part)
    finally:
        hook.remove()
    if not factors:
        raise RuntimeError("backward did not differentiate the loss that it received: call .backward() on this loss")
    return torch.stack(factors).sum()


def check_untouched(parameters: Sequence[Tensor]) -> None:
    if any(parameter.grad is not None for parameter in parameters):
        raise RuntimeError("the loss function called backward, which SharpBackward does: only return the loss")


def check_kept(parameters: Sequence[Tensor]) -> None:
    """Raise if the loss function cleared the gradients that were there before it ran."""
    if all(parameter.grad is None for parameter in parameters):
        raise RuntimeError(
            "the loss function cleared the gradients of the earlier passes: call zero_grad outside of the loss function"
        )


def check_reached(parameters: Sequence[Tensor]) -> None:
    if any(parameter.grad is not None for parameter in parameters):
        return
    check_reduced(parameters)
    raise RuntimeError("no parameter got a gradient: give SharpBackward the parameters that the loss depends on")


def check_reduced(parameters: Sequence[Tensor]) -> None:
    """If there is no gradient because FSDP did not reduce it, raise an error that says so."""
    if any(map(is_sharded, parameters)):
        raise RuntimeError(
            "no sharded parameter got a gradient, because set_requires_gradient_sync(False) keeps FSDP from reducing "
            "it, and the walk reads the gradient of every pass: leave it True, also while accumulating"
        )
