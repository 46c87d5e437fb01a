"""The smallest and the largest eigenvalue of the Hessian, and whether the loss is convex at the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from gasam.analysis.lanczos import Krylov, Product
from gasam.analysis.objective import Objective, check_whole
from gasam.lab.theory.distribution import Examples
from gasam.lab.theory.risk import Risk, risks

_RESOLVED = 1e-8  # tolerance of the extreme eigenvalues, relative to the largest

Convexity = Literal["convex", "vacuous", "not convex here"]


@dataclass(frozen=True)
class Curvature:
    """The smallest eigenvalue of H, mu, and the largest.

    Unless `resolved`, mu may be less than `smallest`, so a bound computed from it may be too small. `idle` is the
    number of weights whose gradient is exactly 0, such as those of a pixel that is always black.
    """

    smallest: float
    largest: float
    resolved: bool
    idle: int
    products: int
    zero: float  # an eigenvalue below this is rounding

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
    """Compute the extreme eigenvalues of the Hessian at the model's weights with Lanczos' method.

    Args:
        model: The model; it is left unchanged.
        objective: Gives the loss of each example, see `gasam.analysis.objective`.
        batches: Examples of p: a list of batches or a `Distribution`.
        ridge: ridge/2 |w|^2 is added to the loss. Use the same value in all functions.
        products: Maximum number of Hessian products.
        seed: The seed of the random start vector.
    """
    with risks(model, objective, batches, ridge=ridge) as (risk,):
        return curvature_of(risk, products, seed)


def curvature_of(risk: Risk, products: int, seed: int) -> Curvature:
    check_whole("products", products, least=1)
    start = risk.random(torch.Generator().manual_seed(seed))
    ends = spectrum_ends(risk.product, start, products=products)
    smallest, zero = ends.smallest, risk.resolution * ends.norm
    idle = risk.gradient()[1] - risk.ridge * risk.position() == 0
    if idle.any() and not idle.all():
        # Lanczos' method finds a zero eigenvalue slowly; a vector of idle weights finds it with one product.
        probe = start * idle
        smallest = min(smallest, float(probe @ risk.product(probe)) / float(probe @ probe))
    resolved = ends.resolved or smallest <= zero
    return Curvature(smallest, ends.largest, resolved, int(idle.sum()), ends.products + 1, zero)


class Ends(NamedTuple):
    """The extreme eigenvalues, and the larger of their magnitudes.

    Unless `resolved`, the true extreme eigenvalues may lie further out.
    """

    smallest: float
    largest: float
    norm: float
    products: int
    resolved: bool


def spectrum_ends(product: Product, start: Tensor, *, products: int) -> Ends:
    """The extreme eigenvalues by Lanczos' method, which is exact after as many products as there are dimensions.

    scipy.sparse.linalg.eigsh is not used, because it limits restarts instead of products, and gives no values before
    all have converged.
    """
    krylov = Krylov(product, start, products, torch.Generator().manual_seed(0))
    while True:
        krylov.step()
        last = krylov.full or krylov.rest == 0
        if last or krylov.m % 5 == 0:
            values, _, residuals = krylov.ritz()
            norm, error = float(values.abs().max()), float(residuals[[0, -1]].max())
            resolved = krylov.m == len(start) or error <= _RESOLVED * norm
            if last or resolved:
                return Ends(float(values[-1]), float(values[0]), norm, krylov.m, resolved)
