"""The parameter shift delta = theta* - theta: measured by minimisation, and predicted by Theorem 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.theory.distribution import Examples
from gasam.lab.theory.minimum import check_budget, conjugate_gradients, search
from gasam.lab.theory.risk import Risk, check_at_least_zero, flatten, risks


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


def measured_shift(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    shifted: Examples,
    *,
    ridge: float = 0.0,
    tolerance: float | None = None,
    iterations: int = 2000,
) -> MeasuredShift:
    """Measure delta = theta* - theta: minimise the loss on `shifted`, starting at theta, the model's weights.

    Args:
        model: The model at theta; call `settle` on `batches` first. It is left unchanged.
        objective: Gives the loss of each example, see `gasam.analysis.objective`.
        batches: Examples of p: a list of batches or a `Distribution`. They are only used to check theta.
        shifted: Examples of p*: other batches, or the same ones with other weights, see `weighted`.
        ridge: ridge/2 |w|^2 is added to the loss. Use the same value in all functions.
        tolerance: The largest |gradient| at theta*; None means 4e-11 for float64 and 2e-5 for float32 weights.
        iterations: Maximum number of iterations; each Hessian product of Newton's method counts as one.
    """
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        found = search(there, tolerance, iterations)
        start = float(here.gradient()[1].norm())
    evaluations = here.evaluations + found.evaluations
    return MeasuredShift(found.offset, found.gradient_norm, start, found.tolerance, found.iterations, evaluations)


def predicted_shift(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    shifted: Examples,
    *,
    ridge: float = 0.0,
    damping: float = 0.0,
    tolerance: float | None = None,
    iterations: int = 1000,
) -> PredictedShift:
    """Predict delta by Theorem 2: delta = -H^-1 E_p[r grad l] with r = p*/p - 1.

    This equals -H^-1 (grad L*(theta) - grad L(theta)). The prediction is correct up to o(|delta|): its relative
    error is of the order of the shift.

    Args:
        model: The model at theta; call `settle` on `batches` first. It is left unchanged.
        objective: Gives the loss of each example, see `gasam.analysis.objective`.
        batches: Examples of p: a list of batches or a `Distribution`.
        shifted: Examples of p*: other batches, or the same ones with other weights, see `weighted`.
        ridge: ridge/2 |w|^2 is added to the loss. Use the same value in all functions.
        damping: Added to the diagonal of H, which conjugate gradients invert.
        tolerance: The relative residual of the solve; None means 1e-10 for float64 and 2e-5 for float32 weights.
        iterations: Maximum number of Hessian products.
    """
    check_at_least_zero("damping", damping)
    check_budget(tolerance, iterations)
    with risks(model, objective, batches, shifted, ridge=ridge) as (here, there):
        return predict(here, there, damping, tolerance, iterations)


def predict(
    here: Risk, there: Risk, damping: float = 0.0, tolerance: float | None = None, iterations: int = 1000
) -> PredictedShift:
    tolerance = max(1e-10, here.resolution) if tolerance is None else tolerance
    pull = there.gradient()[1] - here.gradient()[1]

    def product(vector: Tensor) -> Tensor:
        return here.product(vector) + damping * vector

    solved = conjugate_gradients(product, -pull, tolerance=tolerance, iterations=iterations)
    converged = solved.residual <= tolerance
    return PredictedShift(here.named(solved.x), solved.residual, solved.iterations, converged, solved.lowest)


@dataclass(frozen=True)
class Agreement:
    """The relative error |predicted - measured| / |measured| of a predicted shift, and the cosine between the two."""

    relative_error: float
    cosine: float

    @property
    def sentence(self) -> str:
        return f"the prediction is off by {self.relative_error:.2g} of |delta|, cosine {self.cosine:.6f}"


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


def norm(delta: Mapping[str, Tensor]) -> float:
    """|delta|_2 over all weights."""
    return float(flatten(delta.values()).norm())
