"""The parameter shift delta: measured and predicted (Theorem 2), and for a share of shifted data (Proposition 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gasam.lab.theory.divergence import divergence
from gasam.lab.theory.minimum import conjugate_gradients, search
from gasam.lab.theory.risk import Problem, flatten


@dataclass(frozen=True, eq=False)
class ShiftTrial:
    """delta as measured and as predicted by Theorem 2, both by name, and how far they differ.

    If `lowest_curvature`, the smallest d.Hd / d.d during the linear solve, is not positive, theta is not a strict
    minimum, and `predicted` is only the point where the solve ended.
    """

    delta: dict[str, Tensor]
    predicted: dict[str, Tensor]
    norm: float  # |delta|
    relative_error: float  # |predicted - delta| / |delta|
    cosine: float
    starts_at_minimum: bool  # whether theta is a minimum on p
    stationary: bool  # whether theta* is one on p*
    converged: bool  # whether the linear solve converged
    lowest_curvature: float

    @property
    def sentence(self) -> str:
        said = (
            f"the prediction is off by {self.relative_error:.2g} of |delta| {self.norm:.4g}, cosine {self.cosine:.6f}"
        )
        if self.lowest_curvature <= 0:
            said = (
                f"no prediction: the Hessian has curvature {self.lowest_curvature:.2g} along a direction, but "
                "Theorem 2 needs a minimum; settle the model first, or raise ridge"
            )
        elif not self.converged:
            said = "no prediction: the linear solve did not converge; raise iterations"
        start = "" if self.starts_at_minimum else "; theta is not a minimum"
        return said + start + ("" if self.stationary else "; theta* was not reached")


@dataclass(frozen=True)
class Mixed:
    """The result for one eta.

    `ratio` is |delta_mix| / |delta|. `error` is |delta_mix - eta delta_2| / |delta_mix|, with delta_2 predicted by
    Theorem 2 for eta = 1. `over_square_law` is D_f(mix||p) / (eta^2 D_f(p*||p)), None if p and p* are samples.
    """

    eta: float
    ratio: float
    error: float
    over_square_law: float | None


@dataclass(frozen=True)
class MixtureTrial:
    """The results for several eta."""

    mixed: tuple[Mixed, ...]
    divergence: str
    predicted: bool  # whether the linear solve of Theorem 2 converged
    stationary: bool  # whether every minimum was reached, including theta

    @property
    def largest_deviation(self) -> float:
        """max over eta of | |delta_mix| / (eta |delta|) - 1 |."""
        return max(abs(row.ratio / row.eta - 1) for row in self.mixed)

    @property
    def over_square_law(self) -> float | None:
        """The largest over eta. If it is above 1, the paper's bound on the divergence of the mixture fails."""
        return max((row.over_square_law for row in self.mixed if row.over_square_law is not None), default=None)

    @property
    def sentence(self) -> str:
        over, first = self.over_square_law, self.mixed[0]
        law = "" if over is None else f"; {self.divergence} of the mixture is at most {over:.3g} of eta^2 C_f"
        solved = "Theorem 2 gives no prediction here"
        if self.predicted:
            solved = f"eta times Theorem 2 is off by {first.error:.2g} at eta {first.eta:g}"
        doubt = "" if self.stationary else "; not every minimum was reached"
        return f"|delta_mix| is eta |delta| within {self.largest_deviation:.2g}; {solved}{law}{doubt}"


def shift_trial(problem: Problem) -> ShiftTrial:
    """Test Theorem 2: delta = -H^-1 E_p[r grad l] with r = p*/p - 1, up to o(|delta|).

    The right side equals -H^-1 (grad L*(theta) - grad L(theta)). delta is measured by minimising the loss on p* from
    theta. The relative error is of the order of the shift.
    """
    with problem.risks(0.0, 1.0) as [here, there]:
        start, found = here.at(), search(there)
        delta = found.offset
        if not delta.any():
            raise ValueError("shifted must move the minimum, got delta = 0: give another distribution")
        tolerance = max(1e-10, here.resolution)  # of the residual, relative to the right-hand side
        pull = there.at().gradient - start.gradient
        solved = conjugate_gradients(here.product, -pull, tolerance=tolerance, iterations=problem.iterations)
    norm, spread = float(delta.norm()), float(delta.norm() * solved.x.norm())
    return ShiftTrial(
        delta=here.named(delta),
        predicted=here.named(solved.x),
        norm=norm,
        relative_error=float((solved.x - delta).norm()) / norm,
        cosine=float(solved.x @ delta) / spread if spread else 0.0,
        starts_at_minimum=start.stationary,
        stationary=found.stationary,
        converged=solved.converged,
        lowest_curvature=solved.lowest,
    )


def mixture_trial(problem: Problem, *, etas: Sequence[float] = (0.1, 0.25, 0.5, 1.0), kind: str = "kl") -> MixtureTrial:
    """Test Proposition 2: |delta_mix| / |delta| = eta + o(1) for p_mix = (1 - eta) p + eta p*.

    The paper's D_f(mix||p) <= eta^2 C_f is measured, not assumed, because the convexity of f implies only eta C_f.

    Args:
        problem: The model at theta, from which every minimum is searched, its loss, p and p*.
        etas: The shares of p*, above 0 and at most 1.
        kind: The name of the divergence D_f in `DIVERGENCES`.
    """
    if not etas or not all(0 < eta <= 1 for eta in etas):
        raise ValueError(f"etas must be one or more numbers above 0 and at most 1, got {etas!r}")
    f, full, rows = divergence(kind), shift_trial(problem), []
    whole, stationary = problem.divergence(f), full.starts_at_minimum and full.stationary
    with problem.risks(*sorted(etas)) as mixed:
        for risk in mixed:
            found, eta = search(risk), risk.eta
            predicted = eta * flatten(full.predicted.values(), risk.device)
            norm, off = float(found.offset.norm()), float((found.offset - predicted).norm())
            seen = problem.divergence(f, eta)
            over = seen / (eta**2 * whole) if seen is not None and whole and whole < math.inf else None
            rows.append(Mixed(eta, norm / full.norm, off / norm if norm else math.inf, over))
            stationary = stationary and found.stationary
    return MixtureTrial(tuple(rows), kind, full.converged, stationary)
