"""Sharpness: the largest rise of the loss along a walk in a ball around the weights, and the mean rise in the ball."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gasam.analysis.attack import Evaluate, Offset, losses_of, random_start
from gasam.analysis.objective import (
    Batches,
    Named,
    Objective,
    Watch,
    back_propagate,
    check_whole,
    each,
    examined,
    propagate,
)
from gasam.passes import Pass
from gasam.perturbation import Perturbation, check_perturbation
from gasam.walk import Start


@dataclass(frozen=True)
class Estimate:
    """A mean over batches with Student's 95% confidence interval; None for one batch, or if a value is not finite."""

    mean: float
    interval: tuple[float, float] | None
    values: tuple[float, ...]  # of each batch


@dataclass(frozen=True)
class Sharpness:
    """The result of `sharpness`: rises of the loss L_B of a batch in the ball |T^-1 a|_p <= epsilon.

    T and the gradients are those of each batch. A loss that is infinite or NaN counts as an infinite rise.

    Args:
        clean: L_B(w).
        worst: max_k L_B(w + a_k) - L_B(w) along the walk. At least 0, because a_0 = 0.
        average: Mean of L_B(w + a) - L_B(w) over random points a; None without draws.
    """

    clean: Estimate
    worst: Estimate
    average: Estimate | None


def sharpness(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    perturbation: Perturbation,
    *,
    draws: int = 8,
    seed: int = 0,
    watch: Watch | None = None,
) -> Sharpness:
    """Measure the sharpness of each batch, as in training, and average over batches with equal weights.

    The random points lie on the surface of the ball, or uniformly in the box for p = inf, and differ between batches.
    If the gradient is zero, the walk does not move, and only `average` measures the curvature.

    Args:
        perturbation: The ball and the number of ascent steps, for example `plain(0.05)`.
        draws: Random points per batch, for `average`.
        seed: Seed of the random points.
        watch: Called with the number of batches that are done, and with their total.
    """
    check_perturbation(perturbation)
    check_whole("draws", draws, 0)
    start = random_start(perturbation.norm, seed)
    total = sum(1 for _ in batches) if watch is not None else 0
    clean, worst, average = list[float](), list[float](), list[float]()
    with examined(model, batches) as weights:
        for done, batch in enumerate(each(batches), start=1):
            home, at_random, along_walk = _rises(model, objective, batch, weights, perturbation, start, draws)
            clean.append(home)
            worst.append(max(along_walk))
            if draws:
                average.append(sum(at_random) / draws)
            if watch is not None:
                watch(done, total)
    return Sharpness(estimate(clean), estimate(worst), estimate(average) if draws else None)


def estimate(values: Sequence[float]) -> Estimate:
    """mean +- t s / sqrt(n), with Student's t of n - 1 degrees of freedom."""
    mean = sum(values) / len(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Estimate(mean, None, tuple(values))
    from scipy import stats  # type: ignore[import-untyped]

    reach = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Estimate(mean, (mean - reach, mean + reach), tuple(values))


def _rises(
    model: nn.Module,
    objective: Objective,
    batch: Any,
    weights: Named,
    perturbation: Perturbation,
    start: Start,
    draws: int,
) -> tuple[float, list[float], list[float]]:
    """The loss of one batch, its rises at random points and its rises along the walk.

    All walks share the gradient of the clean pass. Random points are measured first, because they leave this gradient
    in `.grad`.
    """
    home = back_propagate(model, objective, [batch])

    def evaluate_loss(k: int, _: Offset) -> Pass | None:
        if k > 1:
            return None
        return Pass(home.loss.new_tensor(propagate(model, objective, [batch]))) if k else home

    def evaluate_gradient(k: int, _: Offset) -> Pass:
        return back_propagate(model, objective, [batch]) if k else home

    def rises(evaluate: Evaluate, start: Start | None) -> list[float]:
        losses = losses_of(weights, evaluate, perturbation, start)
        return [loss - losses[0] if math.isfinite(loss) else math.inf for loss in losses]

    at_random = [rises(evaluate_loss, start)[1] for _ in range(draws)]
    return float(home.loss), at_random, rises(evaluate_gradient, None)
