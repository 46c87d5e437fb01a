"""The parameter shift: found again, predicted by Theorem 2, and wrong arguments of all trials."""

import copy

import numpy as np
import pytest
import torch
from theory_problems import (
    CLASSIFIER,
    LOGISTIC,
    NETWORK_RIDGE,
    POINTS,
    RIDGE,
    Vector,
    clouds,
    logistic,
    logistic_problem,
    settled_network,
    tanh_network,
)
from torch import nn
from torch.utils.data import DataLoader

from gasam.analysis import Objective
from gasam.lab import theory
from gasam.lab.theory import Problem, settle, shift_trial, weighted
from gasam.lab.theory.bounds import spectrum_ends
from tolerances import EXACT, error


def test_measured_shift_is_the_difference_of_both_minima():
    problem = logistic_problem(0.9, tolerance=1e-12)
    found, home = shift_trial(problem), POINTS.newton(POINTS.p)
    assert error(problem.model.weight[0], home) < EXACT
    expected = POINTS.newton(POINTS.shifted(0.9)) - home
    assert found.stationary
    assert found.starts_at_minimum
    assert np.abs(found.delta["weight"][0].numpy() - expected).max() < EXACT
    assert abs(found.norm - np.linalg.norm(expected)) < EXACT


def test_error_of_theorem_2_falls_linearly_with_the_shift():
    sizes = [0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
    trials = [shift_trial(logistic_problem(size, tolerance=1e-12)) for size in sizes]
    assert all(trial.converged and trial.cosine > 0.99 for trial in trials)
    slope = np.polyfit(np.log(sizes), np.log([trial.relative_error for trial in trials]), 1)[0]
    assert 0.97 < slope < 1.03
    assert trials[-1].relative_error < 1e-3


def test_prediction_is_the_dense_solve_of_theorem_2():
    problem, size = logistic_problem(0.2), 0.2
    gradients, hessian = POINTS.derivatives(POINTS.p, problem.model.weight[0].detach().numpy())
    expected = -np.linalg.solve(hessian, (POINTS.p * size * POINTS.r) @ gradients)
    found = shift_trial(problem)
    predicted, delta = found.predicted["weight"][0], found.delta["weight"][0]
    assert error(predicted, expected) < 1e-9
    assert error(found.relative_error, (predicted - delta).norm() / delta.norm()) < EXACT
    assert error(found.cosine, predicted @ delta / predicted.norm() / delta.norm()) < EXACT


def test_two_data_sets_are_weights_over_both():
    """Two samples given apart, or as weights over one list of all: the same shifts, measured and predicted."""
    first, second = POINTS.batches
    weights = torch.cat([torch.ones(len(first[0])), torch.zeros(len(second[0]))])
    apart = Problem(logistic(), LOGISTIC, [first], [second], ridge=RIDGE)
    settle(apart)
    joined = Problem(apart.model, LOGISTIC, *(weighted(POINTS.batches, w) for w in (weights, 1 - weights)), ridge=RIDGE)
    one, other = shift_trial(apart), shift_trial(joined)
    assert error(one.delta["weight"], other.delta["weight"]) < 1e-8
    assert error(one.predicted["weight"], other.predicted["weight"]) < 1e-8
    [some], [same] = (
        theory.mixture_trial(problem, etas=(0.25,), kind="chi_square").mixed for problem in (apart, joined)
    )
    assert (some.ratio, some.error) == pytest.approx((same.ratio, same.error), rel=1e-8)
    assert some.over_square_law is None


def test_shift_of_a_network_is_found_and_predicted():
    batches = clouds()
    shifted = weighted(batches, 1 + 0.02 * torch.randn(60))
    found = shift_trial(Problem(settled_network(), CLASSIFIER, batches, shifted, NETWORK_RIDGE))
    assert found.stationary
    assert found.starts_at_minimum
    assert found.converged
    assert found.relative_error < 0.1


def test_what_is_no_minimum_is_not_called_one():
    batches = clouds()
    found = shift_trial(Problem(tanh_network(), CLASSIFIER, batches, weighted(batches, torch.rand(60)), iterations=20))
    assert not found.converged
    assert not found.starts_at_minimum
    assert found.lowest_curvature < 0
    assert "no prediction: the Hessian has curvature -" in found.sentence
    assert "theta is not a minimum" in found.sentence
    assert not settle(Problem(tanh_network(), CLASSIFIER, clouds(), iterations=1)).stationary


def test_search_leaves_a_saddle_downhill():
    """The gradient there is below the one from which Newton's method takes over, and the curvature is negative."""
    model = Vector(2)
    with torch.no_grad():
        model.w[1] = 1e-6
    double_well = Objective(lambda m, z: m.w, lambda w, z: z * (w[0] ** 2 / 2 - w[1] ** 2 / 2 + w[1] ** 4 / 4))
    found = settle(Problem(model, double_well, [torch.ones(3).double()]))
    assert found.stationary
    assert abs(found.loss + 1 / 4) < EXACT


def test_loss_without_a_minimum_ends_the_search():
    objective = Objective(lambda m, z: m.w, lambda w, z: z * (w**3 + w).sum())
    found = settle(Problem(Vector(2), objective, [torch.ones(3).double()]))
    assert not found.stationary
    assert np.isfinite(found.loss)


def test_single_precision_reaches_its_own_tolerance():
    batches = [(x.float(), y.float()) for x, y in POINTS.batches]
    p, p_star = weighted(batches, POINTS.p), weighted(batches, POINTS.shifted(0.5))
    problem = Problem(logistic().float(), LOGISTIC, p, p_star, RIDGE)
    assert settle(problem).stationary
    found = shift_trial(problem)
    assert found.stationary
    assert error(found.delta["weight"][0], POINTS.newton(POINTS.shifted(0.5)) - POINTS.newton(POINTS.p)) < 1e-2


def test_unused_and_frozen_weights_stay():
    model = nn.ModuleDict({"used": logistic(), "idle": nn.Linear(2, 2).double(), "frozen": nn.Linear(2, 2).double()})
    model["frozen"].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    objective = Objective(lambda m, b: LOGISTIC.forward(m["used"], b), LOGISTIC.losses)
    settle(Problem(model, objective, weighted(POINTS.batches, POINTS.p)))
    moved = [name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])]
    assert moved == ["used.weight"]


