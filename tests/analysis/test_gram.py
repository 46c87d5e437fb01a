"""Gradients in factors: taken where they are exact, left where they are not, the Gram matrix right either way."""

import pytest
import torch
from classified import OBJECTIVE
from curvature import dense_values
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, linear, relu

from gasam.analysis.examples import example_gradients, factored
from gasam.analysis.likelihoods import CrossEntropy
from gasam.analysis.objective import Objective
from gasam.analysis.spectrum import top_eigenvalues
from problems import batch, network
from tolerances import EXACT, error


class Net(nn.Module):
    """An inner layer that is used as `use` says, before an ordinary one."""

    def __init__(self, use):
        super().__init__()
        self.inner, self.outer, self.use = nn.Linear(6, 6), nn.Linear(6, 3, bias=False), use

    def forward(self, x):
        return self.outer(self.use(self.inner, x).tanh())


def reversed_inside(layer, x):
    return layer(x.flip(0)).flip(0)


USES = {
    "as usual": (lambda layer, x: layer(x), {0, 1, 2}),
    "twice": (lambda layer, x: layer(layer(x)), {2}),
    "once more without the layer": (lambda layer, x: layer(x) + linear(x, layer.weight), {1, 2}),
    "never": (lambda layer, x: linear(x, layer.weight, layer.bias), {2}),
    "rows in another order": (reversed_inside, {2}),
    "changed in place": (lambda layer, x: layer(x).relu_(), {2}),
    "in sequences": (lambda layer, x: layer(torch.stack([x, -x], 1)).prod(1), {2}),
    "not by its loss": (lambda layer, x: x + 0 * layer(x).detach(), {0, 1, 2}),
    "by name": (lambda layer, x: layer(input=x), {2}),
    "in single precision": (lambda layer, x: linear(x.float(), layer.weight.float()).double() + layer.bias, {2}),
    "inside of a vmap": (lambda layer, x: vmap(layer)(x), {2}),
    "by functional_call": (lambda layer, x: functional_call(layer, dict(layer.named_parameters()), (x,)), {0, 1, 2}),
}


@pytest.mark.parametrize("use", USES)
def test_factors_are_taken_where_they_are_the_gradients(use):
    torch.manual_seed(0)
    use, expected = USES[use]
    model, (x, y) = Net(use).double(), batch(rows=12)
    losses, found = factored(model, OBJECTIVE, (x, y), list(model.parameters()))
    assert len(losses) == 12
    assert set(found) == expected
    values = dense_values(model, x, y, "empirical_fisher")[:12]
    assert error(top_eigenvalues(model, OBJECTIVE, [(x[:7], y[:7]), (x[7:], y[7:])], 12).values, values) < 1e-8
    assert not any(module._forward_hooks for module in model.modules())


def test_losses_that_depend_on_each_other_have_no_factors():
    """However little: another row's share is one in a million."""
    model, data = Net(USES["as usual"][0]).double(), batch(rows=12)
    objective = Objective(lambda m, b: (z := m(b[0])) + 1e-6 * z.flip(0), CrossEntropy())
    assert not factored(model, objective, data, list(model.parameters()))[1]


def test_factors_of_one_batch_only_are_no_use():
    torch.manual_seed(0)
    model, (x, y) = Net(lambda layer, x: layer(x) if len(x) == 7 else layer(x.flip(0)).flip(0)).double(), batch(rows=12)
    values = dense_values(model, x, y, "empirical_fisher")[:12]
    found = top_eigenvalues(model, OBJECTIVE, [(x[:7], y[:7]), (x[7:], y[7:])], 12)
    assert error(found.values, values) < 1e-8


@pytest.mark.parametrize("frozen", [True, False])
def test_no_linear_layer_to_learn_leaves_nothing_to_factor(frozen):
    torch.manual_seed(0)
    inner = nn.Linear(6, 6).requires_grad_(False) if frozen else nn.Identity()
    model = nn.Sequential(inner, nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 3, 3), nn.Flatten()).double()
    x, y = batch(rows=12)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert not factored(model, OBJECTIVE, (x, y), weights)[1]
    values = dense_values(model, x, y, "empirical_fisher")[:12]
    assert error(top_eigenvalues(model, OBJECTIVE, [(x, y)], 12, method="gram").values, values) < 1e-8


def test_factors_make_the_gradients():
    model, (x, y) = Net(lambda layer, x: relu(layer(x))).double(), batch(rows=12)
    losses, found = factored(model, OBJECTIVE, (x, y), weights := list(model.parameters()))
    for i, loss in enumerate(losses):
        inner, bias, outer = torch.autograd.grad(loss, weights, retain_graph=True)
        assert error(torch.outer(found[0][0][i], found[0][1][i]), inner) < EXACT
        assert error(found[1][0][i], bias) < EXACT
        assert error(torch.outer(found[2][0][i], found[2][1][i]), outer) < EXACT


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.eye(12))

    def forward(self, x):
        return x @ self.turn


@pytest.mark.parametrize("size", [2.0, 3.6, 4.5])
def test_examples_that_are_each_others_negatives_are_never_cut_apart(size):
    """Alone each loss is 0; in the batch it is 11 exp(-size^2), which float32 rounds to 0 for the last size.

    A slope of 1e-5 that is left of 1 - p has two digits in float32.
    """

    def losses(outputs, batch):
        return cross_entropy(outputs @ batch[0].T, torch.arange(len(outputs)), reduction="none")

    model, objective, data = Turned(), Objective(lambda m, b: m(b[0]), losses), [(size * torch.eye(12),)]
    dense = top_eigenvalues(model, objective, data, 12, method="dense").values
    assert dense.min() > 0
    assert error(top_eigenvalues(model, objective, data, 12, method="gram").values, dense) < 1e-2


@pytest.mark.parametrize("factor", [1.0, 160.0, 400.0], ids=["ordinary", "tiny", "zero"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_cut_apart_however_small_their_losses(factor, dtype):
    """One pass back through the whole batch says whether they may be; all others are through single rows."""
    model, (x, _) = network(dtype), batch(dtype, rows=12)
    y = model(x).argmax(1)
    objective = Objective(lambda m, b: factor * m(b[0]), CrossEntropy())
    passes, losses = [], objective(model, (x, y))
    losses.register_hook(passes.append)
    for i, found in enumerate(example_gradients(model, objective, (x, y), losses, weights := list(model.parameters()))):
        expected = torch.autograd.grad(losses[i], weights, retain_graph=True)
        passes.pop()
        assert all(error(a, b) < 1e-4 for a, b in zip(found, expected, strict=True))
    assert len(passes) == 1


def test_shuffled_batches_are_noticed_however_small_their_losses():
    class Shuffled(list):
        def __iter__(self):
            self.reverse()
            return super().__iter__()

    model, (x, _) = network(torch.float32), batch(torch.float32, rows=12)
    y = model(x).argmax(1)
    objective = Objective(lambda m, b: 40 * m(b[0]), lambda z, b: 1e-6 * cross_entropy(z, b[1], reduction="none"))
    with pytest.raises(ValueError, match="same order each time"):
        top_eigenvalues(model, objective, Shuffled(zip(x.split(6), y.split(6), strict=True)), 2, method="gram")
