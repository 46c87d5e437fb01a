"""The largest eigenvalues and the density, against dense matrices that are made independently by torch.func."""

import math

import pytest
import torch
from curvature import NETS, OBJECTIVE, Tied, curvature, dense_values, wide
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, linear

from gasam.analysis.objective import CrossEntropy, Objective, SquaredError
from gasam.analysis.per_example import factored
from gasam.analysis.spectrum import spectral_density, top_eigenvalues
from problems import batch, network
from tolerances import error, flat

# Values against dense ones, as a share of the largest: Lanczos stops at residuals of 1e-8.
VALUES = 1e-6
MATRICES = ["empirical_fisher", "fisher", "hessian"]


def uneven(x, y):
    return [(x[:5], y[:5]), (x[5:6], y[5:6]), (x[6:], y[6:])]


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("net", NETS)
def test_values_are_those_of_the_dense_matrix(net, matrix):
    torch.manual_seed(1)
    model, (x, y) = NETS[net]().double(), batch(rows=14)
    expected = dense_values(model, x, y, matrix)
    for method in ["lanczos", "gram"] if matrix == "empirical_fisher" else ["lanczos"]:
        found = top_eigenvalues(model, OBJECTIVE, uneven(x, y), 20, matrix, method=method, tolerance=1e-8)
        assert (found.method, found.examples, found.weights) == (method, 14, len(expected))
        assert found.converged.all()
        assert found.values.dtype == torch.float64
        assert error(found.values, expected[:20]) < VALUES


@pytest.mark.parametrize("matrix", MATRICES)
def test_all_values_of_a_small_net(matrix):
    model, (x, y) = network(), batch(rows=12)
    expected = dense_values(model, x, y, matrix)
    found = top_eigenvalues(model, OBJECTIVE, uneven(x, y), len(expected), matrix)
    assert found.method == ("gram" if matrix == "empirical_fisher" else "dense")
    assert error(found.values, expected) < VALUES
    if matrix == "empirical_fisher":
        assert not found.values[12:].any()
        assert not found.residuals[12:].any()


@pytest.mark.parametrize("matrix", MATRICES)
def test_values_of_tied_weights_and_sequences_with_examples_in_either_dimension(matrix):
    torch.manual_seed(2)
    model, tokens = Tied().double(), torch.randint(7, (9, 5))
    pairs = [(part[:, :-1], part[:, 1:]) for part in tokens.split(4)]
    expected = dense_values(model, tokens[:, :-1], tokens[:, 1:], matrix)[:9]
    assert error(top_eigenvalues(model, OBJECTIVE, pairs, 9, matrix).values, expected) < VALUES
    second = Objective(lambda m, b: m(b[0].T), CrossEntropy(targets=lambda b: b[1].T))
    turned = [(inputs.T, targets.T) for inputs, targets in pairs]
    assert error(top_eigenvalues(model, second, turned, 9, matrix).values, expected) < VALUES


def test_examples_that_cannot_be_told_apart_go_back_through_their_batch():
    """Each loss depends on the whole batch, so that no row can be taken alone."""
    model, (x, y) = network(), batch(rows=12)
    objective = Objective(lambda m, b: (z := m(b[0])) - z.mean(0), CrossEntropy())
    slow = top_eigenvalues(model, objective, [(x, y)], 12, method="dense")
    assert error(top_eigenvalues(model, objective, [(x, y)], 12, method="gram").values, slow.values) < VALUES


def test_fisher_of_squared_errors():
    model, (x, _) = network(), batch(rows=12)
    y = torch.randn(12, 3, dtype=torch.float64)
    objective = Objective(OBJECTIVE.forward, SquaredError())
    for matrix in MATRICES:
        expected = dense_values(model, x, y, matrix)
        found = top_eigenvalues(model, objective, uneven(x, y), 30, matrix)
        assert error(found.values, expected[:30]) < VALUES


