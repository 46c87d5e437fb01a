"""Tests of the paper's bounds: Theorem 1 on corruptions of the weights, Proposition 1 on the length of delta."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective, check_whole
from gasam.lab.theory.curvature import Curvature, curvature_of, spectrum_ends
from gasam.lab.theory.distribution import Examples, distribution, known_divergence
from gasam.lab.theory.divergence import Divergence, divergence
from gasam.lab.theory.minimum import found_or_given
from gasam.lab.theory.risk import Risk, check_at_least_zero, risks

_NEAR_ENOUGH = 1e3  # a gradient below this many resolutions does not affect the measured changes of loss

Verdict = Literal["holds", "exceeded", "vacuous", "not convex here"]


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


def shift_bound(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    shifted: Examples,
    *,
    delta: Mapping[str, Tensor] | None = None,
    kind: str | Divergence = "kl",
    size: float | None = None,
    mu: float | None = None,
    ridge: float = 0.0,
    products: int = 100,
    seed: int = 0,
) -> ShiftBound:
    """Test Proposition 1: |delta| <= (1 + o(1)) sqrt(C_f / a_2 E|grad l(theta)|^2) / mu. The o(1) is left out.

    Args:
        model: The model at theta, see `settle`; it is left unchanged.
        objective: Gives the loss of each example, see `gasam.analysis.objective`.
        batches: Examples of p: a list of batches or a `Distribution`. Small batches cost less here, because the
            gradient of each example is needed.
        shifted: Examples of p*: other batches, or the same ones with other weights, see `weighted`.
        delta: theta* - theta by name; None searches for the minimum on `shifted`.
        kind: The divergence D_f: a name in `DIVERGENCES`, or your own `Divergence`.
        size: C_f, the divergence of p* from p. None computes it, which needs weights over the same batches.
        mu: The smallest eigenvalue of the Hessian, if it is known, such as the ridge of a convex loss. None computes
            it with Lanczos' method.
        ridge: ridge/2 |w|^2 is added to the loss. Use the same value in all functions.
        products: Maximum number of Hessian products of Lanczos' method.
        seed: The seed of the random start vector.
    """
    kind = divergence(kind)
    if size is None:
        size = known_divergence(kind, distribution(batches), distribution(shifted))
    if size is None:
        raise ValueError(
            "size, the divergence C_f, can't be computed from two samples: give it, or give both distributions as "
            "weighted(batches, ..) over the same batches"
        )
    if not size >= 0:
        raise ValueError(f"size must be a number >= 0, the divergence of the two distributions, got {size!r}")
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        moved = found_or_given(there, delta)
        ends = curvature_of(here, products, seed)
        square = float(here.example_mean(torch.sum))
    if mu is not None:
        check_at_least_zero("mu", mu)
        ends = replace(ends, smallest=mu, resolved=True)
    bound = math.sqrt(size / kind.a_2 * square) / ends.smallest if ends.verdict == "convex" else math.inf
    return ShiftBound(float(moved.norm()), bound, kind.name, size, kind.a_2, square, ends)


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


def corruption_trial(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    shifted: Examples,
    *,
    delta: Mapping[str, Tensor] | None = None,
    radii: Sequence[float] = (0.1, 0.01),
    directions: int | Sequence[Mapping[str, Tensor]] = 10,
    ridge: float = 0.0,
    products: int = 100,
    seed: int = 0,
) -> CorruptionTrial:
    """Test Theorem 1: |f(v) - f(0)| <= (C_H + o(1)) / (mu + o(1)) |L(theta + v) - L(theta)|.

    Here f(v) = L*(theta* + v) - L(theta + v). C_H = |H* - H|_2 is measured with Lanczos' method.

    Args:
        model: The model at theta, see `settle`; it is left unchanged.
        objective: Gives the loss of each example, see `gasam.analysis.objective`.
        batches: Examples of p: a list of batches or a `Distribution`.
        shifted: Examples of p*: other batches, or the same ones with other weights, see `weighted`.
        delta: theta* - theta by name; None searches for the minimum on `shifted`.
        radii: The lengths of v. Keep them large for float32 models, whose losses have rounding errors of 1e-7.
        directions: The number of random directions of v, or vectors by name, which are scaled to every radius.
        ridge: ridge/2 |w|^2 is added to the loss. Use the same value in all functions.
        products: Maximum number of Hessian products of Lanczos' method.
        seed: The seed of the random directions.
    """
    if not radii or not all(isinstance(r, int | float) and 0 < r < math.inf for r in radii):
        raise ValueError(f"radii must be finite numbers > 0, at least one, got {radii!r}")
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        moved = found_or_given(there, delta)
        lines = _directions(here, directions, seed)
        ends = curvature_of(here, products, seed)

        def difference(v: Tensor) -> Tensor:
            return there.product(v, moved) - here.product(v)

        c_h = spectrum_ends(difference, lines[0], products=products).norm
        ratios = [max(_ratio(here, there, moved, radius * line) for line in lines) for radius in radii]
        slope = max(float(there.gradient(moved)[1].norm()), float(here.gradient()[1].norm()))
        stationary = slope <= _NEAR_ENOUGH * here.resolution
    return CorruptionTrial(tuple(map(float, radii)), tuple(ratios), c_h, ends, stationary)


def _directions(risk: Risk, given: int | Sequence[Mapping[str, Tensor]], seed: int) -> list[Tensor]:
    """Unit vectors, drawn or given."""
    if isinstance(given, int):
        check_whole("directions", given, least=1)
        generator = torch.Generator().manual_seed(seed)
        lines = [risk.random(generator) for _ in range(given)]
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
