"""The test of Proposition 2: a share eta of shifted data moves the minimum eta times as far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from gasam.analysis.objective import Objective
from gasam.lab.theory.distribution import Examples, distribution, known_divergence, mixture
from gasam.lab.theory.divergence import Divergence, divergence
from gasam.lab.theory.minimum import search
from gasam.lab.theory.risk import risks
from gasam.lab.theory.shift import predict


@dataclass(frozen=True)
class Mixed:
    """The result for one eta: |delta_mix|, its ratio to |delta|, and its difference from Theorem 2's prediction.

    `divergence` is D_f(mix||p) and `square_law` is eta^2 D_f(p*||p); both are None if p and p* are samples.
    """

    eta: float
    norm: float
    ratio: float
    error: float  # |delta_mix - eta delta_2| / |delta_mix|, delta_2 predicted by Theorem 2 for eta = 1
    stationary: bool
    divergence: float | None
    square_law: float | None


@dataclass(frozen=True)
class MixtureTrial:
    """The results for several eta; `norm` is |delta| at eta = 1."""

    mixed: tuple[Mixed, ...]
    norm: float
    kind: str
    predicted: bool  # whether the linear solve of Theorem 2 converged
    stationary: bool  # whether every minimum was reached, including theta

    @property
    def largest_deviation(self) -> float:
        """max over eta of | |delta_mix| / (eta |delta|) - 1 |."""
        return max(abs(row.ratio / row.eta - 1) for row in self.mixed)

    @property
    def over_square_law(self) -> float | None:
        """max over eta of D_f(mix||p) / (eta^2 C_f). If it is above 1, the paper's bound on the mixture fails."""
        both = [(row.divergence, row.square_law) for row in self.mixed]
        ratios = [seen / law for seen, law in both if seen is not None and law and law < math.inf]
        return max(ratios, default=None)

    @property
    def sentence(self) -> str:
        over = self.over_square_law
        law = "" if over is None else f"; {self.kind} of the mixture is at most {over:.3g} of eta^2 C_f"
        first = self.mixed[0]
        solved = "Theorem 2 gives no prediction here"
        if self.predicted:
            solved = f"eta times Theorem 2 is off by {first.error:.2g} at eta {first.eta:g}"
        doubt = "" if self.stationary else "; not every minimum was reached"
        return f"|delta_mix| is eta |delta| within {self.largest_deviation:.2g}; {solved}{law}{doubt}"


def mixture_trial(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    shifted: Examples,
    *,
    etas: Sequence[float] = (0.1, 0.25, 0.5, 1.0),
    kind: str | Divergence = "kl",
    ridge: float = 0.0,
    tolerance: float | None = None,
    iterations: int = 2000,
) -> MixtureTrial:
    """Test Proposition 2: |delta_mix| / |delta| = eta + o(1) for p_mix = (1 - eta) p + eta p*.

    The paper's D_f(mix||p) <= eta^2 C_f is measured, not assumed, because the convexity of f implies only eta C_f.

    Args:
        model: The model at theta, from which every minimum is searched; it is left unchanged. See `settle`.
        objective: Gives the loss of each example, see `gasam.analysis.objective`.
        batches: Examples of p: a list of batches or a `Distribution`.
        shifted: Examples of p*: other batches, or the same ones with other weights, see `weighted`.
        etas: The shares of p*, above 0 and at most 1.
        kind: The divergence D_f: a name in `DIVERGENCES`, or your own `Divergence`.
        ridge: ridge/2 |w|^2 is added to the loss. Use the same value in all functions.
        tolerance: The largest |gradient| at a minimum; None means 4e-11 for float64 and 2e-5 for float32 weights.
        iterations: Maximum number of iterations of each search; each Hessian product of Newton's method counts as one.
    """
    if not etas or not all(isinstance(eta, int | float) and 0 < eta <= 1 for eta in etas):
        raise ValueError(f"etas must be one or more numbers above 0 and at most 1, got {etas!r}")
    etas, kind = sorted(etas), divergence(kind)
    p, p_star = distribution(batches), distribution(shifted)
    mixtures = [mixture(p, p_star, eta) for eta in etas]
    with risks(model, objective, p, p_star, *mixtures, ridge=ridge) as (here, there, *mixed):
        star = search(there, tolerance, iterations)
        delta = here.flat("delta", star.offset)
        if not delta.any():
            raise ValueError("shifted must move the minimum, got delta = 0: give another distribution")
        predicted = predict(here, there)
        found = [search(risk, tolerance, iterations) for risk in mixed]
        start = float(here.gradient()[1].norm())
    whole = known_divergence(kind, p, p_star)
    rows = []
    for eta, blend, minimum in zip(etas, mixtures, found, strict=True):
        delta_mix = here.flat("delta", minimum.offset)
        off = float((delta_mix - eta * here.flat("delta", predicted.delta)).norm())
        size = float(delta_mix.norm())
        row = Mixed(
            eta=float(eta),
            norm=size,
            ratio=size / float(delta.norm()),
            error=off / size if size else math.inf,
            stationary=minimum.stationary,
            divergence=known_divergence(kind, p, blend),
            square_law=None if whole is None else eta**2 * whole,
        )
        rows.append(row)
    stationary = start <= star.tolerance and all(minimum.stationary for minimum in (star, *found))
    return MixtureTrial(tuple(rows), float(delta.norm()), kind.name, predicted.converged, stationary)
