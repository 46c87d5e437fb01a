"""How much the loss of a batch rises in a ball around the weights: at worst along the walk, and on average."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from torch import nn

from gasam.analysis.attack import check_home, random_start
from gasam.analysis.objective import Batches, Objective, back_propagate, each, examined, propagate
from gasam.analysis.values import Result, Watch, check_number, check_whole
from gasam.ball import Start
from gasam.parameters import read, weights_of
from gasam.passes import Pass
from gasam.perturbation import Perturbation, check_perturbation
from gasam.walk import climb
from gasam.weights import Weights


@dataclass(frozen=True)
class Estimate(Result):
    """A mean over batches with Student's interval; None for one batch, or where a value is not finite."""

    mean: float
    interval: tuple[float, float] | None
    values: tuple[float, ...]  # of each batch


@dataclass(frozen=True)
class Sharpness(Result):
    """Rises of the loss in the ball |T^-1 a|_p <= epsilon, T and the gradients of each batch for itself.

    An infinite or undefined loss on the way is an infinite rise, not one that is left out.
    """

    perturbation: Perturbation
    draws: int
    confidence: float
    clean: Estimate  # L_B(w)
    worst: Estimate  # max_k L_B(w + a_k) - L_B(w) along the walk; at least 0, the rise at home
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

    The random points lie on the surface of the same ball, for p = inf uniformly in the box, and are other ones for
    each batch. A walk begins at home: where the gradient is zero it stays there, and only `average` sees curvature.
    """
    check_perturbation(perturbation)
    check_whole("draws", draws, 0)
    check_whole("seed", seed, 0)
    check_number("confidence", confidence, "> 0 and < 1", lambda value: 0 < value < 1)
    start = random_start(perturbation.norm, seed)
    total = sum(1 for _ in batches) if watch is not None else 0
    clean, worst, average = [], [], []
    with examined(model, batches) as named:
        weights = weights_of(read(named.items()), perturbation)
        for done, batch in enumerate(each(batches), start=1):
            rises = _Rises(model, objective, [batch], perturbation, weights)
            clean.append(float(rises.clean.loss))
            if draws:
                average.append(_mean([rises.at_random(start) for _ in range(draws)]))
            worst.append(rises.along_the_walk())
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
    mean, count = _mean(values), len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return Estimate(mean, None, tuple(values))
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    reach = float(stdtrit(count - 1, (1 + confidence) / 2)) * deviation / math.sqrt(count)
    return Estimate(mean, (mean - reach, mean + reach), tuple(values))


class _Rises:
    """One batch around home, whose gradient is computed once: random points need but their losses."""

    def __init__(
        self, model: nn.Module, objective: Objective, batch: Batches, perturbation: Perturbation, weights: Weights
    ) -> None:
        self.model, self.objective, self.batch = model, objective, batch
        self.perturbation, self.weights = perturbation, weights
        self.clean = back_propagate(model, objective, batch)

    def at_random(self, start: Start) -> float:
        """At a random point of the ball, scaled as the walk is. It leaves the gradient of home in `.grad`."""

        def evaluate(k: int) -> Pass:
            if k == 0:
                return self.clean
            return Pass(self.clean.loss.new_tensor(propagate(self.model, self.objective, self.batch)))

        return self._visited(evaluate, start, visits=2)[1]

    def along_the_walk(self) -> float:
        """The last to be asked: it leaves another gradient in `.grad`."""

        def evaluate(k: int) -> Pass:
            return self.clean if k == 0 else back_propagate(self.model, self.objective, self.batch)

        return max(self._visited(evaluate, None, visits=self.perturbation.steps + 1))

    def _visited(self, evaluate: Callable[[int], Pass], start: Start | None, visits: int) -> list[float]:
        """The rise at each visit, up to one that is not finite."""
        home, rises = float(self.clean.loss), list[float]()
        with closing(climb(self.weights, evaluate, self.perturbation, start)) as walk:  # type: ignore[type-var]
            for visit in islice(walk, visits):
                check_home(visit)
                loss = float(visit.loss)
                rises.append(loss - home if math.isfinite(loss) else math.inf)
                if rises[-1] == math.inf:
                    break
        return rises


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
