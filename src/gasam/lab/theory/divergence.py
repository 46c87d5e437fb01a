"""f-divergences between two distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Numbers = Any  # a tensor, a NumPy array or a list

_SUM = 1e-6  # allowed difference of a sum of probabilities from 1, for the rounding of float32


@dataclass(frozen=True)
class Divergence:
    """D_f(p*||p) = E_p[f(p* / p)] with f(1 + x) = a_2 x^2 + O(x^3), section 2.2.

    The paper's f may also have a linear term a_1 x. It changes nothing, because E_p[p*/p - 1] = 0, and is left out
    here, so that f is never negative.

    Args:
        name: The name.
        shifted: f(1 + x) as a function of x, so that small x keep their digits.
        a_2: Half of the second derivative of f at 1.
        at_zero: f(0), for points where p* is 0.
        slope: The limit of f(t) / t for large t, for points where p is 0.
    """

    name: str
    shifted: Callable[[Tensor], Tensor]
    a_2: float
    at_zero: float
    slope: float

    def between(self, p_star: Numbers, p: Numbers) -> float:
        """D_f(p*||p) of two discrete distributions over the same points."""
        p_star, p = probabilities("p_star", p_star, whole=True), probabilities("p", p, whole=True)
        if p_star.shape != p.shape:
            raise ValueError(
                f"p_star and p must have a probability for the same points, got {len(p_star)} and {len(p)} numbers: "
                "give 0 for points that one of them does not have"
            )
        shown = p > 0
        r = (p_star[shown] - p[shown]) / p[shown]
        value = float(p[shown] @ torch.where(r > -1, self.shifted(r), self.at_zero))
        outside = float(p_star[~shown].sum())
        return value + (self.slope * outside if outside > 0 else 0.0)


def _jensen_shannon(x: Tensor) -> Tensor:
    return ((1 + x) * (x.log1p() - (x / 2).log1p()) - (x / 2).log1p()) / 2


_KINDS = [
    Divergence("kl", lambda x: (1 + x) * x.log1p() - x, 1 / 2, at_zero=1.0, slope=math.inf),
    Divergence("reverse_kl", lambda x: x - x.log1p(), 1 / 2, at_zero=math.inf, slope=1.0),
    Divergence("chi_square", torch.square, 1.0, at_zero=1.0, slope=math.inf),
    Divergence("jensen_shannon", _jensen_shannon, 1 / 8, at_zero=math.log(2) / 2, slope=math.log(2) / 2),
    Divergence("squared_hellinger", lambda x: (x / ((1 + x).sqrt() + 1)).square(), 1 / 4, at_zero=1.0, slope=1.0),
]
DIVERGENCES: Mapping[str, Divergence] = {kind.name: kind for kind in _KINDS}


def divergence(name: str) -> Divergence:
    if name not in DIVERGENCES:
        raise ValueError(f"kind must be one of {', '.join(DIVERGENCES)}, got {name!r}")
    return DIVERGENCES[name]


def probabilities(name: str, weights: Numbers, *, whole: bool = False) -> Tensor:
    """Relative weights divided by their sum; if `whole`, the sum must be 1 already."""
    numbers = torch.as_tensor(weights, dtype=torch.float64).detach()
    if numbers.ndim != 1 or not len(numbers):
        raise ValueError(f"{name} must be numbers in one dimension, at least one, got shape {tuple(numbers.shape)}")
    least, total = float(numbers.min()), float(numbers.sum())
    if not (least >= 0 and 0 < total < math.inf):
        raise ValueError(f"{name} must be finite numbers >= 0, not all 0, got a least of {least:g}, a sum of {total:g}")
    if whole and abs(total - 1) > _SUM:
        raise ValueError(f"{name} must sum to 1, got a sum of {total:.6g}: divide by it")
    return numbers if whole else numbers / total
