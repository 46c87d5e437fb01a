"""A metric over the radius of the weights' corruption: its records, and the radius that costs half of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gasam.analysis.values import Result

COLLAPSED = 0.1  # of the clean metric kept

Kind = Literal["adversarial", "random"]


@dataclass(frozen=True)
class Point(Result):
    """What corruption of one radius does. Random ones are means over the draws, None where none were asked for."""

    radius: float
    loss: float  # the highest that the attack found
    metric: float  # there; NaN where the model is so broken that its metric is
    random_loss: float | None
    random_metric: float | None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Point:
        values = {name: None if value is None else float(value) for name, value in record.items()}
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Curve(Result):
    """A metric over the radius; the points in its order. `floor` is what a model without any knowledge would have."""

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

        NaN where either is, or where the clean metric is not above the floor, or 0, and has no share.
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
    reason: str | None  # why there is no radius, or but a rough one


def half_radius(curve: Curve, kind: Kind = "adversarial") -> HalfRadius:
    """The radius at which the metric is half the clean one, twice where lower is better: the first, if several.

    Between two points the metric, or its logarithm where lower is better, is taken as straight over log radius. Where
    one of them is not finite, as of a broken model, the answer is their middle in log radius, and `reason` says so.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {kind!r}")
    if math.isnan(curve.kept(1.0)):
        return HalfRadius(None, None, None, f"the clean metric is {curve.clean_metric:g}: it has no half")
    last: tuple[float, float] | None = None
    for point in sorted(curve.points, key=lambda point: point.radius):
        metric = point.metric if kind == "adversarial" else point.random_metric
        if metric is None:
            return HalfRadius(None, None, None, "no random corruption was measured: ask for draws")
        kept = curve.kept(metric)
        if not kept > 0.5:
            return _crossing(curve, last, (point.radius, kept))
        last = point.radius, kept
    if last is None:
        return HalfRadius(None, None, None, "the curve has no points")
    share = f"{last[1]:.0%} of the metric is left at the largest radius {last[0]:g}"
    return HalfRadius(None, last[0], None, f"{share}: half is lost beyond it")


def _crossing(curve: Curve, before: tuple[float, float] | None, behind: tuple[float, float]) -> HalfRadius:
    """Between (radius, kept) with more than half and one with no more."""
    high, after = behind
    if before is None:
        return HalfRadius(None, None, high, f"half is lost at the smallest radius {high:g} already")
    low, ahead = before
    if math.isfinite(ahead) and math.isfinite(after) and curve.higher_is_better:
        part = (ahead - 0.5) / (ahead - after)
    elif math.isfinite(ahead) and after > 0:
        part = math.log(ahead / 0.5) / math.log(ahead / after)
    else:
        reason = f"between radius {low:g} and {high:g} there is nothing to interpolate: one metric is not finite"
        return HalfRadius(math.sqrt(low * high), low, high, reason)
    return HalfRadius(low ** (1 - part) * high**part, low, high, None)
