"""The minimum of a risk over all examples, found without noise and checked by its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gasam.analysis.objective import Objective
from gasam.lab.theory.distribution import Examples
from gasam.lab.theory.linear import conjugate_gradients
from gasam.lab.theory.risk import Risk, check_at_least_zero, check_count, resolution, risks

_STRETCH = 10  # iterations of L-BFGS between two looks at the gradient's norm
_PATIENCE = 5  # stretches without a lower loss or gradient
_NEAR = 1e-5  # a gradient this small is near enough for Newton's method; further away L-BFGS is the faster one
_PRODUCTS = 100  # of a Newton step at most
_FORCING = 1e-3  # how exactly a Newton step is solved: near the minimum each divides the gradient by about 1000


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the minimum lies, seen from where the model is: w + offset."""

    offset: dict[str, Tensor]
    loss: float
    gradient_norm: float
    tolerance: float
    iterations: int
    evaluations: int

    @property
    def stationary(self) -> bool:
        return self.gradient_norm <= self.tolerance

    @property
    def sentence(self) -> str:
        reached = "stationary" if self.stationary else "not stationary"
        return (
            f"{reached}: |gradient| {self.gradient_norm:.2g} (asked {self.tolerance:.2g}) after {self.iterations} "
            f"iterations, {self.evaluations} evaluations; loss {self.loss:.6g}"
        )


def find_minimum(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    *,
    ridge: float = 0.0,
    tolerance: float | None = None,
    iterations: int = 2000,
) -> Minimum:
    """Descend from the model's weights on E_p[l] + ridge/2 |w|^2 until |gradient| <= tolerance. The model stays.

    L-BFGS over all examples at once, then Newton steps by conjugate gradients where the curvature allows it.
    `tolerance` is 4e-11 for float64 weights and 2e-5 for float32 ones unless given.
    """
    check_budget(tolerance, iterations)
    with risks(model, objective, batches, ridge=ridge) as (risk,):
        return search(risk, tolerance, iterations)


def settle(
    model: nn.Module,
    objective: Objective,
    batches: Examples,
    *,
    ridge: float = 0.0,
    tolerance: float | None = None,
    iterations: int = 2000,
) -> Minimum:
    """As `find_minimum`, and the model is left there: the theta that every statement of the theory starts from."""
    found = find_minimum(model, objective, batches, ridge=ridge, tolerance=tolerance, iterations=iterations)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in found.offset:
                weight.add_(found.offset[name].to(weight))
    return found


def check_budget(tolerance: float | None, iterations: int) -> None:
    if tolerance is not None:
        check_at_least_zero("tolerance", tolerance)
    check_count("iterations", iterations)


def search(risk: Risk, tolerance: float | None, iterations: int) -> Minimum:
    tolerance = resolution(risk) if tolerance is None else tolerance
    with risk.moved_by(torch.zeros_like(risk.position())):
        start = risk.position()
        point = _Point(risk, start)
        if not math.isfinite(point.loss):
            raise ValueError(f"the loss must be finite where the model is, got {point.loss}: start from another model")
        point, done = _descend(point, max(tolerance, _NEAR), iterations)
        point, steps = _newton(point, tolerance, iterations - done)
    return Minimum(
        risk.named(point.position - start), point.loss, point.norm, tolerance, done + steps, risk.evaluations
    )


class _Point:
    """A position with the loss and the gradient there; the model is moved to it."""

    def __init__(self, risk: Risk, position: Tensor) -> None:
        self.risk, self.position = risk, position
        risk.move_to(position)
        self.loss, self.gradient = risk.gradient()
        self.norm = float(self.gradient.norm())


def _descend(point: _Point, tolerance: float, budget: int) -> tuple[_Point, int]:
    """L-BFGS with a strong Wolfe search, until the gradient is small or nothing gets better."""
    x, stretch = nn.Parameter(point.position.clone()), min(_STRETCH, budget)
    optimizer = torch.optim.LBFGS(
        [x], max_iter=stretch, tolerance_grad=0.0, tolerance_change=0.0, history_size=20, line_search_fn="strong_wolfe"
    )
    latest = best = point

    def evaluate() -> float:
        nonlocal latest
        if not torch.equal(latest.position, x.detach()):
            latest = _Point(point.risk, x.detach().clone())
        x.grad = latest.gradient.clone()
        return latest.loss

    done, lowest, idle = 0, point.norm, 0
    while best.norm > tolerance and done < budget and idle < _PATIENCE:
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]
        done += stretch
        evaluate()
        if not math.isfinite(latest.loss + latest.norm):
            break
        idle = 0 if latest.loss < best.loss or latest.norm < lowest else idle + 1
        lowest = min(lowest, latest.norm)
        if latest.loss <= best.loss or latest.norm <= tolerance:
            best = latest
    return best, done


def _newton(point: _Point, tolerance: float, budget: int) -> tuple[_Point, int]:
    """Newton steps within a radius that follows how well the quadratic foretells the loss. `budget` counts products.

    Negative curvature is followed to the radius, downhill. Once the foretold gain drowns in the loss's rounding, a
    step counts when it lowers the gradient.
    """
    done, radius, rounding = 0, 1.0, 1e3 * resolution(point.risk) ** 1.5
    while point.norm > tolerance and done < budget and radius > rounding:
        point.risk.move_to(point.position)
        solved = conjugate_gradients(
            point.risk.product,
            -point.gradient,
            tolerance=_FORCING,
            iterations=min(_PRODUCTS, budget - done),
            radius=radius,
        )
        done += solved.iterations
        reached = _Point(point.risk, point.position + solved.x)
        foretold = float(solved.x @ (solved.rest - point.gradient)) / 2
        if foretold <= rounding * abs(point.loss):
            if not reached.norm < point.norm:
                break
            point = reached
            continue
        gain = (point.loss - reached.loss) / foretold
        if not gain > 0.25:
            radius = float(solved.x.norm()) / 4
        elif gain > 0.75 and solved.at_edge:
            radius *= 2
        if gain > 1e-4:
            point = reached
    return point, done
