"""The parameter shift: found again, predicted by Theorem 2, and the model as it was."""

import copy

import numpy as np
import pytest
import torch
from theory_problems import (
    CLASSIFIER,
    LOGISTIC,
    NETWORK_RIDGE,
    RIDGE,
    Points,
    Vector,
    clouds,
    logistic,
    settled_network,
    tanh_network,
)
from torch import nn

from gasam.analysis.objective import Objective
from gasam.lab.theory import agreement, find_minimum, measured_shift, mixture, predicted_shift, settle, weighted
from gasam.lab.theory.curvature import spectrum_ends
from gasam.lab.theory.minimum import conjugate_gradients
from problems import network
from tolerances import EXACT, error, same_bits

POINTS = Points()


def settled(points=POINTS, ridge=RIDGE):
    model = logistic()
    settle(model, LOGISTIC, weighted(points.batches, points.p), ridge=ridge, tolerance=1e-13)
    return model


def test_minimum_is_that_of_newton_in_numpy():
    model = settled()
    assert error(model.weight[0], POINTS.newton(POINTS.p)) < EXACT
    again = find_minimum(model, LOGISTIC, weighted(POINTS.batches, POINTS.p), ridge=RIDGE)
    assert again.stationary
    assert again.iterations == 0


@pytest.mark.parametrize("size", [0.9, 0.1, 1e-3])
def test_measured_shift_is_the_difference_of_both_minima(size):
    p_star = weighted(POINTS.batches, POINTS.shifted(size))
    p = weighted(POINTS.batches, POINTS.p)
    found = measured_shift(settled(), LOGISTIC, p, p_star, ridge=RIDGE, tolerance=1e-12)
    expected = POINTS.newton(POINTS.shifted(size)) - POINTS.newton(POINTS.p)
    assert found.stationary
    assert found.starts_at_minimum
    assert np.abs(found.delta["weight"][0].numpy() - expected).max() < EXACT
    assert abs(found.norm - np.linalg.norm(expected)) < EXACT


def test_error_of_theorem_2_falls_linearly_with_the_shift():
    model, p = settled(), weighted(POINTS.batches, POINTS.p)
    theta = POINTS.newton(POINTS.p)
    sizes = [0.3, 0.1, 0.03, 0.01, 0.003, 0.001]
    errors = []
    for size in sizes:
        predicted = predicted_shift(model, LOGISTIC, p, weighted(POINTS.batches, POINTS.shifted(size)), ridge=RIDGE)
        assert predicted.converged
        measured = torch.tensor(POINTS.newton(POINTS.shifted(size)) - theta)[None]
        errors.append(agreement(predicted.delta, {"weight": measured}).relative_error)
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert 0.97 < slope < 1.03
    assert errors[-1] < 1e-3


def test_prediction_is_the_dense_solve_of_theorem_2():
    model, size = settled(), 0.2
    s = 1 / (1 + np.exp(POINTS.y * (POINTS.x @ model.weight[0].detach().numpy())))
    gradients = -(s * POINTS.y)[:, None] * POINTS.x
    hessian = (POINTS.x.T * (POINTS.p * s * (1 - s))) @ POINTS.x + RIDGE * np.eye(4)
    expected = -np.linalg.solve(hessian, (POINTS.p * size * POINTS.r) @ gradients)
    p_star = weighted(POINTS.batches, POINTS.shifted(size))
    found = predicted_shift(model, LOGISTIC, weighted(POINTS.batches, POINTS.p), p_star, ridge=RIDGE)
    assert error(found.delta["weight"][0], expected) < 1e-9
    damped = predicted_shift(
        model, LOGISTIC, weighted(POINTS.batches, POINTS.p), p_star, ridge=RIDGE / 2, damping=RIDGE / 2
    )
    assert error(damped.delta["weight"][0], expected) < 1e-9


def test_two_data_sets_are_weights_over_both():
    """Two samples given apart, or as weights over one list of all: the same shift, measured and predicted."""
    first, second = POINTS.batches
    apart = (mixture([first], [second], 0.25), mixture([first], [second], 0.5))
    n = len(first[0])
    weights = [torch.cat([torch.full((n,), 1 - eta), torch.full((n,), eta)]) for eta in (0.25, 0.5)]
    model = logistic()
    settle(model, LOGISTIC, apart[0], ridge=RIDGE)
    for shift in (measured_shift, predicted_shift):
        found = shift(model, LOGISTIC, *apart, ridge=RIDGE)
        expected = shift(model, LOGISTIC, *(weighted(POINTS.batches, w) for w in weights), ridge=RIDGE)
        assert error(found.delta["weight"], expected.delta["weight"]) < 1e-8


