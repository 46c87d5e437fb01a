"""`Objective`, which computes the losses of examples, what all measurements share, and checks of their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from gasam.passes import Pass, uninterrupted

Batches = Iterable[Any]
Named = dict[str, nn.Parameter]
Watch = Callable[[int, int], None]
"""Called with the number of finished evaluations and their total."""


@dataclass(frozen=True)
class Objective:
    """L(w), the mean of the examples' losses. An example is one row of a batch: a review, a sentence or a token.

    Every measurement begins with the arguments `model, objective, batches`: a model, an `Objective`, and all examples
    as an iterable that can be read repeatedly, such as a list or a DataLoader without shuffling. Models run in eval
    mode. Their weights, modes and gradients are restored afterwards.

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


@dataclass(frozen=True)
class CrossEntropy:
    """The mean cross-entropy of each row, for outputs (rows, .., classes) and targets (rows, ..) of class numbers.

    Args:
        targets: Returns the targets of a batch; by default its second part.
        ignored: Targets with this value, such as padding, do not count. A row without other targets has loss 0.
        label_smoothing: As in torch's `cross_entropy`, from 0 to 1.
    """

    targets: Callable[[Any], Tensor] = itemgetter(1)
    ignored: int = -100
    label_smoothing: float = 0.0

    def __call__(self, outputs: Tensor, batch: Any) -> Tensor:
        targets = self.targets(batch)
        if targets.shape != outputs.shape[:-1]:
            raise ValueError(
                f"outputs must have the shape of the targets and a last dimension for the classes, got outputs "
                f"{tuple(outputs.shape)} for targets {tuple(targets.shape)}"
            )
        losses = cross_entropy(
            outputs.flatten(0, -2),
            targets.flatten().long(),
            ignore_index=self.ignored,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        if targets.ndim == 1:
            return losses
        counted = (targets != self.ignored).flatten(1).sum(1).clamp(min=1)
        return losses.view(len(targets), -1).sum(1) / counted


@dataclass(frozen=True)
class SquaredError:
    """The mean squared error of each row, for outputs and targets of the same shape (rows, ..)."""

    targets: Callable[[Any], Tensor] = itemgetter(1)

    def __call__(self, outputs: Tensor, batch: Any) -> Tensor:
        targets = self.targets(batch)
        if targets.shape != outputs.shape:
            raise ValueError(
                f"outputs and targets must have the same shape, got {tuple(outputs.shape)} and {tuple(targets.shape)}"
            )
        return torch.square(outputs - targets).reshape(len(targets), -1).mean(1)


def mean_loss(model: nn.Module, objective: Objective, batches: Batches) -> float:
    """L(w) in eval mode."""
    with evaluated(model):
        return propagate(model, objective, batches)


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


def plain_value(value: object) -> Any:
    """A result in a form that JSON can hold.

    Infinity and NaN become "inf", "-inf" and "nan", which `float` reads. A function becomes its name.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return getattr(value, "__name__", repr(value)) if callable(value) else value


def check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")


def check_number(name: str, value: object, *, least: float = -math.inf, above: float = -math.inf) -> None:
    """Raise unless the value is a finite number >= `least` and > `above`."""
    if not isinstance(value, int | float) or not (math.isfinite(value) and value >= least and value > above):
        limit = f" >= {least:g}" if math.isfinite(least) else f" > {above:g}" if math.isfinite(above) else ""
        raise ValueError(f"{name} must be a finite number{limit}, got {value!r}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_shape(argument: str, name: str, values: object, like: Tensor) -> None:
    if not isinstance(values, Tensor) or values.shape != like.shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"{argument}[{name!r}] must be a tensor of the weight's shape {tuple(like.shape)}, got {found}"
        )


def check_real(weights: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        if weight.is_complex():
            raise TypeError(
                f"parameter {name!r} has type {weight.dtype}, but only real floating-point weights can be moved: "
                "make torch.view_as_real of it the parameter"
            )
