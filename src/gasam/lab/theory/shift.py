"""The parameter shift delta: measured, predicted by Theorem 2, and for a share of shifted data (Proposition 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from gasam.lab.theory.divergence import Divergence, divergence
from gasam.lab.theory.minimum import conjugate_gradients, search
from gasam.lab.theory.risk import Problem, Risk, check_at_least_zero, flatten, known_divergence, mixture


@dataclass(frozen=True, eq=False)
class MeasuredShift:
    """The measured delta by name.

    `gradient_norm` is |gradient| at theta* on the shifted data, `start_gradient_norm` at theta on its own data. Both
    are below `tolerance` if theta* and theta are minima.
    """

    delta: dict[str, Tensor]
    gradient_norm: float
    start_gradient_norm: float
    tolerance: float
    iterations: int
    evaluations: int

    @property
    def norm(self) -> float:
        return norm(self.delta)

    @property
    def stationary(self) -> bool:
        """Whether theta* is a stationary point on the shifted data."""
        return self.gradient_norm <= self.tolerance

    @property
    def starts_at_minimum(self) -> bool:
        return self.start_gradient_norm <= self.tolerance

    @property
    def sentence(self) -> str:
        start = "" if self.starts_at_minimum else f"; theta is not a minimum, |gradient| {self.start_gradient_norm:.2g}"
        reached = "stationary" if self.stationary else "not stationary"
        return f"|delta| {self.norm:.4g}: theta* is {reached}, |gradient| {self.gradient_norm:.2g}{start}"


@dataclass(frozen=True, eq=False)
class PredictedShift:
    """The predicted delta by name. If `indefinite`, it is not a prediction, only the point where the solve ended.

    `lowest_curvature` is the smallest d.Hd / d.d during the solve, with damping.
    """

    delta: dict[str, Tensor]
    residual: float
    iterations: int
    converged: bool
    lowest_curvature: float

    @property
    def norm(self) -> float:
        return norm(self.delta)

    @property
    def indefinite(self) -> bool:
        """Whether the solve ended at a direction without positive curvature, so that theta is not a strict minimum."""
        return self.lowest_curvature <= 0

    @property
    def sentence(self) -> str:
        if self.indefinite:
            return (
                f"no prediction: the Hessian has curvature {self.lowest_curvature:.2g} along a direction, but "
                "Theorem 2 needs a minimum; settle the model first, or give ridge or damping"
            )
        reached = "solved" if self.converged else "not solved"
        return f"|delta| {self.norm:.4g}: {reached} to {self.residual:.2g} in {self.iterations} products"


@dataclass(frozen=True)
class Agreement:
    """The relative error |predicted - measured| / |measured| of a predicted shift, and the cosine between the two."""

    relative_error: float
    cosine: float

    @property
    def sentence(self) -> str:
        return f"the prediction is off by {self.relative_error:.2g} of |delta|, cosine {self.cosine:.6f}"


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


def measured_shift(problem: Problem) -> MeasuredShift:
    """Measure delta = theta* - theta: minimise the loss on p* from theta."""
    with problem.risks() as [here, there]:
        found = search(there)
        start = float(here.gradient()[1].norm())
    evaluations = here.evaluations + found.evaluations
    return MeasuredShift(found.offset, found.gradient_norm, start, found.tolerance, found.iterations, evaluations)


def predicted_shift(problem: Problem, *, damping: float = 0.0) -> PredictedShift:
    """Predict delta by Theorem 2: delta = -H^-1 E_p[r grad l] with r = p*/p - 1.

    This equals -H^-1 (grad L*(theta) - grad L(theta)). The prediction is correct up to o(|delta|): its relative
    error is of the order of the shift.

    Args:
        problem: The model at theta, its loss, p and p*.
        damping: Added to the diagonal of H, which conjugate gradients invert.
    """
    check_at_least_zero("damping", damping)
    with problem.risks() as [here, there]:
        return _predict(here, there, damping)


def agreement(predicted: Mapping[str, Tensor], measured: Mapping[str, Tensor]) -> Agreement:
    """Compare a predicted and a measured delta, both by name."""
    if predicted.keys() != measured.keys():
        raise ValueError(
            f"both deltas must name the same weights, got {sorted(predicted.keys() ^ measured.keys())} in only one"
        )
    p, m = (flatten(values[name] for name in predicted) for values in (predicted, measured))
    size = float(m.norm())
    if size == 0:
        raise ValueError("the measured delta must not be 0, because the error is relative to it")
    spread = size * float(p.norm())
    return Agreement(float((p - m).norm()) / size, float(p @ m) / spread if spread else 0.0)


def mixture_trial(
    problem: Problem,
    *,
    etas: Sequence[float] = (0.1, 0.25, 0.5, 1.0),
    kind: str | Divergence = "kl",
) -> MixtureTrial:
    """Test Proposition 2: |delta_mix| / |delta| = eta + o(1) for p_mix = (1 - eta) p + eta p*.

    The paper's D_f(mix||p) <= eta^2 C_f is measured, not assumed, because the convexity of f implies only eta C_f.

    Args:
        problem: The model at theta, from which every minimum is searched, its loss, p and p*.
        etas: The shares of p*, above 0 and at most 1.
        kind: The divergence D_f: a name in `DIVERGENCES`, or your own `Divergence`.
    """
    if not etas or not all(isinstance(eta, int | float) and 0 < eta <= 1 for eta in etas):
        raise ValueError(f"etas must be one or more numbers above 0 and at most 1, got {etas!r}")
    etas, kind, p, p_star = sorted(etas), divergence(kind), problem.batches, problem.p_star
    mixtures = [mixture(p, p_star, eta) for eta in etas]
    with problem.risks(p, p_star, *mixtures) as [here, there, *mixed]:
        star = search(there)
        delta = here.flat("delta", star.offset)
        if not delta.any():
            raise ValueError("shifted must move the minimum, got delta = 0: give another distribution")
        predicted = _predict(here, there)
        found = [search(risk) for risk in mixed]
        start = float(here.gradient()[1].norm())
    whole, linear = known_divergence(kind, p, p_star), flatten(predicted.delta.values())
    rows = []
    for eta, blend, minimum in zip(etas, mixtures, found, strict=True):
        delta_mix = flatten(minimum.offset.values())
        size, off = float(delta_mix.norm()), float((delta_mix - eta * linear).norm())
        square_law = None if whole is None else eta**2 * whole
        error = off / size if size else math.inf
        seen = known_divergence(kind, p, blend)
        rows.append(Mixed(eta, size, size / float(delta.norm()), error, minimum.stationary, seen, square_law))
    stationary = start <= star.tolerance and all(minimum.stationary for minimum in (star, *found))
    return MixtureTrial(tuple(rows), float(delta.norm()), kind.name, predicted.converged, stationary)


def norm(delta: Mapping[str, Tensor]) -> float:
    """|delta|_2 over all weights."""
    return float(flatten(delta.values()).norm())


def _predict(here: Risk, there: Risk, damping: float = 0.0) -> PredictedShift:
    tolerance = max(1e-10, here.resolution)  # of the residual, relative to the right-hand side
    pull = there.gradient()[1] - here.gradient()[1]

    def product(vector: Tensor) -> Tensor:
        return here.product(vector) + damping * vector

    solved = conjugate_gradients(product, -pull, tolerance=tolerance, iterations=here.problem.iterations)
    converged = solved.residual <= tolerance
    return PredictedShift(here.named(solved.x), solved.residual, solved.iterations, converged, solved.lowest)
