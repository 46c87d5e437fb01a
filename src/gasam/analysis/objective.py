"""What is analysed: a model, how its losses are computed, and the examples they are taken on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gasam.analysis.checks import check_real
from gasam.passes import Pass
from gasam.weights import run_again_if_interrupted

Batches = Iterable[Any]
Named = dict[str, nn.Parameter]
Watch = Callable[[int, int], None]
"""Called with the number of evaluations that are done, and with their total."""


@dataclass(frozen=True)
class Objective:
    """L(w) = mean of the examples' losses. An example is one row of a batch: a review, a sentence, a token.

    `forward(model, batch)` gives the outputs, `losses(outputs, batch)` one loss for each example of the batch.
    """

    forward: Callable[[nn.Module, Any], Any]
    losses: Callable[[Any, Any], Tensor]

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        losses = self.losses(self.forward(model, batch), batch)
        if not isinstance(losses, Tensor):
            raise TypeError(f"losses must give a tensor with one loss per example, got {type(losses).__name__}")
        if losses.ndim != 1 or not len(losses):
            raise ValueError(
                f"losses must give one loss per example, a tensor of one dimension, got shape {tuple(losses.shape)}: "
                'a loss of torch does so with reduction="none"'
            )
        return losses


def mean_loss(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """L(w) with the model in eval mode; it is as before afterwards."""
    with evaluated(model):
        return propagate(model, objective, batches)


def gradient(model: nn.Module, objective: Objective, batches: Batches) -> tuple[float, dict[str, Tensor]]:
    """The mean loss and its gradient by name; zero for a weight that the loss does not depend on."""
    with examined(model, batches) as weights:
        seen = back_propagate(model, objective, batches)
        return float(seen.loss), {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad / seen.gradient_scale
            for name, weight in weights.items()
        }


@contextmanager
def examined(model: nn.Module, batches: Batches = (None,)) -> Iterator[Named]:
    """Give the weights that need a gradient, by name, with the model in the state of `evaluated`."""
    weights = trained(model)
    if not weights:
        raise ValueError("model has no parameter that requires a gradient: there is nothing to analyse")
    if iter(batches) is batches:
        raise TypeError(
            "batches must be something that can be gone through again and again, such as a list or a DataLoader, "
            f"got {type(batches).__name__}: give list(batches)"
        )
    with evaluated(model):
        yield weights


def trained(model: nn.Module) -> Named:
    """The weights that need a gradient, by name; all of them must be real."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    check_real(weights)
    return weights


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Hold the model in eval mode and without gradients; restore both afterwards, also when interrupted.

    Weights are restored by what moves them: the walk and `displaced`.
    """
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(weight, weight.grad) for weight in model.parameters()]

    def restore() -> None:
        for module, mode in modes:
            module.training = mode
        for weight, gradient in gradients:
            weight.grad = gradient

    try:
        model.eval()
        model.zero_grad()
        yield
    finally:
        run_again_if_interrupted(restore)


def each(batches: Batches) -> Iterator[Any]:
    """The batches, at least one."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise ValueError("batches is empty: at least one batch of examples is needed")


@torch.no_grad()
def propagate(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """The mean loss where the weights are, in the mode that the model is in."""
    return float(torch.cat([objective(model, batch).double() for batch in each(batches)]).mean())


def back_propagate(model: nn.Module, objective: Objective, batches: Batches) -> Pass:
    """The mean loss where the weights are, with the gradient of the **sum** over all examples in their `.grad`."""
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
    """Use kernels that have second derivatives; fused attention and cuDNN's LSTM have none."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield
