"""A risk, its gradient and its Hessian's products as functions of one flat float64 vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Named, Objective, each, examined, twice_differentiable
from gasam.ascent import displaced
from gasam.theory.distribution import Distribution, Examples, Part, distribution


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
        parts = torch.split(flat, [weight.numel() for weight in self.weights])
        return [part.view(weight.shape).to(weight) for part, weight in zip(parts, self.weights, strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """By name, in double precision."""
        parts = torch.split(flat, [weight.numel() for weight in self.weights])
        return {
            name: part.view(weight.shape).clone()
            for name, part, weight in zip(self.names, parts, self.weights, strict=True)
        }

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
            return [(losses.detach().double() * shares).sum(), *self._derivatives(losses @ shares.to(losses))]

        total, *gradients = self._expected(contribution)
        here = self.position()
        return (
            float(total) + self.ridge / 2 * float(here.square().sum()),
            _flat(gradients).add_(here, alpha=self.ridge),
        )

    def product(self, vector: Tensor) -> Tensor:
        """H v, by differentiating g . v."""
        self.evaluations += 1
        direction = self.split(vector)

        def contribution(losses: Tensor, shares: Tensor) -> list[Tensor]:
            gradients = self._derivatives(losses @ shares.to(losses), create_graph=True)
            along = sum(((g * v).sum() for g, v in zip(gradients, direction, strict=True)), losses.new_zeros(()))
            return self._derivatives(along) if along.requires_grad else [torch.zeros_like(v) for v in direction]

        with twice_differentiable():
            return _flat(self._expected(contribution)).add_(vector, alpha=self.ridge)

    def example_gradients(self) -> Iterator[tuple[float, list[Tensor]]]:
        """Every example's probability and the gradient of its own loss, ridge included.

        An example's gradient goes back through its whole batch: the cost grows with the batch size.
        """
        counts = [None if part.weights is not None else 0 for part in self.parts]
        for number, part in enumerate(self.parts):
            if counts[number] is not None:
                with torch.no_grad():
                    counts[number] = sum(len(self.objective(self.model, batch)) for batch in each(part.batches))
        ridge = [weight.detach() * self.ridge for weight in self.weights]
        for part, count in zip(self.parts, counts, strict=True):
            for losses, shares in self._weighted(part):
                for j, share in enumerate(shares.tolist()):
                    gradients = self._derivatives(losses[j], retain_graph=j + 1 < len(losses))
                    probability = part.share * (share if count is None else share / count)
                    yield probability, [g + r for g, r in zip(gradients, ridge, strict=True)]

    def _derivatives(self, value: Tensor, *, create_graph: bool = False, retain_graph: bool = False) -> list[Tensor]:
        if not value.requires_grad:
            raise ValueError("losses must depend on the model's weights, got losses without a gradient: do not detach")
        gradients = torch.autograd.grad(
            value, self.weights, create_graph=create_graph, retain_graph=retain_graph or create_graph, allow_unused=True
        )
        return [
            torch.zeros_like(weight) if gradient is None else gradient.to_dense() if gradient.is_sparse else gradient
            for gradient, weight in zip(gradients, self.weights, strict=True)
        ]

    def _expected(self, contribution: Callable[[Tensor, Tensor], list[Tensor]]) -> list[Tensor]:
        """The sum over all parts of share * sum_j w_j h_j / sum_j w_j, h being linear in the losses' weights."""
        expected: list[Tensor] = []
        for part in self.parts:
            total: list[Tensor] = []
            weight = 0.0
            for losses, shares in self._weighted(part):
                found = contribution(losses, shares)
                total = [a + b.detach() for a, b in zip(total, found, strict=True)] if total else found
                weight += float(shares.sum())
            scaled = [tensor.detach() * (part.share / weight) for tensor in total]
            expected = [a + b for a, b in zip(expected, scaled, strict=True)] if expected else scaled
        return expected

    def _weighted(self, part: Part) -> Iterator[tuple[Tensor, Tensor]]:
        """The losses of each batch, with the weights of its examples."""
        start = 0
        for batch in each(part.batches):
            losses = self.objective(self.model, batch)
            weights = part.weights
            if weights is None:
                yield losses, torch.ones(len(losses), dtype=torch.float64, device=losses.device)
            else:
                here = weights[start : start + len(losses)].to(losses.device)
                if len(here) == len(losses):
                    yield losses, here
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
