"""A `Problem` of the theory: a model, its loss and two distributions; and its expected loss with derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.utils.data import RandomSampler

from gasam.analysis.corruption import displaced
from gasam.analysis.objective import Batches, Objective, check_number, check_whole, each, examined, twice_differentiable
from gasam.analysis.per_example import example_gradients
from gasam.analysis.products import connected, dense, second_derivative, split, split_views
from gasam.lab.theory.divergence import Divergence, Numbers, probabilities


@dataclass(frozen=True, eq=False)
class Distribution:
    """A distribution over examples, from `weighted`. Without weights all are equally likely."""

    batches: Batches
    weights: Tensor | None = None


Examples = Batches | Distribution
Contribution = Callable[[Any, Tensor, Tensor], Tensor]
"""sum_j p_j h_j over the examples j of a batch, from the batch, the losses of its examples and their p_j."""


def weighted(batches: Batches, weights: Numbers) -> Distribution:
    """Give the examples of `batches`, in their order, the probabilities w_j / sum w.

    With the importance ratios p*/p of examples drawn from p as weights, this is p*.
    """
    if isinstance(getattr(batches, "sampler", None), RandomSampler):
        raise ValueError("batches must have a fixed order, so that weights match their examples: give shuffle=False")
    return Distribution(batches, probabilities("weights", weights))


@dataclass(frozen=True, eq=False)
class Problem:
    """What all functions of the theory are about: a model at a minimum theta, its loss, and p and p*.

    Args:
        model: The model. Only `settle` changes it; the other functions expect it at theta, where `settle` leaves it.
        objective: Gives the loss of each example, see `gasam.analysis.Objective`.
        batches: Examples of p: a list of batches or a `Distribution`. Small batches cost less where the gradient of
            each example is needed, in `shift_bound` and `strength_trial`.
        shifted: Examples of p*: other batches, or the same ones with other weights, see `weighted`. None if only p is
            of interest.
        ridge: ridge/2 |w|^2 is added to the loss.
        tolerance: The largest |gradient| at a minimum; None means 4e-11 for float64 and 2e-5 for float32 weights.
        iterations: Maximum number of iterations of a search, including the Hessian products of Newton's method.
        seed: The seed of random directions and of Lanczos' start vector.
    """

    model: nn.Module
    objective: Objective
    batches: Examples
    shifted: Examples | None = None
    ridge: float = 0.0
    tolerance: float | None = None
    iterations: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("ridge", self.ridge, least=0)
        check_number("tolerance", self.tolerance or 0.0, least=0)
        check_whole("iterations", self.iterations, least=1)

    @property
    def p(self) -> Distribution:
        return _distribution(self.batches)

    @property
    def p_star(self) -> Distribution:
        if self.shifted is None:
            raise ValueError("shifted must be given, because p* is needed here: give Problem(..., shifted=...)")
        return _distribution(self.shifted)

    def divergence(self, f: Divergence, eta: float = 1.0) -> float | None:
        """D_f((1 - eta) p + eta p* || p); None if p and p* are not weights over the same batches."""
        both = self.p.weights, self.p_star.weights
        given = [weights for weights in both if weights is not None]
        if self.p.batches is not self.p_star.batches or not given or len(given[0]) != len(given[-1]):
            return None
        equal = torch.full_like(given[0], 1 / len(given[0]))
        p, p_star = (equal if weights is None else weights for weights in both)
        return f.between((1 - eta) * p + eta * p_star, p)

    @contextmanager
    def risks(self, *etas: float) -> Iterator[list[Risk]]:
        """The `Risk` of (1 - eta) p + eta p* for each eta. Restores the model's modes and gradients."""
        shifted = self.p_star.batches if any(etas) else ()
        with examined(self.model, self.p.batches) as weights, examined(self.model, shifted):
            yield [Risk(self, eta, weights) for eta in etas]


class Position(NamedTuple):
    """An offset from the model's weights in one vector, the loss and its gradient there, and |gradient|."""

    offset: Tensor
    loss: float
    gradient: Tensor
    norm: float
    stationary: bool  # |gradient| <= tolerance


