"""A metric under corruption of the weights at several radii, as in Table 4 of the paper, up to collapse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from gasam.analysis.attack import attack, plain
from gasam.analysis.corruption import applied, length, random_corruption
from gasam.analysis.objective import Batches, Objective, Watch, check_number, check_whole, examined, propagate

TABLE4: dict[float, tuple[float, ...]] = {2.0: (0.05, 0.1, 0.2), math.inf: (1e-4, 2e-4, 5e-4)}
START, SMALLEST, LARGEST = 1e-3, 1e-7, 1.0  # radii of the search, relative to the size of the weights
COLLAPSED = 0.1  # share of the clean metric below which a model has collapsed

Metric = Callable[[nn.Module], Any]
"""Returns a number, or a tensor with one number."""


@dataclass(frozen=True)
class Point:
    """Loss and metric under corruption of one radius.

    Args:
        radius: Norm of the offset.
        loss: The highest loss that the attack found.
        metric: The metric at this loss. It may be NaN.
        random_loss: Mean loss over the random draws; None without draws.
        random_metric: Mean metric over the random draws; None without draws.
    """

    radius: float
    loss: float
    metric: float
    random_loss: float | None
    random_metric: float | None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Point:
        values = {name: None if value is None else float(value) for name, value in record.items()}
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Curve:
    """The result of `robustness`: a metric as a function of the radius.

    Args:
        higher_is_better: Whether a higher metric is better.
        clean_loss: Loss of the model.
        clean_metric: Metric of the model.
        points: The measurements, in ascending order of the radius.
        floor: Metric of a model that has learnt nothing, for example the accuracy of guessing.
    """

    higher_is_better: bool
    clean_loss: float
    clean_metric: float
    points: tuple[Point, ...]
    floor: float = 0.0

    def kept(self, metric: float) -> float:
        """The share of the clean metric: (metric - floor) / (clean - floor), or clean / metric if lower is better.

        NaN if one of them is NaN, or if the clean metric is not finite or not above the floor (0 if lower is better).
        """
        least = self.floor if self.higher_is_better else 0.0
        if not (math.isfinite(self.clean_metric) and self.clean_metric > least):
            return math.nan
        if self.higher_is_better:
            return (metric - least) / (self.clean_metric - least)
        return math.inf if metric <= 0 else self.clean_metric / metric

    def collapsed(self, point: Point) -> bool:
        """Whether less than a tenth of the metric is kept (a perplexity has grown tenfold), or the metric is NaN."""
        return not self.kept(point.metric) >= COLLAPSED


@dataclass(frozen=True)
class HalfRadius:
    """The result of `half_radius`: the radius at which half of the metric is lost.

    Args:
        radius: The radius, interpolated between `low` and `high`; None if it is unknown.
        low: The last measured radius at which more than half is kept; None if there is none.
        high: The first measured radius at which at most half is kept; None if there is none.
        reason: Why there is no radius or only a rough one; None if the radius was interpolated.
    """

    radius: float | None
    low: float | None
    high: float | None
    reason: str | None


def robustness(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    metric: Metric,
    radii: Iterable[float] | None,
    norm: float = 2.0,
    *,
    higher_is_better: bool,
    floor: float = 0.0,
    steps: int = 10,
    restarts: int = 1,
    draws: int = 3,
    known: Iterable[Point] = (),
    seed: int = 0,
    watch: Watch | None = None,
    keep: Callable[[Point], None] | None = None,
) -> Curve:
    """Measure the loss and the metric under adversarial and random corruption at each radius, in eval mode.

    Without `radii`, powers of 2 are searched, so that different models are measured at the same radii. The
    search starts near the p-norm of an offset with entries +-c, c = |w|_2 / (1000 sqrt(n)), whose 2-norm is a
    thousandth of that of the weights. It goes up until the adversarial metric has collapsed (`Curve.collapsed`) or the
    offset is as long as the weights. It goes down to 1e-7 of the weights while at most half of the metric is kept.

    Args:
        metric: Computes the metric of a model. It runs without gradients.
        radii: Norms of the offsets; None searches for them.
        norm: p of the norm, > 1 or math.inf.
        higher_is_better: Whether a higher metric is better.
        floor: If higher is better, shares of the metric refer to the part above this value, for example the accuracy of
            guessing.
        steps: Ascent steps of each attack.
        restarts: Additional walks of each attack from random points.
        draws: Random offsets per radius. Their directions are the same at every radius.
        known: Points of an earlier call with the same options, which are not measured again.
        seed: Seed of the random points and directions.
        watch: Called with the number of passes of an attack that are done, and with their total.
        keep: Called with every new point as soon as it is measured, for example to save it.
    """
    plain(1.0, norm, steps)  # raises if an argument is invalid, before anything is measured
    check_whole("draws", draws, 0)
    check_number("floor", floor)
    found = {point.radius: point for point in known}

    def measure(radius: float) -> Point:
        if radius in found:
            return found[radius]
        ball = plain(radius, norm, steps)
        worst = attack(model, objective, batches, ball, restarts=restarts, seed=seed, watch=watch)
        with worst.applied(model):
            attacked = _judged(model, metric)
        losses, metrics = list[float](), list[float]()
        for draw in range(draws):
            with applied(model, random_corruption(model, radius, norm, seed=seed + draw)):
                losses.append(propagate(model, objective, batches))
                metrics.append(_judged(model, metric))
        means = [sum(values) / len(values) if values else None for values in (losses, metrics)]
        found[radius] = Point(radius, worst.loss, attacked, *means)
        if keep is not None:
            keep(found[radius])
        return found[radius]

    with examined(model, batches) as weights:
        clean_loss = propagate(model, objective, batches)
        clean = Curve(higher_is_better, clean_loss, _judged(model, metric), (), floor)
        if radii is None:
            n = sum(weight.numel() for weight in weights.values())
            # The p-norm of an offset with entries +-c that has the 2-norm of the weights.
            _search(clean, measure, length(weights.values(), 2.0) * n ** (1 / norm - 0.5))
        else:
            for radius in sorted(radii):
                measure(radius)
    return replace(clean, points=tuple(found[radius] for radius in sorted(found)))


def half_radius(curve: Curve) -> HalfRadius:
    """The first radius at which the metric is half of the clean one, or twice the clean one if lower is better.

    Between two points the attacked metric, or its logarithm if lower is better, is interpolated linearly over the
    logarithm of the radius. If one of the two metrics is not finite, the result is the geometric mean of the two radii,
    and `reason` says so.
    """
    if math.isnan(curve.kept(1.0)):
        return HalfRadius(None, None, None, f"the clean metric is {curve.clean_metric:g}, which can't be halved")
    low, before = None, math.nan
    for point in sorted(curve.points, key=lambda point: point.radius):
        high, after = point.radius, curve.kept(point.metric)
        if not after > 0.5:
            if low is None:
                return HalfRadius(None, None, high, f"half is already lost at the smallest radius {high:g}")
            return _between(curve, low, before, high, after)
        low, before = high, after
    if low is None:
        return HalfRadius(None, None, None, "the curve has no points")
    reason = f"{before:.0%} of the metric is left at the largest radius {low:g}, so half is lost beyond it"
    return HalfRadius(None, low, None, reason)


def _between(curve: Curve, low: float, before: float, high: float, after: float) -> HalfRadius:
    """Interpolate, where `before` is the share kept at radius `low` (> 0.5) and `after` that at `high` (<= 0.5)."""
    if math.isfinite(before) and math.isfinite(after) and curve.higher_is_better:
        part = (before - 0.5) / (before - after)
    elif math.isfinite(before) and after > 0:
        part = math.log(before / 0.5) / math.log(before / after)
    else:
        reason = f"can't interpolate between radius {low:g} and {high:g}, because one metric is not finite"
        return HalfRadius(math.sqrt(low * high), low, high, reason)
    return HalfRadius(low ** (1 - part) * high**part, low, high, None)


@torch.no_grad()
def _judged(model: nn.Module, metric: Metric) -> float:
    value = float(metric(model))
    model.eval()  # the metric may have changed the mode
    return value


def _search(clean: Curve, measure: Callable[[float], Point], unit: float) -> None:
    """Measure up to collapse, and down until more than half is kept; `unit` is the radius of the weights' size."""
    if math.isnan(clean.kept(1.0)):
        return  # there is nothing to lose, as `half_radius` says

    def powers(radius: float, by: float) -> Iterator[float]:
        while SMALLEST * unit <= radius * (1 + 1e-9) and radius <= LARGEST * unit * (1 + 1e-9):
            yield radius
            radius *= by

    first = 2.0 ** round(math.log2(START * unit))
    for radius in powers(first, 2.0):
        if clean.collapsed(measure(radius)):
            break
    for radius in powers(first, 0.5):
        if clean.kept(measure(radius).metric) > 0.5:
            break
