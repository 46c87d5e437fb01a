"""A `Problem` of the theory: a model, its loss and two distributions; and its expected loss with derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.utils.data import RandomSampler

from gasam.analysis.objective import (
    Batches,
    Named,
    Objective,
    check_number,
    check_whole,
    each,
    examined,
    twice_differentiable,
)
from gasam.analysis.per_example import example_gradients
from gasam.analysis.products import connected, dense, second_derivative, split, split_views
from gasam.lab.theory.divergence import Numbers, probabilities
from gasam.weights import displaced


class Part(NamedTuple):
    """Batches with a share of the probability; `weights` distribute it over the examples, equally if None."""

    batches: Batches
    weights: Tensor | None = None
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class Distribution:
    """A distribution over examples, from `weighted` or `mixture`."""

    parts: tuple[Part, ...]


Examples = Batches | Distribution


def weighted(batches: Batches, weights: Numbers) -> Distribution:
    """Give the examples of `batches`, in their order, the probabilities w_j / sum w.

    With the importance ratios p*/p of examples drawn from p as weights, this is p*.
    """
    if isinstance(getattr(batches, "sampler", None), RandomSampler):
        raise ValueError("batches must have a fixed order, so that weights match their examples: give shuffle=False")
    return Distribution((Part(batches, probabilities("weights", weights)),))


def mixture(p: Examples, p_star: Examples, eta: float) -> Distribution:
    """The exact mixture p_mix = (1 - eta) p + eta p* of Proposition 2; no example is drawn. eta is from 0 to 1."""
    if not isinstance(eta, int | float) or not 0 <= eta <= 1:
        raise ValueError(f"eta must be a number from 0 to 1, got {eta!r}")
    both = [(parts_of(p), 1 - eta), (parts_of(p_star), eta)]
    return Distribution(
        tuple(part._replace(share=part.share * share) for parts, share in both for part in parts if share > 0)
    )


def shared_weights(p: Examples, p_star: Examples) -> tuple[Tensor, Tensor] | None:
    """The probabilities of the examples under both; None if they are not weights over the same batches."""
    parts = parts_of(p) + parts_of(p_star)
    given = [part.weights for part in parts if part.weights is not None]
    if len(parts) != 2 or parts[0].batches is not parts[1].batches or not given or len(given[0]) != len(given[-1]):
        return None
    equal = torch.full_like(given[0], 1 / len(given[0]))
    here, there = (equal if part.weights is None else part.weights for part in parts)
    return here, there


def parts_of(examples: Examples) -> tuple[Part, ...]:
    return examples.parts if isinstance(examples, Distribution) else (Part(examples),)


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
        delta: theta* - theta by name, where it is known already, such as `ShiftTrial.delta`. None searches for the
            minimum on p* in each trial.
        tolerance: The largest |gradient| at a minimum; None means 4e-11 for float64 and 2e-5 for float32 weights.
        iterations: Maximum number of iterations of a search, including the Hessian products of Newton's method.
        seed: The seed of random directions and of Lanczos' start vector.
    """

    model: nn.Module
    objective: Objective
    batches: Examples
    shifted: Examples | None = None
    ridge: float = 0.0
    delta: Mapping[str, Tensor] | None = None
    tolerance: float | None = None
    iterations: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("ridge", self.ridge, least=0)
        check_number("tolerance", self.tolerance or 0.0, least=0)
        check_whole("iterations", self.iterations, least=1)

    @property
    def p_star(self) -> Examples:
        if self.shifted is None:
            raise ValueError("shifted must be given, because p* is needed here: give Problem(..., shifted=...)")
        return self.shifted

    @contextmanager
    def risks(self, *examples: Examples) -> Iterator[list[Risk]]:
        """A `Risk` for each distribution; by default for p and p*. Restores the model's modes and gradients."""
        given = [parts_of(one) for one in examples or (self.batches, self.p_star)]
        with ExitStack() as stack:
            weights: Named = {}
            for part in (part for parts in given for part in parts):
                weights = stack.enter_context(examined(self.model, part.batches))
            yield [Risk(self, parts, weights) for parts in given]