class Risk:
    """L(offset) = E[l(w + offset)] + ridge/2 |w + offset|^2, where w are the model's weights. No offset means 0.

    Vectors are flat and float64. `resolution` is the smallest gradient that differs from rounding errors: 4e-11 in
    float64, 2e-5 in float32.
    """

    def __init__(self, problem: Problem, eta: float, weights: Mapping[str, Tensor]) -> None:
        self.problem, self.eta, self.ridge = problem, eta, problem.ridge
        self.names, self.weights = list(weights), list(weights.values())
        self.device = self.weights[0].device
        self.home = flatten(self.weights, self.device)
        self.resolution = float(max(torch.finfo(weight.dtype).eps for weight in self.weights) ** (2 / 3))
        self.tolerance = self.resolution if problem.tolerance is None else problem.tolerance

    def at(self, offset: Tensor | None = None) -> Position:
        """The loss and its gradient at w + offset."""

        def contribution(_: Any, losses: Tensor, shares: Tensor) -> Tensor:
            gradients = grad(connected(losses @ shares.to(losses)), self.weights, materialize_grads=True)
            return flatten([losses.detach().double() @ shares, *gradients], self.device)

        position = self.home if offset is None else self.home + offset
        total = self._expected(contribution, offset)
        loss = float(total[0]) + self.ridge / 2 * float(position.square().sum())
        gradient = total[1:] + self.ridge * position
        norm = float(gradient.norm())
        return Position(position - self.home, loss, gradient, norm, norm <= self.tolerance)

    def product(self, vector: Tensor, offset: Tensor | None = None) -> Tensor:
        """H v. Unlike `analysis.products`, it keeps no graph between products, because the weights change."""
        direction = split(vector, self.weights)

        def contribution(_: Any, losses: Tensor, shares: Tensor) -> Tensor:
            value = connected(losses @ shares.to(losses))
            return flatten(second_derivative(value, self.weights)(direction), self.device)

        with twice_differentiable():
            return self._expected(contribution, offset) + self.ridge * vector

    def example_mean(self, measure: Callable[[Tensor], Tensor]) -> Tensor:
        """E[measure(s)], with s_i = |gradient of the example's loss by tensor i|^2, the ridge included."""
        ridge = [weight.detach() * self.ridge for weight in self.weights]
        model, objective = self.problem.model, self.problem.objective

        def contribution(batch: Any, losses: Tensor, shares: Tensor) -> Tensor:
            measured = []
            for gradients in example_gradients(model, objective, batch, connected(losses), self.weights):
                parts = [r if g is None else dense(g) + r for g, r in zip(gradients, ridge, strict=True)]
                measured.append(measure(torch.stack([part.double().square().sum().cpu() for part in parts])))
            return shares.cpu() @ torch.stack(measured)

        return self._expected(contribution)

    def random(self, count: int = 1) -> list[Tensor]:
        """Normally distributed vectors, drawn on the CPU so that a seed gives the same ones on every device."""
        draw = torch.Generator().manual_seed(self.problem.seed)
        return [torch.randn(len(self.home), dtype=torch.float64, generator=draw).to(self.device) for _ in range(count)]

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        parts = split_views(vector, self.weights)
        return {name: part.clone() for name, part in zip(self.names, parts, strict=True)}

    def _expected(self, contribution: Contribution, offset: Tensor | None = None) -> Tensor:
        """E[h] at w + offset."""
        steps = split(torch.zeros_like(self.home) if offset is None else offset, self.weights)
        parts = [(1 - self.eta, self.problem.p), (self.eta, self.problem.p_star)] if self.eta else [(1, self.problem.p)]
        with displaced(self.weights, steps):
            means = [share * self._mean(contribution, examples) for share, examples in parts if share]
        return torch.stack(means).sum(dim=0)

    def _mean(self, contribution: Contribution, examples: Distribution) -> Tensor:
        """E[h] over a distribution at the present weights."""
        total, count, weights = torch.zeros((), dtype=torch.float64), 0, examples.weights
        for batch in each(examples.batches):
            losses = self.problem.objective(self.problem.model, batch)
            start, count = count, count + len(losses)
            shares = torch.ones(len(losses)).double() if weights is None else weights[start:count]
            if len(shares) == len(losses):
                total = total + contribution(batch, losses, shares.to(losses.device))
        if weights is not None and len(weights) != count:
            raise ValueError(f"weights must be one number per example, got {len(weights)} for {count} examples")
        return total / count if weights is None else total


def _distribution(examples: Examples) -> Distribution:
    return examples if isinstance(examples, Distribution) else Distribution(examples)


def flatten(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    return torch.cat([dense(tensor.detach()).reshape(-1).to(device, torch.float64) for tensor in tensors])