def test_top_fifty_of_a_hundred_thousand_weights():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Embedding(1000, 60), nn.Flatten(), nn.Linear(300, 130), nn.Tanh(), nn.Linear(130, 5))
    model, tokens, classes = model.double(), torch.randint(1000, (80, 5)), torch.randint(5, (80,))
    batches, lines = [(tokens[:50], classes[:50]), (tokens[50:], classes[50:])], []
    for t, c in zip(tokens, classes, strict=True):
        parts = torch.autograd.grad(cross_entropy(model(t[None]), c[None]), list(model.parameters()))
        lines.append(flat(parts))
    rows = torch.stack(lines)
    expected = torch.linalg.eigvalsh(rows @ rows.T / len(rows)).flip(0)[:50]
    # 0.02 GiB hold a third of the gradients: several passes.
    for options in ({}, {"memory": 0.02}, {"method": "lanczos", "tolerance": 1e-7}):
        found = top_eigenvalues(model, OBJECTIVE, batches, **options)
        assert found.weights == 99_785
        assert found.method == options.get("method", "gram")
        assert error(found.values, expected) < VALUES
    assert found.converged.all()


def test_a_small_basis_starts_anew_and_finds_the_same():
    torch.manual_seed(1)
    model, (x, y) = wide().double(), batch(rows=14)
    options = {"k": 5, "matrix": "hessian", "method": "lanczos", "tolerance": 1e-7}
    long = top_eigenvalues(model, OBJECTIVE, uneven(x, y), **options)
    # room for no more than the least, 25 vectors
    short = top_eigenvalues(model, OBJECTIVE, uneven(x, y), memory=1e-9, **options)
    assert short.work > long.work > 25
    assert short.converged.all()
    assert error(short.values, long.values) < VALUES


@pytest.mark.parametrize("matrix", MATRICES)
def test_residuals_hold_against_the_dense_matrix(matrix):
    """An eigenvalue lies within each residual; too few products are admitted to."""
    torch.manual_seed(1)
    model, (x, y) = wide().double(), batch(rows=14)
    expected = dense_values(model, x, y, matrix)
    found = top_eigenvalues(model, OBJECTIVE, uneven(x, y), 8, matrix, method="lanczos", max_products=10)
    assert found.work == 10
    assert not found.converged.all()
    away = (found.values[:, None] - expected).abs().min(1).values
    assert (away <= found.residuals * (1 + 1e-9)).all()
    assert (away > 1e-3 * found.residuals).any()


@pytest.mark.parametrize("matrix", MATRICES)
def test_density_has_integral_one_and_the_trace_of_the_matrix(matrix):
    model, (x, y) = network(), batch(rows=12)
    dense = curvature(model, x, y, matrix)
    found = spectral_density(model, OBJECTIVE, uneven(x, y), matrix, probes=40, steps=6)
    assert abs(torch.trapezoid(found.density, found.grid) - 1) < 1e-5
    # Five standard errors of 40 probes: u' A u has variance 2 (|A|_F^2 - |diag A|^2) for signs.
    spread = math.sqrt(2 * float(dense.square().sum() - dense.diag().square().sum()) / 40)
    assert abs(found.trace - dense.trace()) < 5 * spread
    assert 0.5 < found.trace_error / spread < 2
    mean = float(torch.trapezoid(found.density * found.grid, found.grid))
    assert abs(mean - found.trace / found.weights) < 1e-4 * found.width


def test_density_of_one_probe_is_exact_for_its_measure():
    """All n steps: sum w node^j = u' A^j u / n for the vector of signs that the seed draws."""
    model, (x, y) = network(), batch(rows=12)
    dense = curvature(model, x, y, "hessian")
    found = spectral_density(model, OBJECTIVE, uneven(x, y), probes=1, steps=100, seed=5)
    u = 2.0 * torch.randint(2, (len(dense),), generator=torch.Generator().manual_seed(5)).double() - 1
    for power in range(4):
        moment = u @ torch.linalg.matrix_power(dense, power) @ u / len(u)
        assert abs((found.node_weights * found.nodes**power).sum() - moment) < VALUES
    assert math.isnan(found.trace_error)


@pytest.mark.parametrize("matrix", ["fisher", "hessian"])
def test_a_matrix_of_low_rank_is_exhausted_and_its_zeros_are_found(matrix):
    """A linear net on one example has rank 2 in 21 weights."""
    torch.manual_seed(0)
    model = nn.Linear(6, 3).double()
    x, y = batch(rows=1)
    expected = dense_values(model, x, y, matrix)
    found = top_eigenvalues(model, OBJECTIVE, [(x, y)], 8, matrix, method="lanczos")
    assert found.converged.all()
    assert error(found.values, expected[:8]) < VALUES


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
