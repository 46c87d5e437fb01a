"""How much the loss of a batch rises in a ball around the weights: at worst along the walk, and on average."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import nn

from gasam.analysis.attack import random_start, visits_of
from gasam.analysis.checks import check_number, check_whole
from gasam.analysis.objective import Batches, Objective, Watch, back_propagate, each, examined, propagate
from gasam.analysis.results import Result
from gasam.ball import Start
from gasam.parameters import read, weights_of
from gasam.passes import Pass
from gasam.perturbation import Perturbation, check_perturbation
from gasam.weights import Weights


@dataclass(frozen=True)
class Estimate(Result):
    """A mean over batches with Student's interval; None for one batch, or where a value is not finite."""

    mean: float
    interval: tuple[float, float] | None
    values: tuple[float, ...]  # of each batch


@dataclass(frozen=True)
class Sharpness(Result):
    """Rises of the loss in the ball |T^-1 a|_p <= epsilon, with T and the gradients of each batch.

    An infinite or undefined loss on the way counts as an infinite rise.
    """

    perturbation: Perturbation
    draws: int
    confidence: float
    clean: Estimate  # L_B(w)
    worst: Estimate  # max_k L_B(w + a_k) - L_B(w) along the walk; at least 0, because a_0 = 0
    average: Estimate | None  # mean of L_B(w + a) - L_B(w) over random points a; None for no draws


def sharpness(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    perturbation: Perturbation,
    *,
    draws: int = 8,
    confidence: float = 0.95,
    seed: int = 0,
    watch: Watch | None = None,
) -> Sharpness:
    """Measure each batch, as training sees them, and take the mean over batches, whatever their sizes.

    The random points lie on the surface of the same ball, for p = inf uniformly in the box, and differ between
    batches. A walk begins at the weights: where the gradient is zero it stays there, and only `average` sees curvature.
    """
    check_perturbation(perturbation)
    check_whole("draws", draws, 0)
    check_whole("seed", seed, 0)
    check_number("confidence", confidence, "> 0 and < 1", lambda value: 0 < value < 1)
    start = random_start(perturbation.norm, seed)
    total = sum(1 for _ in batches) if watch is not None else 0
    clean, worst, average = list[float](), list[float](), list[float]()
    with examined(model, batches) as named:
        weights = weights_of(read(named.items()), perturbation)
        for done, batch in enumerate(each(batches), start=1):
            home, at_random, along_walk = _rises(model, objective, batch, weights, perturbation, start, draws)
            clean.append(home)
            worst.append(max(along_walk))
            if draws:
                average.append(sum(at_random) / draws)
            if watch is not None:
                watch(done, total)
    return Sharpness(
        perturbation,
        draws,
        confidence,
        estimate(clean, confidence),
        estimate(worst, confidence),
        estimate(average, confidence) if draws else None,
    )


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """mean +- t s / sqrt(n), with Student's t of n - 1 degrees of freedom."""
    mean = sum(values) / len(values)
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return Estimate(mean, None, tuple(values))
    from scipy import stats  # type: ignore[import-untyped]

    reach = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1) * stats.sem(values))
    return Estimate(mean, (mean - reach, mean + reach), tuple(values))


def _rises(
    model: nn.Module,
    objective: Objective,
    batch: Any,
    weights: Weights,
    perturbation: Perturbation,
    start: Start,
    draws: int,
) -> tuple[float, list[float], list[float]]:
    """The loss of one batch, its rises at random points and its rises along the walk.

    All walks share the gradient at the model's weights. Random points need no other one and leave it in `.grad`, so
    they come first.
    """
    home = back_propagate(model, objective, [batch])

    def evaluate_loss(k: int) -> Pass:
        return Pass(home.loss.new_tensor(propagate(model, objective, [batch]))) if k else home

    def evaluate_gradient(k: int) -> Pass:
        return back_propagate(model, objective, [batch]) if k else home

    def rises(evaluate: Callable[[int], Pass], start: Start | None, visits: int | None) -> list[float]:
        with closing(visits_of(weights, evaluate, perturbation, start)) as walk:
            losses = [float(visit.loss) for visit in islice(walk, visits)]
        return [loss - losses[0] if math.isfinite(loss) else math.inf for loss in losses]

    at_random = [rises(evaluate_loss, start, 2)[1] for _ in range(draws)]
    return float(home.loss), at_random, rises(evaluate_gradient, None, None)
