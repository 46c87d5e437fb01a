"""Distributions over examples: batches, weighted batches, and mixtures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from gasam.analysis.objective import Batches
from gasam.lab.theory.divergence import Divergence, Numbers, probabilities


@dataclass(frozen=True, eq=False)
class Part:
    """Batches with a share of the probability; `weights` distribute it over the examples, equally if None."""

    batches: Batches
    weights: Tensor | None
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class Distribution:
    """A distribution over examples. Every function of this package accepts it in place of batches."""

    parts: tuple[Part, ...]


Examples = Batches | Distribution


def weighted(batches: Batches, weights: Numbers) -> Distribution:
    """Give the examples of `batches`, in their order, the probabilities w_j / sum w.

    With the importance ratios p*/p of examples drawn from p as weights, this is p*.
    """
    if isinstance(batches, Distribution):
        raise TypeError("batches must be batches of examples, got a Distribution: multiply its weights and give those")
    if isinstance(getattr(batches, "sampler", None), RandomSampler):
        raise ValueError("batches must have a fixed order, so that weights match their examples: give shuffle=False")
    return Distribution((Part(batches, probabilities("weights", weights)),))


def mixture(p: Examples, p_star: Examples, eta: float) -> Distribution:
    """The exact mixture p_mix = (1 - eta) p + eta p* of Proposition 2; no example is drawn.

    Args:
        p: Examples of p: a list of batches or a `Distribution`.
        p_star: Examples of p*.
        eta: The share of p*, from 0 to 1.
    """
    if not isinstance(eta, int | float) or not 0 <= eta <= 1:
        raise ValueError(f"eta must be a number from 0 to 1, got {eta!r}")
    p, p_star = distribution(p), distribution(p_star)
    both = _shared_weights(p, p_star)
    if both is not None:
        return Distribution((Part(p.parts[0].batches, (1 - eta) * both[0] + eta * both[1]),))
    parts = [Part(part.batches, part.weights, part.share * (1 - eta)) for part in p.parts]
    parts += [Part(part.batches, part.weights, part.share * eta) for part in p_star.parts]
    return Distribution(tuple(part for part in parts if part.share > 0))


def distribution(examples: Examples) -> Distribution:
    return examples if isinstance(examples, Distribution) else Distribution((Part(examples, None),))


def known_divergence(kind: Divergence, p: Distribution, p_star: Distribution) -> float | None:
    """D_f(p*||p) if both are weights over the same batches, else None, because it cannot be computed."""
    both = _shared_weights(p, p_star)
    return None if both is None else kind.between(both[1], both[0])


def _shared_weights(p: Distribution, p_star: Distribution) -> tuple[Tensor, Tensor] | None:
    """The probabilities of the examples under both; None if they are not over the same batches."""
    if len(p.parts) != 1 or len(p_star.parts) != 1 or p.parts[0].batches is not p_star.parts[0].batches:
        return None
    here, there = p.parts[0].weights, p_star.parts[0].weights
    if here is None and there is not None:
        here = torch.full_like(there, 1 / len(there))
    if there is None and here is not None:
        there = torch.full_like(here, 1 / len(here))
    if here is None or there is None:
        return None
    if len(here) != len(there):
        raise ValueError(
            f"weights over the same batches must have the same length, got {len(here)} and {len(there)}: give one "
            "weight per example"
        )
    return here, there
