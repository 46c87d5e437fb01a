"""SharpBackward: a drop-in for loss.backward() that folds the gradients of a whole walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gasam.ascent import traced_climb
from gasam.parameters import Parameters, read, weights_of
from gasam.perturbation import Perturbation
from gasam.risk import Fold, share
from gasam.trace import Trace, plain_trace
from gasam.walk import Pass

Around = Callable[[int, bool], AbstractContextManager[Any]]
GradientScale = Tensor | float | Callable[[], Tensor | float]


def plainly(k: int, last: bool) -> AbstractContextManager[Any]:
    return nullcontext()


class SharpBackward:
    """Calls a loss function K+1 times along the walk and adds the folded gradient to `.grad`, as backward does.

    The function returns the loss, or (loss, anything), and does not call backward. The call returns the same of the
    clean pass, the loss detached. `backward` replaces `loss.backward()`, e.g. `accelerator.backward` or
    `lambda loss: scaler.scale(loss).backward()`; the factors it multiplies in are read off the loss and do not
    change the walk. If the loss itself is not a mean, `gradient_scale`, a number or a function that returns one, says
    how many times the mean it is, e.g. the number of tokens of a sum. `around(k, last)` gives a context for pass k.
    `enabled = False`, or epsilon 0, is one plain pass.

    Give it every parameter that is trained, those that should not move in a group with "perturb": False: of what it
    does not know the gradients simply add up, K+1 of them where the risk is "final".
    """

    def __init__(
        self,
        parameters: Parameters,
        perturbation: Perturbation,
        *,
        backward: Callable[[Tensor], object] = torch.Tensor.backward,
        around: Around = plainly,
        gradient_scale: GradientScale = 1.0,
        detailed: bool = False,
    ) -> None:
        entries = read(parameters)
        self.perturbation = perturbation
        self.parameters = [entry.tensor for entry in entries]
        self.weights = weights_of(entries, perturbation)
        self.backward = backward
        self.around = around
        self.gradient_scale = gradient_scale
        self.detailed = detailed
        self.enabled = True
        self.last: Trace | None = None

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self.enabled or self.perturbation.epsilon == 0:
            returned, self.last = plain_pass(function, self.backward, self.around)
            return returned
        fold = Fold([p for p in self.parameters if p.requires_grad], self.perturbation, adds=True)
        clean: list[Any] = []

        def evaluate(k: int) -> Pass:
            fold.make_room(k)
            with self.around(k, k == self.perturbation.steps):
                loss, returned = call(function)
                if k == 0:
                    clean.append(returned)
                    _check_untouched(fold.parameters)
                factor = back(loss, self.backward, share(self.perturbation))
            if k == 0:
                _check_reached(fold.parameters)
            return Pass(loss.detach().reshape(()), factor * number(self.gradient_scale))

        try:
            self.last = traced_climb(self.weights, evaluate, self.perturbation, detailed=self.detailed)
        except BaseException:
            fold.undo()
            raise
        return clean[0]


def plain_pass(function: Callable[[], Any], backward: Callable[[Tensor], object], around: Around) -> tuple[Any, Trace]:
    """One pass without a walk: what the caller gets, and the trace that says so."""
    with around(0, True):
        loss, returned = call(function)
        backward(loss)
    return returned, plain_trace(loss)


def number(scale: GradientScale) -> Tensor | float:
    return scale() if callable(scale) else scale


def call(function: Callable[[], Any]) -> tuple[Tensor, Any]:
    """The loss with its graph, and what the caller gets: the same with the loss detached."""
    result = function()
    loss = result[0] if isinstance(result, tuple) and result else result
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"the loss function must return the loss as a tensor, or (loss, anything), got {type(loss).__name__}"
            + (": is a `return` missing?" if loss is None else "")
        )
    if loss.numel() != 1:
        raise ValueError(f"the loss must be a single number, got the shape {tuple(loss.shape)}: take its mean")
    if not loss.requires_grad:
        raise RuntimeError(
            "the loss has no graph to go back through: is the call inside torch.no_grad(), is a result detached, "
            "or is every parameter frozen?"
        )
    return loss, (loss.detach(), *result[1:]) if isinstance(result, tuple) else loss.detach()


def back(loss: Tensor, backward: Callable[[Tensor], object], part: float) -> Tensor:
    """Back a part of the loss; return d(backed)/d(loss), which has every factor that `backward` put in."""
    factors: list[Tensor] = []
    hook = loss.register_hook(factors.append)  # type: ignore[no-untyped-call]
    try:
        backward(loss if part == 1 else loss * part)
    finally:
        hook.remove()
    if not factors:
        raise RuntimeError("backward did not go back through the loss it was given: it must call .backward() on it")
    return torch.stack(factors).sum()


def _check_untouched(parameters: Sequence[Tensor]) -> None:
    if any(parameter.grad is not None for parameter in parameters):
        raise RuntimeError("the loss function called backward itself: return the loss, SharpBackward calls backward")


def _check_reached(parameters: Sequence[Tensor]) -> None:
    if all(parameter.grad is None for parameter in parameters):
        raise RuntimeError("no parameter got a gradient: the loss does not depend on the parameters given here")
