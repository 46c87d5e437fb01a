"""Tests of the paper's bounds: Theorem 1 on corruptions of the weights, Proposition 1 on the length of delta."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gasam.analysis.lanczos import Krylov, Product
from gasam.analysis.objective import check_whole
from gasam.lab.theory.divergence import Divergence, divergence
from gasam.lab.theory.minimum import found_or_given
from gasam.lab.theory.risk import Problem, Risk, check_at_least_zero, known_divergence

_NEAR_ENOUGH = 1e3  # a gradient below this many resolutions does not affect the measured changes of loss
_RESOLVED = 1e-8  # tolerance of the extreme eigenvalues, relative to the largest

Convexity = Literal["convex", "vacuous", "not convex here"]
Verdict = Literal["holds", "exceeded", "vacuous", "not convex here"]


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


@dataclass(frozen=True)
class ShiftBound:
    """The bound C_delta = sqrt(C_f / a_2 E|grad l|^2) / mu, and the measured |delta|."""

    delta: float
    bound: float
    divergence: str
    size: float  # C_f
    a_2: float
    gradient_square: float  # E|grad l|^2
    curvature: Curvature

    @property
    def ratio(self) -> float:
        """|delta| / C_delta, which should be at most 1 + o(1)."""
        if self.bound == 0:
            return math.inf if self.delta else 0.0
        return self.delta / self.bound

    @property
    def verdict(self) -> Verdict:
        if self.curvature.verdict != "convex":
            return self.curvature.verdict
        if math.isinf(self.size):
            return "vacuous"
        return "holds" if self.ratio <= 1 else "exceeded"

    @property
    def sentence(self) -> str:
        if self.curvature.verdict != "convex":
            return f"{self.curvature.sentence}: Proposition 1 says nothing about |delta| {self.delta:.4g}"
        return (
            f"{self.verdict}: |delta| {self.delta:.4g} is {self.ratio:.3g} of C_delta {self.bound:.4g} "
            f"({self.divergence} {self.size:.3g}, mu {self.curvature.smallest:.3g})"
        )


@dataclass(frozen=True)
class CorruptionTrial:
    """The ratios |f(v) - f(0)| / |L(theta + v) - L(theta)| for each radius, the largest over all directions, and C_H.

    `stationary` says whether theta and theta* are minima.
    """

    radii: tuple[float, ...]
    ratios: tuple[float, ...]
    c_h: float
    curvature: Curvature
    stationary: bool

    @property
    def limit(self) -> float:
        """C_H / mu, the bound on the ratio as the radius goes to 0."""
        return self.c_h / self.curvature.smallest if self.curvature.verdict == "convex" else math.inf

    @property
    def verdict(self) -> Verdict:
        if self.curvature.verdict != "convex":
            return self.curvature.verdict
        _, ratio = min(zip(self.radii, self.ratios, strict=True))
        return "holds" if ratio <= self.limit else "exceeded"

    @property
    def sentence(self) -> str:
        seen = ", ".join(f"{ratio:.3g} at {radius:.2g}" for radius, ratio in zip(self.radii, self.ratios, strict=True))
        doubt = "" if self.stationary else "; theta or theta* is not a minimum, so a linear term contributes"
        if self.curvature.verdict != "convex":
            return f"{self.curvature.sentence}: C_H / mu bounds nothing; the ratios are {seen}{doubt}"
        return f"{self.verdict}: the ratio is {seen}; C_H / mu is {self.limit:.3g}{doubt}"


def curvature(problem: Problem) -> Curvature:
    """Compute the extreme eigenvalues of the Hessian of the loss on p with Lanczos' method."""
    with problem.risks(problem.batches) as [risk]:
        return _curvature_of(risk)


def shift_bound(
    problem: Problem,
    *,
    delta: Mapping[str, Tensor] | None = None,
    kind: str | Divergence = "kl",
    size: float | None = None,
    mu: float | None = None,
) -> ShiftBound:
    """Test Proposition 1: |delta| <= (1 + o(1)) sqrt(C_f / a_2 E|grad l(theta)|^2) / mu. The o(1) is left out.

    Args:
        problem: The model at theta, its loss, p and p*.
        delta: theta* - theta by name; None searches for the minimum on p*.
        kind: The divergence D_f: a name in `DIVERGENCES`, or your own `Divergence`.
        size: C_f, the divergence of p* from p. None computes it, which needs weights over the same batches.
        mu: The smallest eigenvalue of the Hessian, if it is known, such as the ridge of a convex loss. None computes
            it with Lanczos' method.
    """
    kind = divergence(kind)
    if size is None:
        size = known_divergence(kind, problem.batches, problem.p_star)
    if size is None:
        raise ValueError(
            "size, the divergence C_f, can't be computed from two samples: give it, or give both distributions as "
            "weighted(batches, ..) over the same batches"
        )
    if not size >= 0:
        raise ValueError(f"size must be a number >= 0, the divergence of the two distributions, got {size!r}")
    with problem.risks() as [here, there]:
        moved = found_or_given(there, delta)
        ends = _curvature_of(here)
        square = float(here.example_mean(torch.sum))
    if mu is not None:
        check_at_least_zero("mu", mu)
        ends = replace(ends, smallest=mu, resolved=True)
    bound = math.sqrt(size / kind.a_2 * square) / ends.smallest if ends.verdict == "convex" else math.inf
    return ShiftBound(float(moved.norm()), bound, kind.name, size, kind.a_2, square, ends)


