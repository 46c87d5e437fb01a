"""What is analysed: a model, how its losses come about, and the examples they are taken on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gasam.analysis.values import check_real
from gasam.passes import Pass
from gasam.weights import run_again_if_interrupted


@dataclass(frozen=True)
class Objective:
    """L(w) = mean of the examples' losses. An example is whatever stands in a row: a review, a sentence, a token.

    `forward(model, batch)` gives the outputs, `losses(outputs, batch)` one loss for each example of the batch.
    """

    forward: Callable[[nn.Module, Any], Any]
    losses: Callable[[Any, Any], Tensor]

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        losses = self.losses(self.forward(model, batch), batch)
        check_losses(losses)
        return losses


def check_losses(losses: object) -> None:
    if not isinstance(losses, Tensor):
        raise TypeError(f"losses must give a tensor with one loss per example, got {type(losses).__name__}")
    if losses.ndim != 1 or not len(losses):
        raise ValueError(
            f"losses must give one loss per example, a tensor of one dimension, got shape {tuple(losses.shape)}: "
            'a loss of torch does so with reduction="none"'
        )


Batches = Iterable[Any]
Named = dict[str, nn.Parameter]


@contextmanager
def examined(model: nn.Module, batches: Batches = (None,)) -> Iterator[Named]:
    """The weights that need a gradient, by name, the model in eval mode and without gradients.

    All is as before afterwards, as `evaluated` has it.
    """
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
    """The weights that need a gradient, real ones all of them, by name."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    check_real(weights)
    return weights


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients.

    Modes and gradients are as before afterwards, also when interrupted. Weights are moved by the walk and `displaced`
    alone, which bring them home themselves.
    """
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(weight, weight.grad) for weight in model.parameters()]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for weight, gradient in gradients:
            weight.grad = gradient

    try:
        model.eval()
        clear_gradients(model)
        yield
    finally:
        run_again_if_interrupted(put_back)


def clear_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = None


def each(batches: Batches) -> Iterator[Any]:
    """The batches, at least one."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise ValueError("batches is empty: at least one batch of examples is needed")


@torch.no_grad()
def example_losses(model: nn.Module, objective: Objective, batches: Batches) -> Tensor:
    """The loss of every example, in order, in double precision."""
    return torch.cat([objective(model, batch).double() for batch in each(batches)])


def mean_loss(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """L(w), the model in eval mode, and as before afterwards."""
    with evaluated(model):
        return propagate(model, objective, batches)


def propagate(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """The mean loss where the weights are, in the mode that the model is in."""
    return float(example_losses(model, objective, batches).mean())


def back_propagate(model: nn.Module, objective: Objective, batches: Batches) -> Pass:
    """The mean loss where the weights are; the gradient of the **sum** over all examples in their `.grad`."""
    clear_gradients(model)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in each(batches):
        losses = objective(model, batch)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        total = total.to(losses.device) + losses.detach().double().sum()
        count += len(losses)
    return Pass(total / count, float(count))


def gradient(model: nn.Module, objective: Objective, batches: Batches) -> tuple[float, dict[str, Tensor]]:
    """The mean loss and its gradient by name; zero for a weight that the loss does not depend on."""
    with examined(model, batches) as weights:
        seen = back_propagate(model, objective, batches)
        return float(seen.loss), {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad / seen.gradient_scale
            for name, weight in weights.items()
        }


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Inside, kernels are taken that have second derivatives: fused attention and cuDNN's LSTM have none."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False):
        yield
