"""Losses, gradients and scales that are not finite, or zero: the weights stay home, the caller sees what came."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from gasam import Perturbation, SharpBackward, SharpnessAware, ga_sam
from gasam.trace import CLIMBED, NO_GRADIENT, NOT_FINITE
from problems import batch, network
from tolerances import same_bits

POISONS = {"gradient nan": math.nan, "gradient inf": math.inf, "gradient -inf": -math.inf}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("granularity", ["element", "filter", "layer", "model"])
@pytest.mark.parametrize("steps", [1, 2])
def test_non_finite_gradient_stays_home_and_reaches_the_caller(poison, norm, granularity, steps):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    model[2].bias.register_hook(lambda g: g.index_fill(0, torch.tensor([1]), POISONS[poison]))
    sharp = SharpBackward(model.parameters(), dataclasses.replace(ga_sam(0.1, norm, steps), granularity=granularity))

    def loss():
        assert same_bits(model.parameters(), before)
        return cross_entropy(model(x), y)

    sharp(loss)
    assert sharp.last.active == NOT_FINITE
    assert "not finite" in str(sharp.last)
    assert [norm.item() for norm in sharp.last.norms] == [0.0] * (steps + 1)
    assert not model[2].bias.grad.isfinite().all()
    assert model[0].weight.grad.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_stays_home(value):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))

    def loss():
        assert same_bits(model.parameters(), before)
        return cross_entropy(model(x), y) + value

    sharp(loss)
    assert sharp.last.active == NOT_FINITE


@pytest.mark.parametrize("granularity", ["element", "layer"])
def test_non_finite_scale_stays_home(granularity):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    perturbation = Perturbation(epsilon=0.1, scale=lambda group: group.gradient * math.inf, granularity=granularity)
    sharp = SharpBackward(model.parameters(), perturbation)

    def loss():
        assert same_bits(model.parameters(), before)
        return cross_entropy(model(x), y)

    sharp(loss)
    assert sharp.last.active == NOT_FINITE


def test_gradient_that_overflows_in_a_later_pass_brings_the_walk_home():
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    places = []

    def loss():
        places.append(same_bits(model.parameters(), before))
        return cross_entropy(model(x), y) * (math.inf if len(places) == 2 else 1.0)

    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2))
    sharp(loss)
    assert places == [True, False, True]
    assert sharp.last.active == NOT_FINITE


@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("steps", [1, 2])
def test_zero_gradient_stays_home(norm, steps):
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, norm, steps))
    sharp(lambda: cross_entropy(model(x), y) * 0)
    assert sharp.last.active == NO_GRADIENT
    assert "did not move" in str(sharp.last)
    assert all((p.grad == 0).all() for p in model.parameters())
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.active == CLIMBED


@pytest.mark.parametrize("k", [0, 1])
def test_closures_with_non_finite_gradients_stay_home(k):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), ga_sam(0.1, steps=2))
    places = []

    def closure():
        places.append(same_bits(model.parameters(), before))
        loss = cross_entropy(model(x), y) * (math.nan if len(places) == k + 1 else 1.0)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert places == ([True, True, True] if k == 0 else [True, False, True])
    assert not optimizer.last.climbed
    assert model[0].weight.grad.isnan().any()
