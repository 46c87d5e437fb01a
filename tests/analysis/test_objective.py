"""What is analysed: losses of examples, and a model that is as before afterwards."""

import torch
from curvature import OBJECTIVE, uneven
from torch import nn
from torch.nn.functional import cross_entropy

from gasam.analysis.objective import (
    CrossEntropy,
    Objective,
    SquaredError,
    gradient,
    mean_loss,
)
from problems import batch, network
from tolerances import EXACT, error, flat


def test_mean_is_over_examples_not_over_batches():
    model, (x, y) = network(), batch(rows=12)
    assert error(mean_loss(model, OBJECTIVE, uneven()), cross_entropy(model(x), y)) < EXACT


def test_gradient_is_that_of_the_mean_loss():
    model, (x, y) = network(), batch(rows=12)
    expected = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
    _, found = gradient(model, OBJECTIVE, uneven())
    assert list(found) == [name for name, _ in model.named_parameters()]
    assert error(flat(found.values()), flat(expected)) < EXACT


def test_gradient_of_an_unused_weight_is_zero():
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "idle": nn.Linear(2, 2)}).double()
    _, found = gradient(model, Objective(lambda m, b: m["used"](b[0]), CrossEntropy()), uneven())
    assert not found["idle.weight"].any()
    assert found["used.weight"].any()


def test_mean_loss_is_of_eval_mode_and_changes_nothing():
    model = nn.Sequential(network(), nn.Dropout(0.5), nn.BatchNorm1d(3).double())
    model[1].eval()
    model[0][0].weight.grad = kept = torch.ones_like(model[0][0].weight)
    modes = [module.training for module in model.modules()]
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    found = mean_loss(model, OBJECTIVE, uneven())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert model[0][0].weight.grad is kept
    x, y = batch(rows=12)
    assert error(found, cross_entropy(model.eval()(x), y)) < EXACT


def test_likelihoods_are_torch_losses_by_row():
    outputs, classes = torch.randn(4, 5, 3), torch.randint(3, (4, 5))
    classes[1, 2:] = -100
    classes[3] = -100
    found = CrossEntropy(label_smoothing=0.1)(outputs, (None, classes))
    expected = [cross_entropy(o, c, label_smoothing=0.1) for o, c in zip(outputs[:3], classes[:3], strict=True)]
    assert torch.allclose(found[:3], torch.stack(expected))
    assert found[3] == 0
    targets = torch.randn(4, 5, 3)
    squares = SquaredError()(outputs, (None, targets))
    assert torch.allclose(squares.mean(), nn.functional.mse_loss(outputs, targets))
