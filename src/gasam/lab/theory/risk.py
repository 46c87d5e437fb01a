"""A risk, its gradient and its Hessian's products as functions of one flat float64 vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.examples import example_gradients
from gasam.analysis.objective import Named, Objective, each, examined, twice_differentiable
from gasam.analysis.products import connected, dense, second_derivative, split, split_views
from gasam.lab.theory.distribution import Distribution, Examples, Part, distribution
from gasam.weights import displaced


class Risk:
    """L(w) = E_p[l(w; z)] + ridge/2 |w|^2, where the model's weights are now."""

    def __init__(
        self, model: nn.Module, objective: Objective, examples: Distribution, ridge: float, weights: Named
    ) -> None:
        self.model, self.objective, self.parts, self.ridge = model, objective, examples.parts, ridge
        self.names, self.weights = list(weights), list(weights.values())
        self.size = sum(weight.numel() for weight in self.weights)
        self.evaluations = 0

    def position(self) -> Tensor:
        return _flat(self.weights)

    @torch.no_grad()
    def move_to(self, position: Tensor) -> None:
        """Only inside `displaced`, which brings the weights home."""
        for weight, value in zip(self.weights, self.split(position), strict=True):
            weight.copy_(value)

    @contextmanager
    def moved_by(self, offset: Tensor) -> Iterator[None]:
        with displaced(self.weights, self.split(offset)):
            yield

    def split(self, flat: Tensor) -> list[Tensor]:
        return split(flat, self.weights)

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """By name, in double precision."""
        parts = split_views(flat, self.weights)
        return {name: part.clone() for name, part in zip(self.names, parts, strict=True)}

    def flat(self, name: str, values: Mapping[str, Tensor]) -> Tensor:
        """The vector of what a caller gave by name."""
        given = {key: tuple(value.shape) for key, value in values.items()}
        wanted = {key: tuple(weight.shape) for key, weight in zip(self.names, self.weights, strict=True)}
        if given != wanted:
            wrong = next(key for key in [*wanted, *given] if given.get(key) != wanted.get(key))
            raise ValueError(
                f"{name} must have the model's trainable weights by name, got {wrong!r} of shape "
                f"{given.get(wrong)} where the model has {wanted.get(wrong)}"
            )
        return _flat([values[key] for key in self.names]).to(self.weights[0].device)

    @torch.no_grad()
    def loss(self) -> float:
        total = self._expected(lambda losses, shares: [(losses.double() * shares).sum()])[0]
        return float(total) + self.ridge / 2 * float(self.position().square().sum())

    def gradient(self) -> tuple[float, Tensor]:
        self.evaluations += 1

        def contribution(losses: Tensor, shares: Tensor) -> list[Tensor]:
            gradients = grad(connected(losses @ shares.to(losses)), self.weights, materialize_grads=True)
            return [(losses.detach().double() * shares).sum(), *map(dense, gradients)]

        total, *gradients = self._expected(contribution)
        here = self.position()
        return (
            float(total) + self.ridge / 2 * float(here.square().sum()),
            _flat(gradients).add_(here, alpha=self.ridge),
        )

    def product(self, vector: Tensor) -> Tensor:
        """H v; graphs are not kept from product to product, as `analysis.products` does: the weights move."""
        self.evaluations += 1
        direction = self.split(vector)

        def contribution(losses: Tensor, shares: Tensor) -> list[Tensor]:
            value = connected(losses @ shares.to(losses))
            return list(map(dense, second_derivative(value, self.weights)(direction)))

        with twice_differentiable():
            return _flat(self._expected(contribution)).add_(vector, alpha=self.ridge)

    def example_gradients(self) -> Iterator[tuple[float, list[Tensor]]]:
        """Every example's probability and the gradient of its own loss, ridge included."""
        counts = [None if part.weights is not None else 0 for part in self.parts]
        for number, part in enumerate(self.parts):
            if counts[number] is not None:
                with torch.no_grad():
                    counts[number] = sum(len(self.objective(self.model, batch)) for batch in each(part.batches))
        ridge = [weight.detach() * self.ridge for weight in self.weights]
        for part, count in zip(self.parts, counts, strict=True):
            for batch, losses, shares in self._weighted(part):
                every = example_gradients(self.model, self.objective, batch, connected(losses), self.weights)
                for share, gradients in zip(shares.tolist(), every, strict=True):
                    probability = part.share * (share if count is None else share / count)
                    yield probability, [r if g is None else dense(g) + r for g, r in zip(gradients, ridge, strict=True)]

    def _expected(self, contribution: Callable[[Tensor, Tensor], list[Tensor]]) -> list[Tensor]:
        """The sum over all parts of share * sum_j w_j h_j / sum_j w_j, h being linear in the losses' weights."""
        expected: list[Tensor] = []
        for part in self.parts:
            total: list[Tensor] = []
            weight = 0.0
            for _, losses, shares in self._weighted(part):
                found = contribution(losses, shares)
                total = [a + b.detach() for a, b in zip(total, found, strict=True)] if total else found
                weight += float(shares.sum())
            scaled = [tensor.detach() * (part.share / weight) for tensor in total]
            expected = [a + b for a, b in zip(expected, scaled, strict=True)] if expected else scaled
        return expected

    def _weighted(self, part: Part) -> Iterator[tuple[Any, Tensor, Tensor]]:
        """Each batch, its losses, and the weights of its examples."""
        start = 0
        for batch in each(part.batches):
            losses = self.objective(self.model, batch)
            weights = part.weights
            if weights is None:
                yield batch, losses, torch.ones(len(losses), dtype=torch.float64, device=losses.device)
            else:
                here = weights[start : start + len(losses)].to(losses.device)
                if len(here) == len(losses):
                    yield batch, losses, here
            start += len(losses)
        if part.weights is not None and start != len(part.weights):
            raise ValueError(f"weights must be one number per example, got {len(part.weights)} for {start} examples")


@contextmanager
def risks(model: nn.Module, objective: Objective, *examples: Examples, ridge: float) -> Iterator[list[Risk]]:
    """A risk for each distribution; the model is as before afterwards, see `examined`."""
    check_at_least_zero("ridge", ridge)
    with ExitStack() as stack:
        weights: Named = {}
        for part in (part for given in examples for part in distribution(given).parts):
            weights = stack.enter_context(examined(model, part.batches))
        yield [Risk(model, objective, distribution(given), ridge, weights) for given in examples]


def check_at_least_zero(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")


def resolution(risk: Risk) -> float:
    """What the weights' own type can tell from zero: 4e-11 in float64, 2e-5 in float32."""
    return float(max(torch.finfo(weight.dtype).eps for weight in risk.weights) ** (2 / 3))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    device = tensors[0].device
    return torch.cat([tensor.detach().reshape(-1).to(device, torch.float64) for tensor in tensors])