def test_shift_of_a_network_is_found_and_predicted():
    model, batches = settled_network(), clouds()
    shifted = weighted(batches, 1 + 0.02 * torch.randn(60))
    measured = measured_shift(model, CLASSIFIER, batches, shifted, ridge=NETWORK_RIDGE)
    predicted = predicted_shift(model, CLASSIFIER, batches, shifted, ridge=NETWORK_RIDGE)
    assert measured.stationary
    assert measured.starts_at_minimum
    assert predicted.converged
    assert agreement(predicted.delta, measured.delta).relative_error < 0.1
    assert "theta* is stationary" in measured.sentence


def test_saddle_is_said_not_stepped_over():
    model, batches = tanh_network(), clouds()
    found = predicted_shift(model, CLASSIFIER, batches, weighted(batches, torch.rand(60)))
    assert found.indefinite
    assert not found.converged
    assert "no prediction: the Hessian has curvature -" in found.sentence
    cured = predicted_shift(model, CLASSIFIER, batches, weighted(batches, torch.rand(60)), damping=5.0)
    assert cured.converged
    assert not cured.indefinite


def test_start_that_is_no_minimum_is_said():
    found = measured_shift(logistic(), LOGISTIC, POINTS.batches, weighted(POINTS.batches, POINTS.p), ridge=RIDGE)
    assert not found.starts_at_minimum
    assert "theta is not a minimum" in found.sentence


def test_search_that_runs_out_is_not_called_stationary():
    found = find_minimum(tanh_network(), CLASSIFIER, clouds(), iterations=1)
    assert not found.stationary
    assert found.sentence.startswith("not stationary")


def test_search_leaves_a_saddle_downhill():
    """The gradient there is below the one from which Newton's method takes over, and the curvature is negative."""
    model = Vector(2)
    with torch.no_grad():
        model.w[1] = 1e-6
    double_well = Objective(lambda m, z: m.w, lambda w, z: z * (w[0] ** 2 / 2 - w[1] ** 2 / 2 + w[1] ** 4 / 4))
    found = find_minimum(model, double_well, [torch.ones(3).double()])
    assert found.stationary
    assert abs(found.loss + 1 / 4) < EXACT


@pytest.mark.parametrize("falling", [lambda w: -w.sum().exp(), lambda w: (w**3 + w).sum()])
def test_loss_without_a_minimum_ends_the_search(falling):
    found = find_minimum(Vector(2), Objective(lambda m, z: m.w, lambda w, z: z * falling(w)), [torch.ones(3).double()])
    assert not found.stationary
    assert np.isfinite(found.loss)
    assert found.evaluations < 2000


def test_single_precision_reaches_its_own_tolerance():
    model, batches = logistic().float(), [(x.float(), y.float()) for x, y in POINTS.batches]
    assert settle(model, LOGISTIC, weighted(batches, POINTS.p), ridge=RIDGE).stationary
    found = measured_shift(
        model, LOGISTIC, weighted(batches, POINTS.p), weighted(batches, POINTS.shifted(0.5)), ridge=RIDGE
    )
    assert found.stationary
    assert error(found.delta["weight"][0], POINTS.newton(POINTS.shifted(0.5)) - POINTS.newton(POINTS.p)) < 1e-2


def test_unused_and_frozen_weights_stay():
    model = nn.ModuleDict({"used": logistic(), "idle": nn.Linear(2, 2).double(), "frozen": nn.Linear(2, 2).double()})
    model["frozen"].requires_grad_(False)
    objective = Objective(lambda m, b: LOGISTIC.forward(m["used"], b), LOGISTIC.losses)
    found = find_minimum(model, objective, weighted(POINTS.batches, POINTS.p))
    assert set(found.offset) == {"used.weight", "idle.weight", "idle.bias"}
    assert not found.offset["idle.weight"].any()


@pytest.mark.parametrize("action", [find_minimum, measured_shift, predicted_shift])
@pytest.mark.parametrize("stop", [None, 3])
def test_model_is_as_before_also_when_interrupted(action, stop):
    model = nn.Sequential(network(), nn.Dropout(0.5))
    model[1].eval()
    model[0][0].weight.grad = kept = torch.ones_like(model[0][0].weight)
    with torch.no_grad():
        model[0][0].bias[0] = -0.0
    before, modes = copy.deepcopy(list(model.parameters())), [module.training for module in model.modules()]
    batches, calls = [(torch.randn(12, 6).double(), torch.randint(3, (12,)))], []

    def forward(model, batch):
        calls.append(1)
        if len(calls) == stop:
            raise KeyboardInterrupt
        return model(batch[0])

    distributions = [batches] if action is find_minimum else [batches, weighted(batches, torch.rand(12))]
    objective = Objective(forward, CLASSIFIER.losses)
    if stop is None:
        action(model, objective, *distributions, ridge=0.1)
    else:
        with pytest.raises(KeyboardInterrupt):
            action(model, objective, *distributions, ridge=0.1)
    assert same_bits(model.parameters(), before)
    assert [module.training for module in model.modules()] == modes
    assert model[0][0].weight.grad is kept
    assert all(weight.grad is None for name, weight in model.named_parameters() if name != "0.0.weight")


