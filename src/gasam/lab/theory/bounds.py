"""What the theory bounds: a shift's likeness to a corruption (Theorem 1), how far theta moves (Proposition 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.theory.curvature import Curvature, curvature_of, random_vector
from gasam.lab.theory.distribution import Examples, distribution, known_divergence
from gasam.lab.theory.divergence import Divergence, divergence
from gasam.lab.theory.linear import spectrum_ends
from gasam.lab.theory.minimum import search
from gasam.lab.theory.risk import Risk, check_at_least_zero, check_count, resolution, risks

_NEAR_ENOUGH = 1e3  # a gradient of this many resolutions does not show in the changes of loss

Verdict = Literal["holds", "exceeded", "vacuous", "not convex here"]


@dataclass(frozen=True)
class ShiftBound:
    """C_delta = sqrt(C_f / a_2 E|grad l|^2) / mu, beside the |delta| that was measured."""

    delta: float
    bound: float
    divergence: str
    size: float  # C_f
    a_2: float
    gradient_square: float  # E|grad l|^2
    curvature: Curvature

    @property
    def ratio(self) -> float:
        """|delta| / C_delta: at most 1 + o(1)."""
        return self.delta / self.bound if self.bound else math.inf if self.delta else 0.0

    @property
    def verdict(self) -> Verdict:
        convexity = self.curvature.verdict
        if convexity != "convex":
            return convexity
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
    """Proposition 1: |delta| <= (1 + o(1)) sqrt(C_f / a_2 E|grad l(theta)|^2) / mu, without the o(1).

    `delta` is measured when None. `size` is C_f, computed when None from weights over the same batches. `mu` may be
    given where it is known, say the ridge of a convex loss. The ridge belongs to l. Small batches make E|grad l|^2
    cheap: each example's gradient goes back through its batch.
    """
    kind = divergence(kind)
    size = _size(kind, batches, shifted) if size is None else size
    if not size >= 0:
        raise ValueError(f"size must be a number >= 0, the divergence of the two distributions, got {size!r}")
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        moved = measured(there, delta)
        ends = curvature_of(here, products, seed)
        square = sum(p * sum(float(g.double().square().sum()) for g in grads) for p, grads in here.example_gradients())
    if mu is not None:
        check_at_least_zero("mu", mu)
        ends = replace(ends, smallest=mu, resolved=True)
    bound = math.sqrt(size / kind.a_2 * square) / ends.smallest if ends.verdict == "convex" else math.inf
    return ShiftBound(float(moved.norm()), bound, kind.name, size, kind.a_2, square, ends)


def _size(kind: Divergence, batches: Examples, shifted: Examples) -> float:
    known = known_divergence(kind, distribution(batches), distribution(shifted))
    if known is None:
        raise ValueError(
            "size, the divergence C_f, can't be computed from two samples: give it, or give both distributions as "
            "weighted(batches, ..) over the same batches"
        )
    return known


@dataclass(frozen=True)
class CorruptionTrial:
    """|f(v) - f(0)| / |L(theta + v) - L(theta)| for each radius (the largest over the directions), and C_H / mu."""

    radii: tuple[float, ...]
    ratios: tuple[float, ...]
    c_h: float
    curvature: Curvature
    stationary: bool

    @property
    def limit(self) -> float:
        """C_H / mu, which the ratio stays below as the radius goes to 0."""
        return self.c_h / self.curvature.smallest if self.curvature.verdict == "convex" else math.inf

    @property
    def verdict(self) -> Verdict:
        if self.curvature.verdict != "convex":
            return self.curvature.verdict
        smallest = min(range(len(self.radii)), key=self.radii.__getitem__)
        return "holds" if self.ratios[smallest] <= self.limit else "exceeded"

    @property
    def sentence(self) -> str:
        seen = ", ".join(f"{ratio:.3g} at {radius:.2g}" for radius, ratio in zip(self.radii, self.ratios, strict=True))
        doubt = "" if self.stationary else "; theta or theta* is no minimum, so a linear term takes part"
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
    """Theorem 1: with f(v) = L*(theta* + v) - L(theta + v), |f(v) - f(0)| <= (C_H + o(1)) / (mu + o(1)) |L(v) - L(0)|.

    C_H = |H* - H|_2 is measured. `directions` are drawn, or given by name; each is scaled to every radius. Losses of
    float32 models differ from themselves by 1e-7: keep their radii large.
    """
    if not radii or not all(isinstance(r, int | float) and 0 < r < math.inf for r in radii):
        raise ValueError(f"radii must be finite numbers > 0, at least one, got {radii!r}")
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        moved = measured(there, delta)
        lines = _directions(here, directions, seed)
        ends = curvature_of(here, products, seed)

        def difference(v: Tensor) -> Tensor:
            with there.moved_by(moved):
                product = there.product(v)
            return product - here.product(v)

        c_h = spectrum_ends(difference, lines[0], products=products).norm
        ratios = tuple(max(_ratio(here, there, moved, radius * line) for line in lines) for radius in radii)
        with there.moved_by(moved):
            slope = there.gradient()[1].norm()
        stationary = max(float(slope), float(here.gradient()[1].norm())) <= _NEAR_ENOUGH * resolution(here)
    return CorruptionTrial(tuple(float(r) for r in radii), ratios, c_h, ends, stationary)


def _directions(risk: Risk, given: int | Sequence[Mapping[str, Tensor]], seed: int) -> list[Tensor]:
    if isinstance(given, int):
        check_count("directions", given)
        generator = torch.Generator().manual_seed(seed)
        lines = [random_vector(risk, generator) for _ in range(given)]
    else:
        lines = [risk.flat("directions", line) for line in given]
    if not lines or not all(0 < float(line.norm()) < math.inf for line in lines):
        raise ValueError("directions must be at least one, each finite and not 0")
    return [line / line.norm() for line in lines]


def _ratio(here: Risk, there: Risk, delta: Tensor, v: Tensor) -> float:
    """f(v) - f(0) is the difference of two changes of loss, each from its own minimum."""
    change, shifted_change = _change(here, torch.zeros_like(v), v), _change(there, delta, v)
    if change == 0:
        return math.inf if shifted_change else 0.0
    return abs(shifted_change - change) / abs(change)


def _change(risk: Risk, start: Tensor, v: Tensor) -> float:
    with risk.moved_by(start):
        before = risk.loss()
    with risk.moved_by(start + v):
        return risk.loss() - before


def measured(there: Risk, delta: Mapping[str, Tensor] | None) -> Tensor:
    """The given delta, or the one to the minimum of the shifted risk, which must be reached."""
    if delta is not None:
        return there.flat("delta", delta)
    found = search(there, None, 2000)
    if not found.stationary:
        raise ValueError(
            f"delta must be given where the minimum of shifted is not reached, got |gradient| "
            f"{found.gradient_norm:.2g}: take it from measured_shift with a larger tolerance, iterations or ridge"
        )
    return there.flat("delta", found.offset)