class Position(NamedTuple):
    """A position, the loss and its gradient there, and |gradient|."""

    offset: Tensor
    loss: float
    gradient: Tensor
    norm: float


class Risk:
    """L(offset) = E[l(w + offset)] + ridge/2 |w + offset|^2, where w are the model's weights; without an offset L(0).

    Vectors are flat and float64. `resolution` is the smallest gradient that differs from rounding errors: 4e-11 in
    float64, 2e-5 in float32.
    """

    def __init__(self, problem: Problem, parts: tuple[Part, ...], weights: Named) -> None:
        self.problem, self.parts, self.ridge = problem, parts, problem.ridge
        self.names, self.weights = list(weights), list(weights.values())
        self.device = self.weights[0].device
        self.home = flatten(self.weights, self.device)
        self.resolution = float(max(torch.finfo(weight.dtype).eps for weight in self.weights) ** (2 / 3))

    def loss(self, offset: Tensor | None = None) -> float:
        with torch.no_grad():
            mean = self._expected(lambda _, losses, shares: losses.double() @ shares, offset)
        return float(mean) + self.ridge / 2 * float(self._position(offset).square().sum())

    def at(self, offset: Tensor | None = None) -> Position:
        """The loss and its gradient at w + offset."""

        def contribution(_: Any, losses: Tensor, shares: Tensor) -> Tensor:
            gradients = grad(connected(losses @ shares.to(losses)), self.weights, materialize_grads=True)
            return flatten([losses.detach().double() @ shares, *gradients], self.device)

        total, position = self._expected(contribution, offset), self._position(offset)
        loss = float(total[0]) + self.ridge / 2 * float(position.square().sum())
        gradient = total[1:] + self.ridge * position
        return Position(position - self.home, loss, gradient, float(gradient.norm()))

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
        """The parts of a flat vector by name."""
        parts = split_views(vector, self.weights)
        return {name: part.clone() for name, part in zip(self.names, parts, strict=True)}

    def flat(self, delta: Mapping[str, Tensor]) -> Tensor:
        """The tensors of a delta by name as one vector."""
        expected = {name: weight.shape for name, weight in zip(self.names, self.weights, strict=True)}
        if {name: part.shape for name, part in delta.items()} != expected:
            raise ValueError(
                f"delta must have the names and shapes of the model's trainable weights, got {list(delta)}"
            )
        return flatten([delta[name] for name in self.names], self.device)

    def _position(self, offset: Tensor | None) -> Tensor:
        return self.home if offset is None else self.home + offset

    def _expected(self, contribution: Callable[[Any, Tensor, Tensor], Tensor], offset: Tensor | None = None) -> Tensor:
        """E[h] at w + offset; `contribution` gives sum_j p_j h_j from a batch, its examples' losses and their p_j."""
        moved = nullcontext() if offset is None else displaced(self.weights, split(offset, self.weights))
        expected = torch.zeros((), dtype=torch.float64)
        with moved:
            for part in self.parts:
                total, examples = torch.zeros((), dtype=torch.float64), 0
                for batch in each(part.batches):
                    losses = self.problem.objective(self.problem.model, batch)
                    start, examples = examples, examples + len(losses)
                    shares = torch.ones(len(losses)).double() if part.weights is None else part.weights[start:examples]
                    if len(shares) == len(losses):
                        total = total + contribution(batch, losses, shares.to(losses.device))
                if part.weights is not None and len(part.weights) != examples:
                    given = len(part.weights)
                    raise ValueError(f"weights must be one number per example, got {given} for {examples} examples")
                expected = expected + part.share * (total / examples if part.weights is None else total)
        return expected


def flatten(tensors: Iterable[Tensor], device: torch.device | None = None) -> Tensor:
    """All entries in one float64 vector."""
    return torch.cat([dense(tensor.detach()).reshape(-1).to(device, torch.float64) for tensor in tensors])