def test_conjugate_gradients_solve_and_stop():
    torch.manual_seed(0)
    root = torch.randn(20, 20).double()
    matrix, target = root @ root.T + torch.eye(20), torch.randn(20).double()
    found = conjugate_gradients(matrix.matmul, target, tolerance=1e-12, iterations=200)
    assert error(found.x, torch.linalg.solve(matrix, target)) < EXACT
    assert found.residual <= 1e-12
    early = conjugate_gradients(matrix.matmul, target, tolerance=1e-12, iterations=3)
    assert early.iterations == 3
    assert error(early.residual, (target - matrix @ early.x).norm() / target.norm()) < EXACT
    saddle = torch.diag(torch.tensor([1.0, -2.0])).double()
    bad = conjugate_gradients(saddle.matmul, torch.ones(2).double(), tolerance=1e-12, iterations=5)
    assert abs(bad.lowest + 0.5) < EXACT
    assert not bad.x.any()
    assert bad.residual == 1


@pytest.mark.parametrize("values", [[3.0], [2.0] * 5, [-4.0, 0, 0, 1, 2], list(range(40))])
def test_spectrum_ends_are_those_of_the_dense_matrix(values):
    torch.manual_seed(0)
    n = len(values)
    basis = torch.linalg.qr(torch.randn(n, n).double()).Q
    matrix = basis @ torch.diag(torch.tensor(values).double()) @ basis.T
    found = spectrum_ends(matrix.matmul, torch.randn(n).double(), products=60)
    assert found.resolved
    assert abs(found.smallest - min(values)) < 1e-9 * max(map(abs, values))
    assert abs(found.largest - max(values)) < 1e-9 * max(map(abs, values))
    if n == 40:
        assert not spectrum_ends(matrix.matmul, torch.randn(n).double(), products=5).resolved


def delta(model, **options):
    return measured_shift(model, LOGISTIC, POINTS.batches, weighted(POINTS.batches, POINTS.p), **options)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda m: delta(m, ridge=-1.0), r"ridge must be a finite number >= 0, got -1\.0"),
        (lambda m: delta(m, tolerance=-1.0), "tolerance must be a finite number >= 0"),
        (lambda m: delta(m, iterations=0), "iterations must be a whole number >= 1, got 0"),
        (lambda m: predicted_shift(m, LOGISTIC, POINTS.batches, POINTS.batches, damping=np.inf), "damping must be"),
        (lambda m: find_minimum(m, LOGISTIC, iter(POINTS.batches)), r"list\(batches\)"),
        (lambda m: find_minimum(m, LOGISTIC, []), "batches is empty"),
        (lambda m: find_minimum(m, LOGISTIC, weighted(POINTS.batches, [1.0])), "one number per example, got 1 for 24"),
        (lambda m: weighted(POINTS.batches, [1.0, -2.0]), "weights must be finite and >= 0, got -2"),
        (lambda m: weighted(POINTS.batches, [0.0, 0.0]), "weights must not all be 0"),
        (lambda m: weighted(POINTS.batches, [[1.0]]), r"weights must be.* got shape \(1, 1\)"),
        (lambda m: weighted(weighted(POINTS.batches, POINTS.p), POINTS.p), "got a Distribution"),
        (lambda m: weighted(torch.utils.data.DataLoader([1, 2], shuffle=True), [1, 1]), "shuffle=False"),
        (lambda m: mixture(POINTS.batches, POINTS.batches, 1.5), r"eta must be a number from 0 to 1, got 1\.5"),
        (lambda m: agreement({"a": torch.ones(1)}, {"b": torch.ones(1)}), "name the same weights"),
        (lambda m: agreement({"a": torch.ones(1)}, {"a": torch.zeros(1)}), "measured delta must not be 0"),
        (
            lambda m: find_minimum(m, Objective(LOGISTIC.forward, lambda z, b: z.detach()), POINTS.batches),
            "losses must depend on the model's weights",
        ),
        (
            lambda m: find_minimum(m, Objective(LOGISTIC.forward, lambda z, b: z / 0), POINTS.batches),
            "loss must be finite at the model's weights, got nan",
        ),
    ],
)
def test_bad_shifts_get_one_sentence(action, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        action(logistic())
    assert "\n" not in str(caught.value)
