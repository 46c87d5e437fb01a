"""What corruption leaves of a metric: the points of a curve, the search for its radii, and where half is lost."""

import json
import math
from dataclasses import replace

import pytest
import torch
from curvature import OBJECTIVE, uneven
from torch import nn

from gasam.analysis.attack import attack, plain
from gasam.analysis.corruption import applied, random_corruption
from gasam.analysis.objective import Objective, mean_loss, plain_value
from gasam.analysis.robustness import Curve, HalfRadius, Point, half_radius, robustness
from problems import network


def perplexity(model) -> float:
    return math.exp(mean_loss(model, OBJECTIVE, uneven()))


def curve(*pairs, clean=10.0, higher=True):
    """Points of (radius, metric)."""
    return Curve(higher, 0.0, clean, tuple(Point(r, 0.0, m, None, None) for r, m in pairs))


def test_points_are_the_attack_and_the_random_corruption():
    model = network()
    found = robustness(
        model, OBJECTIVE, uneven(), perplexity, [0.2, 0.05], higher_is_better=False, steps=3, draws=2, seed=7
    )
    assert [point.radius for point in found.points] == [0.05, 0.2]
    assert found.clean_metric == perplexity(model)
    assert found.clean_loss == mean_loss(model, OBJECTIVE, uneven())
    for point in found.points:
        worst = attack(model, OBJECTIVE, uneven(), plain(point.radius, 2.0, 3), seed=7)
        assert point.loss == worst.loss
        assert point.metric == pytest.approx(math.exp(worst.loss), rel=1e-12)
        metrics = []
        for seed in (7, 8):
            with applied(model, random_corruption(model, point.radius, 2.0, seed=seed)):
                metrics.append(perplexity(model))
        assert point.random_metric == pytest.approx(sum(metrics) / 2, rel=1e-12)
        assert point.random_loss < point.loss


def test_share_is_of_what_lies_above_the_floor():
    found = replace(curve((1.0, 80.0), (2.0, 60.0), (4.0, 50.0), clean=90.0), floor=50.0)
    assert found.kept(70.0) == pytest.approx(0.5)
    assert [found.collapsed(point) for point in found.points] == [False, False, True]
    half = half_radius(found)
    assert half.radius == pytest.approx(2**0.5)  # 70 lies half-way between 80 and 60
    assert math.isnan(replace(found, floor=90.0).kept(70.0))