def corruption_trial(
    problem: Problem,
    *,
    delta: Mapping[str, Tensor] | None = None,
    radii: Sequence[float] = (0.1, 0.01),
    directions: int | Sequence[Mapping[str, Tensor]] = 10,
) -> CorruptionTrial:
    """Test Theorem 1: |f(v) - f(0)| <= (C_H + o(1)) / (mu + o(1)) |L(theta + v) - L(theta)|.

    Here f(v) = L*(theta* + v) - L(theta + v). C_H = |H* - H|_2 is measured with Lanczos' method.

    Args:
        problem: The model at theta, its loss, p and p*.
        delta: theta* - theta by name; None searches for the minimum on p*.
        radii: The lengths of v. Keep them large for float32 models, whose losses have rounding errors of 1e-7.
        directions: The number of random directions of v, or vectors by name, which are scaled to every radius.
    """
    if not radii or not all(isinstance(r, int | float) and 0 < r < math.inf for r in radii):
        raise ValueError(f"radii must be finite numbers > 0, at least one, got {radii!r}")
    with problem.risks() as [here, there]:
        moved = found_or_given(there, delta)
        lines = _directions(here, directions)
        ends = _curvature_of(here)

        def difference(v: Tensor) -> Tensor:
            return there.product(v, moved) - here.product(v)

        low, high, *_ = spectrum_ends(difference, lines[0], problem.products)
        ratios = [max(_ratio(here, there, moved, radius * line) for line in lines) for radius in radii]
        slope = max(float(there.gradient(moved)[1].norm()), float(here.gradient()[1].norm()))
        stationary = slope <= _NEAR_ENOUGH * here.resolution
    return CorruptionTrial(tuple(map(float, radii)), tuple(ratios), max(abs(low), abs(high)), ends, stationary)


def spectrum_ends(product: Product, start: Tensor, products: int) -> tuple[float, float, bool, int]:
    """The smallest and the largest eigenvalue, whether they are resolved, and the number of products.

    Lanczos' method is exact after as many products as there are dimensions; before, the true values may lie further
    out. scipy.sparse.linalg.eigsh limits restarts instead of products, and gives no values before all have converged.
    """
    krylov = Krylov(product, start, products, torch.Generator().manual_seed(0))
    while True:
        krylov.step()
        last = krylov.full or krylov.rest == 0
        if last or krylov.m % 5 == 0:
            values, _, residuals = krylov.ritz()
            error = float(residuals[[0, -1]].max())
            resolved = krylov.m == len(start) or error <= _RESOLVED * float(values.abs().max())
            if last or resolved:
                return float(values[-1]), float(values[0]), resolved, krylov.m


def _curvature_of(risk: Risk) -> Curvature:
    [start] = risk.random()
    smallest, largest, resolved, used = spectrum_ends(risk.product, start, risk.problem.products)
    zero = risk.resolution * max(abs(smallest), abs(largest))
    idle = risk.gradient()[1] - risk.ridge * risk.position() == 0
    if idle.any() and not idle.all():
        # Lanczos' method finds a zero eigenvalue slowly; a vector of idle weights finds it with one product.
        probe = start * idle
        smallest = min(smallest, float(probe @ risk.product(probe)) / float(probe @ probe))
    return Curvature(smallest, largest, resolved or smallest <= zero, int(idle.sum()), used + 1, zero)


def _directions(risk: Risk, given: int | Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    """Unit vectors, drawn or given."""
    if isinstance(given, int):
        check_whole("directions", given, least=1)
        lines = risk.random(given)
    else:
        lines = [risk.flat("directions", line) for line in given]
    if not lines or not all(0 < float(line.norm()) < math.inf for line in lines):
        raise ValueError("directions must have at least one vector, and each must be finite and not 0")
    return [line / line.norm() for line in lines]


def _ratio(here: Risk, there: Risk, delta: Tensor, v: Tensor) -> float:
    """The ratio for one v. f(v) - f(0) is the difference of two changes of loss, each from its own minimum."""
    change = here.loss(v) - here.loss()
    shifted_change = there.loss(delta + v) - there.loss(delta)
    if change == 0:
        return math.inf if shifted_change else 0.0
    return abs(shifted_change - change) / abs(change)
