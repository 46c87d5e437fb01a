"""How much of a metric is left when the weights are corrupted, radius by radius: Table 4, and on to collapse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gasam.analysis.attack import attack, passes_of, plain
from gasam.analysis.checks import check_choice, check_number, check_radius, check_whole
from gasam.analysis.corruption import applied, length, random_corruption
from gasam.analysis.objective import Batches, Objective, Watch, examined, propagate
from gasam.analysis.results import Result

TABLE4: dict[float, tuple[float, ...]] = {2.0: (0.05, 0.1, 0.2), math.inf: (1e-4, 2e-4, 5e-4)}
START, SMALLEST, LARGEST = 1e-3, 1e-7, 1.0  # radii of the search, relative to the weights
COLLAPSED = 0.1  # of the clean metric kept

Kind = Literal["adversarial", "random"]
Metric = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Point(Result):
    """What corruption of one radius does. The random ones are means over the draws, None for no draws."""

    radius: float
    loss: float  # the highest that the attack found
    metric: float  # at that point; NaN where the model is so broken that its metric is
    random_loss: float | None
    random_metric: float | None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Point:
        values = {name: None if value is None else float(value) for name, value in record.items()}
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Curve(Result):
    """A metric over the radius, with points by growing radius. `floor` is the metric of a model that knows nothing."""

    norm: float
    higher_is_better: bool
    steps: int
    restarts: int
    draws: int
    clean_loss: float
    clean_metric: float
    points: tuple[Point, ...]
    floor: float = 0.0

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Curve:
        points = tuple(map(Point.from_json, record["points"]))
        numbers = {name: float(record[name]) for name in ("norm", "clean_loss", "clean_metric", "floor")}
        return cls(**{**record, **numbers, "points": points})

    def kept(self, metric: float) -> float:
        """The share of the clean metric: (metric - floor) / (clean - floor), or clean / metric where lower is better.

        NaN where either is NaN, and where the clean metric is not finite or not above the floor (above 0 where lower is
        better).
        """
        least = self.floor if self.higher_is_better else 0.0
        if not (math.isfinite(self.clean_metric) and self.clean_metric > least):
            return math.nan
        if self.higher_is_better:
            return (metric - least) / (self.clean_metric - least)
        return math.inf if metric <= 0 else self.clean_metric / metric

    def collapsed(self, point: Point) -> bool:
        """Less than a tenth of the metric is kept (a perplexity is tenfold), or it is not even a number."""
        return not self.kept(point.metric) >= COLLAPSED


@dataclass(frozen=True)
class HalfRadius(Result):
    """Where half the metric is lost: between the measured radii `low` and `high`, interpolated."""

    radius: float | None
    low: float | None  # the last radius with more than half, None if even the smallest has less
    high: float | None  # the first radius with no more than half, None if there is none
    reason: str | None  # why there is no radius, or only a rough one


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
    factor: float = 2.0,
    known: Iterable[Point] = (),
    seed: int = 0,
    watch: Watch | None = None,
    keep: Callable[[Point], None] | None = None,
) -> Curve:
    """Attack and corrupt at random at each radius, and take loss and `metric(model)` there, in eval mode, no gradients.

    With radii None they are searched among the powers of `factor`, so that two models are measured at the same ones.
    The search begins near the p-norm of an offset with entries +-c that has a thousandth of the weights' 2-norm,
    c = |w|_2 / (1000 sqrt(n)). It goes up until the adversarial metric has collapsed (`Curve.collapsed`) or the offset
    would be as long as the weights, and down while no more than half the metric is kept, to 1e-7 of the weights.

    Where higher is better, shares of the metric are of what lies above `floor`, for example the accuracy of guessing.

    `keep` is called with every point when it is measured; pass such points of the same options as `known`, and they are
    not measured again. `watch` counts the evaluations of one radius. Random directions are the same at every radius.
    """
    plain(1.0, norm, steps)  # says what is wrong with them before anything is measured
    for name, value in (("restarts", restarts), ("draws", draws), ("seed", seed)):
        check_whole(name, value, 0)
    check_number("factor", factor, "> 1", lambda value: value > 1)
    check_number("floor", floor)
    wanted = None if radii is None else _checked_radii(radii)
    found = {point.radius: point for point in known}
    with examined(model, batches) as weights:
        loss = propagate(model, objective, batches)
        clean = Curve(norm, higher_is_better, steps, restarts, draws, loss, _judged(model, metric), (), floor)

        def measure(radius: float) -> Point:
            for at, point in found.items():
                if math.isclose(at, radius, rel_tol=1e-6):
                    return point
            found[radius] = _measured(model, objective, batches, metric, clean, radius, seed, watch)
            if keep is not None:
                keep(found[radius])
            return found[radius]

        if wanted is None:
            n = sum(weight.numel() for weight in weights.values())
            # The p-norm of an offset with entries +-c that is as long as the weights.
            unit = length(weights.values(), 2.0) * n ** (1 / norm - 0.5)
            _search(clean, measure, unit, factor)
        else:
            for radius in wanted:
                measure(radius)
    return replace(clean, points=tuple(found[radius] for radius in sorted(found)))


def half_radius(curve: Curve, kind: Kind = "adversarial") -> HalfRadius:
    """The first radius at which the metric is half the clean one, or twice where lower is better.

    Between two points the metric, or its logarithm where lower is better, is taken as straight over log radius. Where
    one of them is not finite, as of a broken model, the answer is their middle in log radius, and `reason` says so.
    """
    check_choice("kind", kind, get_args(Kind))
    if math.isnan(curve.kept(1.0)):
        return HalfRadius(None, None, None, f"the clean metric is {curve.clean_metric:g}: it has no half")
    low, before = None, math.nan
    for point in sorted(curve.points, key=lambda point: point.radius):
        metric = point.metric if kind == "adversarial" else point.random_metric
        if metric is None:
            return HalfRadius(None, None, None, "no random corruption was measured: ask for draws")
        high, after = point.radius, curve.kept(metric)
        if not after > 0.5:
            if low is None:
                return HalfRadius(None, None, high, f"half is lost at the smallest radius {high:g} already")
            return _between(curve, low, before, high, after)
        low, before = high, after
    if low is None:
        return HalfRadius(None, None, None, "the curve has no points")
    reason = f"{before:.0%} of the metric is left at the largest radius {low:g}: half is lost beyond it"
    return HalfRadius(None, low, None, reason)


def _between(curve: Curve, low: float, before: float, high: float, after: float) -> HalfRadius:
    """`before` is the share kept at radius `low`, more than half, and `after` that at `high`, no more than half."""
    if math.isfinite(before) and math.isfinite(after) and curve.higher_is_better:
        part = (before - 0.5) / (before - after)
    elif math.isfinite(before) and after > 0:
        part = math.log(before / 0.5) / math.log(before / after)
    else:
        reason = f"between radius {low:g} and {high:g} there is nothing to interpolate: one metric is not finite"
        return HalfRadius(math.sqrt(low * high), low, high, reason)
    return HalfRadius(low ** (1 - part) * high**part, low, high, None)


def _measured(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    metric: Metric,
    clean: Curve,
    radius: float,
    seed: int,
    watch: Watch | None,
) -> Point:
    ball = plain(radius, clean.norm, clean.steps)
    passes = passes_of(ball, clean.restarts)
    total = passes + 1 + 2 * clean.draws

    def count(done: int, of: int = total) -> None:
        if watch is not None:
            watch(done, total)

    found = attack(model, objective, batches, ball, restarts=clean.restarts, seed=seed, watch=count)
    with found.applied(model):
        attacked = _judged(model, metric)
    count(passes + 1)
    if not clean.draws:
        return Point(radius, found.loss, attacked, None, None)
    losses, metrics = list[float](), list[float]()
    for draw in range(clean.draws):
        with applied(model, random_corruption(model, radius, clean.norm, seed=seed + draw)):
            losses.append(propagate(model, objective, batches))
            metrics.append(_judged(model, metric))
        count(passes + 3 + 2 * draw)
    return Point(radius, found.loss, attacked, sum(losses) / clean.draws, sum(metrics) / clean.draws)


@torch.no_grad()
def _judged(model: nn.Module, metric: Metric) -> float:
    value = metric(model)
    model.eval()  # a metric may have left it in another mode
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"metric must return a number, got {type(value).__name__}: return float(..) of it")
    return float(value)


def _search(clean: Curve, measure: Callable[[float], Point], unit: float, factor: float) -> None:
    """Measure up to collapse, and down to where more than half is kept; `unit` is the radius of the weights' size."""
    if math.isnan(clean.kept(1.0)):
        raise ValueError(
            f"radii must be given where the clean metric is {clean.clean_metric:g}: a search asks what share is kept"
        )
    if not unit > 0:
        raise ValueError("radii must be given for weights that are all zero: a search begins at a share of their norm")

    def powers(radius: float, by: float) -> Iterator[float]:
        while SMALLEST * unit <= radius * (1 + 1e-9) and radius <= LARGEST * unit * (1 + 1e-9):
            yield radius
            radius *= by

    first = factor ** round(math.log(START * unit, factor))
    for radius in powers(first, factor):
        if clean.collapsed(measure(radius)):
            break
    for radius in powers(first, 1 / factor):
        if clean.kept(measure(radius).metric) > 0.5:
            break


def _checked_radii(radii: Iterable[float]) -> list[float]:
    if not isinstance(radii, Iterable):
        raise TypeError(f"radii must be a list of numbers > 0, or None to search for them, got {radii!r}")
    wanted = list(radii)
    if not wanted:
        raise ValueError("radii is empty: give at least one radius > 0, or None to search for them")
    for radius in wanted:
        check_radius(radius, "a radius of radii")
    return wanted
