"""Tests of the paper's bounds: Theorem 1 on corruptions of the weights, Proposition 1 on the length of delta."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gasam.analysis.lanczos import Product, largest
from gasam.analysis.objective import check_number, check_whole
from gasam.lab.theory.divergence import divergence
from gasam.lab.theory.minimum import delta_of
from gasam.lab.theory.risk import Problem, Risk

_NEAR_ENOUGH = 1e3  # a gradient below this many resolutions does not affect the measured changes of loss
_PRODUCTS = 100  # maximum number of Hessian products for each extreme eigenvalue
_RESOLVED = 1e-8  # tolerance of the extreme eigenvalues, relative to the largest

Verdict = Literal["convex", "holds", "exceeded", "vacuous", "not convex here"]


@dataclass(frozen=True)
class Curvature:
    """The smallest eigenvalue of H, mu, and the largest.

    Unless `resolved`, mu may be less than `smallest`, so a bound computed from it may be too small.
    """

    smallest: float
    largest: float
    resolved: bool
    verdict: Verdict

    @property
    def sentence(self) -> str:
        least = "" if self.resolved else "at most "
        return f"{self.verdict}: mu is {least}{self.smallest:.3g}, the largest eigenvalue {self.largest:.3g}"

    def judge(self, value: float, limit: float) -> Verdict:
        """Whether the value is within a limit that contains 1 / mu."""
        if self.verdict != "convex":
            return self.verdict
        return "vacuous" if math.isinf(limit) else "holds" if value <= limit else "exceeded"


@dataclass(frozen=True)
class ShiftBound:
    """The measured |delta|, and its bound C_delta = sqrt(C_f / a_2 E|grad l|^2) / mu."""

    delta: float
    bound: float
    ratio: float  # |delta| / C_delta, which should be at most 1 + o(1)
    divergence: str
    size: float  # C_f
    gradient_square: float  # E|grad l|^2
    curvature: Curvature
    verdict: Verdict

    @property
    def sentence(self) -> str:
        return (
            f"{self.verdict}: |delta| {self.delta:.4g} is {self.ratio:.3g} of C_delta {self.bound:.4g} "
            f"({self.divergence} {self.size:.3g}; {self.curvature.sentence})"
        )


@dataclass(frozen=True)
class CorruptionTrial:
    """The ratios |f(v) - f(0)| / |L(theta + v) - L(theta)| for each radius, the largest over all directions.

    `limit` is C_H / mu, the bound on the ratio as the radius goes to 0. `stationary` says whether theta is a minimum.
    """

    radii: tuple[float, ...]
    ratios: tuple[float, ...]
    c_h: float
    limit: float
    curvature: Curvature
    stationary: bool
    verdict: Verdict

    @property
    def sentence(self) -> str:
        seen = ", ".join(f"{ratio:.3g} at {radius:.2g}" for radius, ratio in zip(self.radii, self.ratios, strict=True))
        doubt = "" if self.stationary else "; theta is not a minimum, so a linear term contributes"
        return f"{self.verdict}: the ratio is {seen}; C_H / mu is {self.limit:.3g} ({self.curvature.sentence}){doubt}"


def curvature(problem: Problem) -> Curvature:
    """Compute the extreme eigenvalues of the Hessian of the loss on p with Lanczos' method."""
    with problem.risks(0.0) as [risk]:
        return _curvature_of(risk)


def shift_bound(problem: Problem, *, kind: str = "kl") -> ShiftBound:
    """Test Proposition 1: |delta| <= (1 + o(1)) sqrt(C_f / a_2 E|grad l(theta)|^2) / mu. The o(1) is left out.

    `kind` is the name of the divergence D_f in `DIVERGENCES`.
    """
    f = divergence(kind)
    size = problem.divergence(f)
    if size is None:
        raise ValueError(
            "the divergence C_f can't be computed from two samples: give both distributions as weighted(batches, ..) "
            "over the same batches"
        )
    with problem.risks(0.0, 1.0) as [here, there]:
        delta, ends = float(delta_of(there).norm()), _curvature_of(here)
        square = float(here.example_mean(torch.sum))
    bound = math.sqrt(size / f.a_2 * square) / ends.smallest if ends.verdict == "convex" else math.inf
    ratio = delta / bound if bound else (math.inf if delta else 0.0)
    return ShiftBound(delta, bound, ratio, kind, size, square, ends, ends.judge(delta, bound))


