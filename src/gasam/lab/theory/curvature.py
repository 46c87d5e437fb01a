"""The ends of the Hessian's spectrum, and what they allow to say: convex, or no bound at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.theory.distribution import Examples
from gasam.lab.theory.linear import spectrum_ends
from gasam.lab.theory.risk import Risk, check_count, resolution, risks

Convexity = Literal["convex", "vacuous", "not convex here"]


@dataclass(frozen=True)
class Curvature:
    """mu and the largest eigenvalue of H. Unresolved, mu is at most `smallest`: a bound made with it may be too small.

    `idle` weights have no gradient at all where the model is, such as those of a pixel that is always black.
    """

    smallest: float
    largest: float
    resolved: bool
    idle: int
    products: int
    zero: float  # below this, an eigenvalue is rounding

    @property
    def verdict(self) -> Convexity:
        if self.smallest < -self.zero:
            return "not convex here"
        return "vacuous" if self.smallest <= self.zero else "convex"

    @property
    def sentence(self) -> str:
        least = "" if self.resolved else "at most "
        idle = f"; {self.idle} weights have no gradient" if self.idle else ""
        return f"{self.verdict}: mu is {least}{self.smallest:.3g}, the largest eigenvalue {self.largest:.3g}{idle}"


def curvature(
    model: nn.Module, objective: Objective, batches: Examples, *, ridge: float = 0.0, products: int = 100, seed: int = 0
) -> Curvature:
    """The ends of the Hessian's spectrum, by Lanczos with at most `products` products."""
    with risks(model, objective, batches, ridge=ridge) as (risk,):
        return curvature_of(risk, products, seed)


def curvature_of(risk: Risk, products: int, seed: int) -> Curvature:
    check_count("products", products)
    start = random_vector(risk, torch.Generator().manual_seed(seed))
    ends = spectrum_ends(risk.product, start, products=products)
    idle = risk.gradient()[1] - risk.ridge * risk.position() == 0
    smallest, resolved = ends.smallest, ends.resolved
    if idle.any() and not idle.all():
        # Lanczos comes near a zero eigenvalue only slowly; on the idle weights it is seen at once.
        probe = start * idle
        along = float(probe @ risk.product(probe)) / float(probe @ probe)
        smallest = min(smallest, along)
    zero = resolution(risk) * ends.norm
    return Curvature(smallest, ends.largest, resolved or smallest <= zero, int(idle.sum()), ends.products + 1, zero)


def random_vector(risk: Risk, generator: torch.Generator) -> Tensor:
    """Drawn on the CPU, so that a seed means the same everywhere."""
    return torch.randn(risk.size, dtype=torch.float64, generator=generator).to(risk.weights[0].device)