@pytest.mark.parametrize("values", [[3.0], [2.0] * 5, [-4.0, 0, 0, 1, 2], list(range(40))])
def test_spectrum_ends_are_those_of_the_dense_matrix(values):
    torch.manual_seed(0)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n).double()).Q
    matrix = basis @ torch.diag(torch.tensor(values).double()) @ basis.T
    low, high, resolved = spectrum_ends(matrix.matmul, torch.randn(n).double(), 60)
    assert resolved
    assert abs(low - min(values)) < 1e-9 * max(map(abs, values))
    assert abs(high - max(values)) < 1e-9 * max(map(abs, values))
    assert n < 40 or not spectrum_ends(matrix.matmul, torch.randn(n).double(), 5)[2]


def problem(batches=POINTS.batches, shifted=POINTS.batches, losses=LOGISTIC.losses, **options):
    return Problem(logistic(), Objective(LOGISTIC.forward, losses), batches, shifted, **options)


def weights(*values):
    return weighted(POINTS.batches, list(values))


EQUAL = weights(*[1.0] * 24)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda: problem(ridge=-1.0), r"ridge must be a finite number >= 0, got -1\.0"),
        (lambda: shift_trial(problem(shifted=None)), "shifted must be given"),
        (lambda: shift_trial(problem(shifted=iter(POINTS.batches))), r"list\(batches\)"),
        (lambda: shift_trial(logistic_problem()), "shifted must move the minimum"),
        (lambda: settle(problem(weights(1.0))), "one number per example, got 1 for 24"),
        (lambda: settle(problem(losses=lambda z, b: z / 0)), "finite at the model's weights, got nan"),
        (lambda: weights(1.0, -2.0), "weights must be finite numbers >= 0, .* got a least of -2"),
        (lambda: weighted(DataLoader([1, 2], shuffle=True), [1, 1]), "shuffle=False"),
        (lambda: theory.shift_bound(problem()), "can't be computed from two samples"),
        (lambda: theory.corruption_trial(problem(), radii=(0.0,)), r"a radius of radii must be a finite number > 0"),
        (lambda: theory.mixture_trial(problem(), etas=(0.0, 1.0)), r"etas must be.*got \(0\.0, 1\.0\)"),
        (lambda: theory.strength_trial(problem(EQUAL, EQUAL, ridge=1.0)), "at least 3 groups must have"),
    ],
)
def test_wrong_arguments_get_one_sentence(action, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        action()
    assert "\n" not in str(caught.value)