def corruption_trial(
    problem: Problem, *, radii: Sequence[float] = (0.1, 0.01), directions: int = 10
) -> CorruptionTrial:
    """Test Theorem 1: |f(v) - f(0)| <= (C_H + o(1)) / (mu + o(1)) |L(theta + v) - L(theta)|.

    f(v) = L*(theta* + v) - L(theta + v). C_H = |H* - H|_2 is measured with Lanczos' method.

    Args:
        problem: The model at theta, its loss, p and p*.
        radii: The lengths of v. Keep them large for float32 models, whose losses have rounding errors of 1e-7.
        directions: The number of random directions of v.
    """
    for radius in radii:
        check_number("a radius of radii", radius, above=0)
    check_whole("directions", directions, least=1)
    with problem.risks(0.0, 1.0) as [here, there]:
        moved = delta_of(there)
        lines = [line / line.norm() for line in here.random(directions)]
        ends = _curvature_of(here)
        low, high, _ = spectrum_ends(lambda v: there.product(v, moved) - here.product(v), lines[0])
        theta, star = here.at(), there.at(moved)

        def ratio(v: Tensor) -> float:
            """f(v) - f(0) is the difference of two changes of loss, each from its own minimum."""
            change = here.at(v).loss - theta.loss
            shifted_change = there.at(moved + v).loss - star.loss
            return abs(shifted_change - change) / abs(change) if change else math.inf

        ratios = [max(ratio(radius * line) for line in lines) for radius in radii]
    stationary = theta.norm <= _NEAR_ENOUGH * here.resolution
    c_h = max(abs(low), abs(high))
    limit = c_h / ends.smallest if ends.verdict == "convex" else math.inf
    verdict = ends.judge(ratios[radii.index(min(radii))], limit)
    return CorruptionTrial(tuple(map(float, radii)), tuple(ratios), c_h, limit, ends, stationary, verdict)


def spectrum_ends(product: Product, start: Tensor, products: int = _PRODUCTS) -> tuple[float, float, bool]:
    """The smallest and the largest eigenvalue, and whether both are resolved. If not, they may lie further out."""

    def largest_of(sign: int) -> tuple[float, bool]:
        generator = torch.Generator().manual_seed(0)
        values, _, converged = largest(
            lambda v: sign * product(v), start, 1,
            size=products, tolerance=_RESOLVED, max_products=products, generator=generator,
        )  # fmt: skip
        return sign * float(values[0]), bool(converged[0])

    (low, low_resolved), (high, high_resolved) = largest_of(-1), largest_of(1)
    return low, high, low_resolved and high_resolved


def _curvature_of(risk: Risk) -> Curvature:
    [start] = risk.random()
    smallest, largest, resolved = spectrum_ends(risk.product, start)
    zero = risk.resolution * max(abs(smallest), abs(largest))  # an eigenvalue below this is rounding
    idle = risk.at().gradient - risk.ridge * risk.home == 0
    if idle.any() and not idle.all():
        # Lanczos' method finds a zero eigenvalue slowly; a vector of weights without a gradient needs one product.
        probe = start * idle
        smallest = min(smallest, float(probe @ risk.product(probe)) / float(probe @ probe))
    verdict: Verdict = "not convex here" if smallest < -zero else "vacuous" if smallest <= zero else "convex"
    return Curvature(smallest, largest, resolved or smallest <= zero, verdict)
