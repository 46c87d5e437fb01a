"""`Objective`, which computes the losses of examples, and functions for the mean loss and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gasam.analysis.checks import check_real
from gasam.passes import Pass, uninterrupted

Batches = Iterable[Any]
Named = dict[str, nn.Parameter]
Watch = Callable[[int, int], None]
"""Called with the number of finished evaluations and their total."""


@dataclass(frozen=True)
class Objective:
    """L(w), the mean of the examples' losses. An example is one row of a batch: a review, a sentence or a token.

    `forward(model, batch)` returns the outputs. `losses(outputs, batch)` returns one loss for each example.
    """

    forward: Callable[[nn.Module, Any], Any]
    losses: Callable[[Any, Any], Tensor]

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        losses = self.losses(self.forward(model, batch), batch)
        if not isinstance(losses, Tensor):
            raise TypeError(f"losses must return a tensor with one loss per example, got {type(losses).__name__}")
        if losses.ndim != 1 or not len(losses):
            raise ValueError(
                f"losses must return one loss per example, a tensor of one dimension, got shape {tuple(losses.shape)}: "
                'use reduction="none" for a loss of torch'
            )
        return losses


def mean_loss(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """L(w) in eval mode.

    Args:
        model: The model. Its mode and gradients are restored afterwards.
        objective: Computes the losses.
        batches: All examples.
    """
    with evaluated(model):
        return propagate(model, objective, batches)


def gradient(model: nn.Module, objective: Objective, batches: Batches) -> tuple[float, dict[str, Tensor]]:
    """The mean loss in eval mode and its gradient by parameter name.

    Args:
        model: The model. Its mode and gradients are restored afterwards. A trained weight that the loss does not depend
            on has a gradient of zero.
        objective: Computes the losses.
        batches: All examples, as an iterable that can be read repeatedly.
    """
    with examined(model, batches) as weights:
        seen = back_propagate(model, objective, batches)
        return float(seen.loss), {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad / seen.gradient_scale
            for name, weight in weights.items()
        }


@contextmanager
def examined(model: nn.Module, batches: Batches = (None,)) -> Iterator[Named]:
    """Yield the weights that require a gradient, by name, with the model in the state of `evaluated`."""
    weights = trained(model)
    if not weights:
        raise ValueError("model has no parameter that requires a gradient: unfreeze at least one")
    if iter(batches) is batches:
        raise TypeError(
            "batches must be an iterable that can be read repeatedly, such as a list or a DataLoader, "
            f"got {type(batches).__name__}: give list(batches)"
        )
    with evaluated(model):
        yield weights


def trained(model: nn.Module) -> Named:
    """The weights that require a gradient, by name. Raises if one is complex."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    check_real(weights)
    return weights


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Set eval mode and clear the gradients inside the block; restore both afterwards, also after an interrupt.

    The weights are restored by the code that moves them: the walk and `displaced`.
    """
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(weight, weight.grad) for weight in model.parameters()]

    with uninterrupted() as held:
        try:
            model.eval()
            model.zero_grad()
            with held.let():
                yield
        finally:
            for module, mode in modes:
                module.training = mode
            for weight, gradient in gradients:
                weight.grad = gradient


def each(batches: Batches) -> Iterator[Any]:
    """The batches. Raises if there are none."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise ValueError("batches is empty: give at least one batch of examples")


@torch.no_grad()
def propagate(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """The mean loss at the present weights, in the model's present mode."""
    return float(torch.cat([objective(model, batch).double() for batch in each(batches)]).mean())


def back_propagate(model: nn.Module, objective: Objective, batches: Batches) -> Pass:
    """The mean loss at the present weights. Leaves the gradient of the **sum** over all examples in `.grad`."""
    model.zero_grad()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in each(batches):
        losses = objective(model, batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        total = total.to(losses.device) + losses.detach().double().sum()
        count += len(losses)
    return Pass(total / count, float(count))


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Use kernels with second derivatives, which fused attention and cuDNN's LSTM do not have."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield
