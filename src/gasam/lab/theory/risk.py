"""The expected loss, its gradient and its Hessian products as functions of an offset from the model's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.objective import Named, Objective, check_number, each, examined, twice_differentiable
from gasam.analysis.per_example import example_gradients
from gasam.analysis.products import connected, dense, second_derivative, split, split_views
from gasam.lab.theory.distribution import Distribution, Examples, Part, distribution
from gasam.weights import displaced

Contribution = Callable[[Any, Tensor, Tensor], Tensor]
"""What a batch adds to an expectation, from the batch, its examples' losses and their weights."""


@contextmanager
def risks(model: nn.Module, objective: Objective, *examples: Examples, ridge: float) -> Iterator[list[Risk]]:
    """Give a `Risk` for each distribution; restore the model's modes and gradients afterwards, see `examined`."""
    check_at_least_zero("ridge", ridge)
    distributions = [distribution(given) for given in examples]
    with ExitStack() as stack:
        weights: Named = {}
        for given in distributions:
            for part in given.parts:
                weights = stack.enter_context(examined(model, part.batches))
        yield [Risk(model, objective, given, ridge, weights) for given in distributions]


class Risk:
    """L(offset) = E_p[l(w + offset)] + ridge/2 |w + offset|^2, where w are the model's weights.

    Vectors are flat and float64. `evaluations` counts gradients and Hessian products, each over all examples.
    """

    def __init__(
        self, model: nn.Module, objective: Objective, examples: Distribution, ridge: float, weights: Named
    ) -> None:
        self.model, self.objective, self.parts, self.ridge = model, objective, examples.parts, ridge
        self.names, self.weights = list(weights), list(weights.values())
        self.size = sum(weight.numel() for weight in self.weights)
        self.device = self.weights[0].device
        self.evaluations = 0

    @property
    def resolution(self) -> float:
        """The smallest gradient that differs from rounding errors: 4e-11 in float64, 2e-5 in float32."""
        return float(max(torch.finfo(weight.dtype).eps for weight in self.weights) ** (2 / 3))

    def position(self) -> Tensor:
        """The current weights of the model."""
        return flatten(self.weights, self.device)

    def moved_by(self, offset: Tensor | None) -> AbstractContextManager[None]:
        """Hold the model at w + offset inside the block; None leaves it at w."""
        return nullcontext() if offset is None else displaced(self.weights, split(offset, self.weights))

    def loss(self, offset: Tensor | None = None) -> float:
        with self.moved_by(offset), torch.no_grad():
            total = self._expected(lambda _, losses, shares: losses.double() @ shares)
            return float(total) + self.ridge / 2 * float(self.position().square().sum())

    def gradient(self, offset: Tensor | None = None) -> tuple[float, Tensor]:
        """The loss and its gradient."""
        self.evaluations += 1

        def contribution(_: Any, losses: Tensor, shares: Tensor) -> Tensor:
            gradients = grad(connected(losses @ shares.to(losses)), self.weights, materialize_grads=True)
            return flatten([losses.detach().double() @ shares, *gradients], self.device)

        with self.moved_by(offset):
            position = self.position()
            total = self._expected(contribution)
        loss = float(total[0]) + self.ridge / 2 * float(position.square().sum())
        return loss, total[1:] + self.ridge * position

    def product(self, vector: Tensor, offset: Tensor | None = None) -> Tensor:
        """H v. Unlike `analysis.products`, it keeps no graph between products, because the weights change."""
        self.evaluations += 1
        direction = split(vector, self.weights)

        def contribution(_: Any, losses: Tensor, shares: Tensor) -> Tensor:
            value = connected(losses @ shares.to(losses))
            return flatten(second_derivative(value, self.weights)(direction), self.device)

        with self.moved_by(offset), twice_differentiable():
            return self._expected(contribution) + self.ridge * vector

    def example_mean(self, measure: Callable[[Tensor], Tensor]) -> Tensor:
        """E_p[measure(s)], with s_i = |gradient of the example's loss by tensor i|^2, the ridge included."""
        ridge = [weight.detach() * self.ridge for weight in self.weights]

        def contribution(batch: Any, losses: Tensor, shares: Tensor) -> Tensor:
            measured = []
            for gradients in example_gradients(self.model, self.objective, batch, connected(losses), self.weights):
                parts = [r if g is None else dense(g) + r for g, r in zip(gradients, ridge, strict=True)]
                squares = torch.stack([part.double().square().sum().cpu() for part in parts])
                measured.append(measure(squares))
            return shares.cpu() @ torch.stack(measured)

        return self._expected(contribution)

    def random(self, generator: torch.Generator) -> Tensor:
        """A normally distributed vector, drawn on the CPU so that a seed gives the same vector on every device."""
        return torch.randn(self.size, dtype=torch.float64, generator=generator).to(self.device)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The parts of the vector by name, in double precision."""
        parts = split_views(vector, self.weights)
        return {name: part.clone() for name, part in zip(self.names, parts, strict=True)}

    def flat(self, name: str, values: Mapping[str, Tensor]) -> Tensor:
        """The tensors of a mapping by name as one vector; raise if the names or shapes are not the model's."""
        given = {key: tuple(value.shape) for key, value in values.items()}
        wanted = {key: tuple(weight.shape) for key, weight in zip(self.names, self.weights, strict=True)}
        if given != wanted:
            wrong = next(key for key in [*wanted, *given] if given.get(key) != wanted.get(key))
            raise ValueError(
                f"{name} must have the model's trainable weights by name, got {wrong!r} of shape "
                f"{given.get(wrong)} where the model has {wanted.get(wrong)}"
            )
        return flatten([values[key] for key in self.names], self.device)

    def _expected(self, contribution: Contribution) -> Tensor:
        """Sum over the parts of share * sum_j w_j h_j / sum_j w_j; `contribution` gives a batch's sum_j w_j h_j."""
        expected = torch.zeros((), dtype=torch.float64)
        for part in self.parts:
            total, weight = torch.zeros((), dtype=torch.float64), 0.0
            for batch, losses, shares in self._weighted(part):
                total = total + contribution(batch, losses, shares)
                weight += float(shares.sum())
            expected = expected + total * (part.share / weight)
        return expected

    def _weighted(self, part: Part) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Each batch, its losses, and the weights of its examples."""
        start = 0
        for batch in each(part.batches):
            losses = self.objective(self.model, batch)
            shares = torch.ones(len(losses), dtype=torch.float64)
            if part.weights is not None:
                shares = part.weights[start : start + len(losses)]
            if len(shares) == len(losses):
                yield batch, losses, shares.to(losses.device)
            start += len(losses)
        if part.weights is not None and start != len(part.weights):
            raise ValueError(f"weights must be one number per example, got {len(part.weights)} for {start} examples")


def flatten(tensors: Iterable[Tensor], device: torch.device | None = None) -> Tensor:
    """All entries in one float64 vector."""
    return torch.cat([dense(tensor.detach()).reshape(-1).to(device, torch.float64) for tensor in tensors])


def check_at_least_zero(name: str, value: float) -> None:
    check_number(name, value, ">= 0", lambda number: number >= 0)
