"""Rises of the loss in a ball against closed forms, and what is said where nothing was measured."""

import json
import math

import pytest
import scipy.stats
import torch
from curvature import OBJECTIVE, uneven
from torch import nn

from gasam import asam, ga_sam
from gasam.analysis.attack import attack, plain
from gasam.analysis.objective import Objective, plain_value
from gasam.analysis.sharpness import estimate, sharpness
from problems import network
from tolerances import EXACT, error


class Point(nn.Module):
    def __init__(self, values) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values, dtype=torch.float64))


def quadratic(hessian, slope):
    """A batch (c, rows) has `rows` examples of loss c (w.H w / 2 + g.w)."""

    def forward(model, batch):
        return batch[0] * (model.w @ hessian @ model.w / 2 + slope @ model.w)

    return Objective(forward, lambda loss, batch: loss.expand(batch[1]))


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


SPD = matrix([4.0, 1, 0], [1, 2, 0.5], [0, 0.5, 1])
FLAT = torch.zeros(3, dtype=torch.float64)


def test_worst_rise_of_one_step_is_closed_form():
    """From 0 with slope g the step is epsilon g / |g|: a rise of epsilon |g| + epsilon^2 g.H g / (2 |g|^2)."""
    slope, radius = matrix(1.0, -2, 2), 0.3
    found = sharpness(Point([0.0] * 3), quadratic(SPD, slope), [(1.0, 2), (3.0, 7)], plain(radius, steps=1), draws=0)
    rise = radius * 3 + radius**2 * (slope @ SPD @ slope).item() / 18
    assert error(found.worst.values, [rise, 3 * rise]) < EXACT
    assert found.worst.mean == pytest.approx(2 * rise)  # of batches, whatever their sizes
    assert found.average is None


def test_average_rise_over_the_sphere_is_the_trace():
    """Over |a|_2 = r without slope: mean r^2 tr(H) / (2 n); the deviation of a.H a for unit a is known as well."""
    radius, draws, n = 0.2, 800, 3
    found = sharpness(Point([0.0] * 3), quadratic(SPD, FLAT), [(1.0, 1)], plain(radius), draws=draws)
    variance = 2 * (n * (SPD @ SPD).trace() - SPD.trace() ** 2) / (n**2 * (n + 2))
    expected = radius**2 * SPD.trace() / (2 * n)
    assert abs(found.average.mean - expected) < 5 * radius**2 / 2 * math.sqrt(variance / draws)
    assert found.worst.mean == 0  # no gradient, no walk
    objective = quadratic(-2 * torch.eye(3).double(), FLAT)  # a fall is a rise below zero
    found = sharpness(Point([0.0] * 3), objective, [(1.0, 1)], plain(radius), draws=2)
    assert found.average.mean == pytest.approx(-(radius**2), rel=EXACT)


@pytest.mark.parametrize("norm", [2.0, 3.0])
def test_random_points_are_in_the_scaled_ball(norm):
    """L = sum |(w - w_0) / w_0|^p is epsilon^p on the surface of |T^-1 a|_p <= epsilon with T = |w_0|."""
    home = matrix(3.0, -0.1, 20.0)
    objective = Objective(lambda m, b: ((m.w - home) / home).abs().pow(norm).sum(), lambda loss, b: loss.reshape(1))
    found = sharpness(Point(home.tolist()), objective, [0, 1], asam(0.3, norm=norm), draws=3)
    assert error(found.average.values, [0.3**norm] * 2) < EXACT


def test_worst_is_the_attack_from_home_batch_by_batch():
    model = network()
    for perturbation in (plain(0.3, steps=4), ga_sam(0.1, steps=3), asam(0.5)):
        found = sharpness(model, OBJECTIVE, uneven(), perturbation, draws=2)
        expected = [attack(model, OBJECTIVE, [one], perturbation, restarts=0) for one in uneven()]
        assert error(found.worst.values, [one.rise for one in expected]) < EXACT
        assert error(found.clean.values, [one.clean_loss for one in expected]) < EXACT


def test_draws_are_the_seeds_and_differ_between_batches():
    batches = [uneven()[0]] * 2
    same, again, other = (sharpness(network(), OBJECTIVE, batches, plain(0.3), seed=n).average for n in (1, 1, 2))
    assert same == again != other
    assert same.values[0] != same.values[1]


@pytest.mark.parametrize("count", [2, 30])
def test_interval_is_students(count):
    values = torch.randn(count, dtype=torch.float64).tolist()
    expected = scipy.stats.t.interval(0.95, count - 1, loc=sum(values) / count, scale=scipy.stats.sem(values, ddof=1))
    assert estimate(values).interval == pytest.approx(expected, rel=1e-9)
    assert estimate(values).mean == pytest.approx(sum(values) / count)
    assert estimate(values[:1]).interval is None
    assert estimate([1.5, 1.5]).interval == (1.5, 1.5)


def test_loss_that_overflows_is_an_infinite_rise():
    """L = -log(1 - w) around 0: the walk to w = 2 finds NaN."""
    objective = Objective(lambda m, b: -torch.log(1 - m.w).sum(), lambda loss, b: loss.reshape(1))
    found = sharpness(Point([0.0]), objective, [0, 1], plain(2.0), draws=8)
    assert found.worst.mean == found.average.mean == math.inf
    assert found.worst.interval is None
    record = json.loads(json.dumps(plain_value(found), allow_nan=False))
    assert record["worst"] == {"mean": "inf", "interval": None, "values": ["inf", "inf"]}