def test_metric_is_called_in_eval_mode_without_gradients_and_may_change_the_mode():
    model = network()

    def metric(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        model.train()
        return torch.tensor(0.5)

    found = robustness(model, OBJECTIVE, uneven(), metric, [0.1], higher_is_better=True, steps=1, draws=2)
    assert found.points[0].metric == 0.5
    assert model.training


class Slope(nn.Module):
    """L(w) = 3 w_0 + 4 w_1 around |w| = 1: an attack of radius r goes to 5 r more."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.6, 0.8], dtype=torch.float64))


SLOPE = Objective(lambda m, b: 3 * m.w[0] + 4 * m.w[1], lambda loss, b: loss.reshape(1))


def share_kept(scale: float):
    """1 at home, falling by 1 over a radius of `scale`; NaN when all is lost."""

    def metric(model) -> float:
        left = 1 - (float(SLOPE(model, 0)) - 5) / 5 / scale
        return left if left > 0 else math.nan

    return metric


def search(scale=0.0165, metric=None, **options):
    options |= {"higher_is_better": True, "steps": 1, "restarts": 0, "draws": 0}
    return robustness(Slope(), SLOPE, [0], metric or share_kept(scale), None, **options)


def radii(found: Curve) -> list[float]:
    return [point.radius for point in found.points]


def test_search_goes_up_to_collapse():
    """From about 1e-3 |w| by factors of two to the first that keeps less than a tenth: 2^-6 of 0.0165 is 5%."""
    found = search()
    assert radii(found) == [2.0**i for i in (-10, -9, -8, -7, -6)]
    assert [found.collapsed(point) for point in found.points] == [False] * 4 + [True]
    assert search(0.0150).points[-1].radius == 2.0**-6
    assert math.isnan(search(0.0150).points[-1].metric)


def test_search_goes_down_to_where_half_is_kept():
    found = search(1e-4)
    assert radii(found) == [2.0**i for i in (-15, -14, -13, -12, -11, -10)]
    assert found.kept(found.points[0].metric) > 0.5
    assert half_radius(found).low == found.points[0].radius


def test_search_has_an_end_both_ways():
    up, down = search(1e9), search(1e-12)
    assert radii(up)[-1] == 1.0
    assert 1e-7 <= radii(down)[0] < 2e-7
    assert "beyond" in half_radius(up).reason
    assert "already" in half_radius(down).reason


def test_a_search_continues_after_an_interrupt_with_the_points_it_kept():
    kept = []

    def metric(model):
        if len(kept) == 2:
            raise KeyboardInterrupt
        return share_kept(0.0165)(model)

    with pytest.raises(KeyboardInterrupt):
        search(metric=metric, keep=kept.append)
    known = [Point.from_json(json.loads(json.dumps(plain_value(point), allow_nan=False))) for point in kept]
    new, full = [], search()
    assert search(known=known, keep=new.append) == full
    assert new == list(full.points[2:])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (curve((0.1, 8.0), (0.4, 2.0)), 0.2),  # 5 is in the middle, and so is log radius
        (curve((0.1, 9.0), (1.0, 5.0), (10.0, 0.0)), 1.0),
        (curve((10.0, 4.0), (1.0, 6.0)), 10**0.5),  # in any order
        (curve((1.0, 8.0), (4.0, 2.0), (16.0, 8.0), (64.0, 2.0)), 2.0),  # the first of two crossings
        (curve((1.0, 10.0), (1e4, 160.0), higher=False), 10.0),  # a perplexity doubles
    ],
)
def test_half_radius(given, expected):
    found = half_radius(given)
    assert found.radius == pytest.approx(expected)
    assert found.low < found.radius <= found.high
    assert found.reason is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (curve((0.1, 9.0), (0.2, 5.1)), HalfRadius(None, 0.2, None, "51% of the metric is left at the largest")),
        (curve((0.1, 4.0), (0.2, 1.0)), HalfRadius(None, None, 0.1, "lost at the smallest radius 0.1")),
        (curve(), HalfRadius(None, None, None, "no points")),
        (curve((0.1, 5.0), clean=0.0), HalfRadius(None, None, None, "clean metric is 0")),
        (curve((0.1, 5.0), clean=math.nan), HalfRadius(None, None, None, "clean metric is nan")),
    ],
)
def test_half_radius_says_why_there_is_none(given, expected):
    found = half_radius(given)
    assert expected.reason in found.reason
    assert replace(found, reason=None) == replace(expected, reason=None)


@pytest.mark.parametrize(
    "given",
    [
        curve((0.1, 9.0), (0.4, math.nan), (0.8, 9.0)),
        curve((0.1, 11.0), (0.4, math.inf), higher=False),
        curve((0.1, 11.0), (0.4, math.nan), higher=False),
        curve((0.1, 0.0), (0.4, 40.0), higher=False),
    ],
)
def test_half_radius_beside_a_broken_model_is_the_middle_and_says_so(given):
    found = half_radius(given)
    assert found.radius == pytest.approx(0.2)
    assert "not finite" in found.reason


@pytest.mark.parametrize(("higher", "metric", "collapsed"), [
    (True, 1.0, False), (True, 0.99, True), (True, -3.0, True), (True, math.nan, True),
    (False, 100.0, False), (False, 101.0, True), (False, math.inf, True), (False, math.nan, True), (False, 0.0, False),
])  # fmt: skip
def test_collapse_is_a_tenth_or_tenfold_or_not_a_number(higher, metric, collapsed):
    assert curve(higher=higher).collapsed(Point(1.0, 0.0, metric, None, None)) == collapsed
