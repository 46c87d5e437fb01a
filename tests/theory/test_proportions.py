"""Propositions 2 and 3: what is proportional to the share of shifted data, and to the gradients' weakness."""

import math

import numpy as np
import pytest
import torch
from theory_problems import (
    CLASSIFIER,
    LOGISTIC,
    NETWORK_RIDGE,
    RIDGE,
    Points,
    blocks,
    clouds,
    logistic,
    settled_network,
    tanh_network,
)
from torch import nn

from gasam.lab.theory import (
    DIVERGENCES,
    mixture_trial,
    settle,
    strength_trial,
    weighted,
)
from tolerances import EXACT, error

POINTS = Points()
P = weighted(POINTS.batches, POINTS.p)


def settled(points=POINTS):
    model = logistic()
    settle(model, LOGISTIC, weighted(points.batches, points.p), ridge=RIDGE, tolerance=1e-12)
    return model


def shifted(size, points=POINTS):
    return weighted(points.batches, points.shifted(size))


# Proposition 2


def test_mixture_moves_the_minimum_by_its_share():
    trial = mixture_trial(settled(), LOGISTIC, P, shifted(0.1), ridge=RIDGE, etas=(1.0, 0.5, 0.1, 0.01))
    assert [row.eta for row in trial.mixed] == [0.01, 0.1, 0.5, 1.0]
    assert all(row.stationary for row in trial.mixed)
    assert trial.stationary
    assert trial.largest_deviation < 0.05
    errors = [row.error for row in trial.mixed]
    assert 8 < errors[1] / errors[0] < 12  # Theorem 2's error is of the order of the mixture's own shift
    assert abs(trial.mixed[-1].ratio - 1) < 1e-8


def test_mixture_of_two_samples_has_no_divergence():
    first, second = POINTS.batches
    model = logistic()
    settle(model, LOGISTIC, [first], ridge=RIDGE)
    trial = mixture_trial(model, LOGISTIC, [first], [second], ridge=RIDGE, etas=(0.1, 1.0))
    assert trial.mixed[0].divergence is None
    assert trial.over_square_law is None
    assert 0.05 < trial.mixed[0].ratio < 0.3


@pytest.mark.parametrize("kind", DIVERGENCES.values(), ids=DIVERGENCES)
@pytest.mark.parametrize("skewed_to", ["rare", "common"])
def test_divergence_of_a_mixture_is_below_eta_c_f_and_near_eta_squared(kind, skewed_to):
    """eta C_f is convexity's; eta^2 C_f is exact for chi-square, and broken by the others where E_p[r^3] > 0."""
    p = np.array([0.1, 0.9])
    r = np.array([9.0, -1.0]) if skewed_to == "rare" else np.array([-9.0, 1.0])
    above = []
    for size in (0.1, 0.01):
        for eta in (0.1, 0.5, 0.9):
            full, seen = (kind.between(p * (1 + s * r), p) for s in (size, eta * size))
            assert seen <= eta * full
            above.append(seen / (eta**2 * full) - 1)
    if kind.name == "chi_square":
        assert np.abs(above).max() < EXACT
    else:
        assert (np.array(above) > 0).all() == (skewed_to == "rare")
        assert (np.array(above) < 0).all() == (skewed_to == "common")
        assert np.abs(above[3:]).max() < 0.15 * np.abs(above[:3]).max()  # gone with the shift: 1 + o(1)


def test_trial_shows_the_square_law_broken():
    rare = POINTS.p == POINTS.p.min()
    p_star = weighted(POINTS.batches, np.where(rare, 0.5, 0.5 * POINTS.p / POINTS.p[~rare].sum()))
    trial = mixture_trial(settled(), LOGISTIC, P, p_star, ridge=RIDGE, etas=(0.1,))
    assert trial.over_square_law > 1.5
    assert f"{trial.over_square_law:.3g} of eta^2 C_f" in trial.sentence
    assert trial.mixed[0].divergence <= 0.1 * trial.mixed[0].square_law / 0.01
    exact = mixture_trial(settled(), LOGISTIC, P, p_star, ridge=RIDGE, etas=(0.1,), kind="chi_square")
    assert abs(exact.over_square_law - 1) < EXACT


# Proposition 3


def test_strengths_are_means_of_per_example_norms():
    model, batches = tanh_network(), clouds()
    found = strength_trial(
        model,
        CLASSIFIER,
        batches,
        batches,
        delta={name: torch.ones_like(weight) for name, weight in model.named_parameters()},
    )
    total = {name: 0.0 for name, _ in model.named_parameters()}
    for x, y in batches:
        for row, target in zip(x, y, strict=True):
            gradients = torch.autograd.grad(nn.functional.cross_entropy(model(row), target), list(model.parameters()))
            for name, gradient in zip(total, gradients, strict=True):
                total[name] += float(gradient.norm()) / 60
    for group in found.groups:
        assert error(group.strength, total[group.name] / math.sqrt(group.size)) < EXACT
        assert error(group.delta, math.sqrt(group.size)) < EXACT
        assert error(group.reach, group.size / total[group.name]) < EXACT


def test_fisher_blocks_are_proportional():
    """Where H_i = G_i^2 up to a constant, as the proof assumes, the power is 1 and the correlation perfect."""
    spreads = np.array([0.1, 0.3, 1.0, 3.0])
    model, objective = blocks(1 / spreads**2)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(40, 1, 4, dtype=torch.float64, generator=generator)
    noise -= noise.mean(0)
    batches = [noise * torch.tensor(spreads)[:, None]]
    settle(model, objective, batches)
    trial = strength_trial(model, objective, batches, weighted(batches, torch.rand(40, generator=generator)))
    assert abs(trial.power - 1) < 1e-6
    assert abs(trial.pearson - 1) < 1e-9
    assert abs(trial.spearman - 1) < EXACT


def test_groups_with_weak_gradients_move_far_in_a_small_network():
    model, batches = settled_network(), clouds()
    trial = strength_trial(model, CLASSIFIER, batches, weighted(batches, 1 + 0.1 * torch.rand(60)), ridge=NETWORK_RIDGE)
    reach, delta = [g.reach for g in trial.groups], [g.delta for g in trial.groups]
    ranks = [np.argsort(np.argsort(values)) for values in (reach, delta)]
    assert abs(trial.pearson - np.corrcoef(np.log(reach), np.log(delta))[0, 1]) < EXACT
    assert abs(trial.spearman - np.corrcoef(*ranks)[0, 1]) < EXACT
    assert trial.pearson > 0.5
    assert trial.spearman > 0.5
    layers = strength_trial(
        model,
        CLASSIFIER,
        batches,
        batches,
        delta={name: torch.ones_like(weight) for name, weight in model.named_parameters()},
        group=lambda name: name.split(".")[0],
    )
    assert [(group.name, group.size) for group in layers.groups] == [("0", 90), ("2", 66), ("4", 35), ("6", 18)]


def test_groups_without_gradient_or_shift_take_no_part():
    model, objective = blocks(np.array([1.0, 2.0, 3.0, 0.0]))
    batches = [torch.randn(10, 4, 4, dtype=torch.float64)]
    settle(model, objective, batches)
    trial = strength_trial(model, objective, batches, weighted(batches, torch.rand(10)))
    assert [group.name for group in trial.compared] == ["block0", "block1", "block2"]
    assert trial.groups[3].reach == math.inf
    assert "over 3 of 4 groups" in trial.sentence
