"""The largest eigenvalues and the density, against dense matrices that are made independently by torch.func."""

import math

import pytest
import torch
from classified import OBJECTIVE
from curvature import NETS, Called, Tied, curvature, dense_values, wide
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from gasam.analysis.likelihoods import CrossEntropy, SquaredError
from gasam.analysis.objective import Objective
from gasam.analysis.spectrum import spectral_density, top_eigenvalues
from problems import batch, network
from tolerances import error, same_bits

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


def test_values_of_tied_weights_and_sequences():
    torch.manual_seed(2)
    model, tokens = Tied().double(), torch.randint(7, (9, 5))
    pairs = [(part[:, :-1], part[:, 1:]) for part in tokens.split(4)]
    for matrix in MATRICES:
        expected = dense_values(model, tokens[:, :-1], tokens[:, 1:], matrix)
        assert error(top_eigenvalues(model, OBJECTIVE, pairs, 10, matrix).values, expected[:10]) < VALUES


def test_examples_in_the_second_dimension_are_told_apart():
    torch.manual_seed(2)
    model, tokens = Tied().double(), torch.randint(7, (9, 5))
    objective = Objective(lambda m, b: m(b[0]).transpose(0, 1), CrossEntropy(targets=lambda b: b[1].T))
    pairs = [(part.T[:-1], part.T[1:]) for part in tokens.split(4)]
    expected = dense_values(model, tokens[:, :-1], tokens[:, 1:], "empirical_fisher")
    found = top_eigenvalues(model, objective, pairs, 9)
    assert found.method == "gram"
    assert error(found.values, expected[:9]) < VALUES


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


@pytest.mark.slow
def test_hessian_of_marian():
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(3)
    layers = {f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    widths = {f"{side}_ffn_dim": 4 for side in ("encoder", "decoder")}
    config = MarianConfig(
        vocab_size=7, d_model=4, max_position_embeddings=8, pad_token_id=0, eos_token_id=1, decoder_start_token_id=2,
        forced_eos_token_id=None, **layers, **widths,
    )  # fmt: skip
    model = MarianMTModel(config).double()
    source, target = torch.randint(3, 7, (6, 3)), torch.randint(3, 7, (6, 3))

    def forward(model, batch):
        return model(input_ids=batch[0], decoder_input_ids=batch[1]).logits

    objective = Objective(forward, CrossEntropy(targets=lambda b: b[1]))
    pairs = list(zip(source.split(4), target.split(4), strict=True))
    called = Called(model, {"input_ids": source, "decoder_input_ids": target})
    expected = dense_values(called, source, target, "hessian")
    found = top_eigenvalues(model, objective, pairs, 5, "hessian", method="lanczos", tolerance=1e-8)
    assert found.weights == len(expected)
    assert found.converged.all()
    assert error(found.values, expected[:5]) < VALUES


@pytest.fixture(scope="module")
def large():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Embedding(1000, 60), nn.Flatten(), nn.Linear(300, 130), nn.Tanh(), nn.Linear(130, 5))
    tokens, classes = torch.randint(1000, (80, 5)), torch.randint(5, (80,))
    return model.double(), [(tokens[:50], classes[:50]), (tokens[50:], classes[50:])]


def test_top_fifty_of_a_hundred_thousand_weights(large):
    model, batches = large
    lines = []
    for tokens, classes in batches:
        for t, c in zip(tokens, classes, strict=True):
            parts = torch.autograd.grad(cross_entropy(model(t[None]), c[None]), list(model.parameters()))
            lines.append(torch.cat([part.reshape(-1) for part in parts]))
    rows = torch.stack(lines)
    expected = torch.linalg.eigvalsh(rows @ rows.T / len(rows)).flip(0)[:50]
    # 0.02 GiB hold a third of the gradients: several passes.
    for options in ({}, {"memory": 0.02}, {"method": "lanczos", "tolerance": 1e-7}):
        found = top_eigenvalues(model, OBJECTIVE, batches, **options)
        assert found.weights == 99_785
        assert found.method == options.get("method", "gram")
        assert error(found.values, expected) < VALUES
    assert found.converged.all()


def test_single_precision_is_near_double(large):
    model, batches = large
    double = top_eigenvalues(model, OBJECTIVE, batches).values
    model.float()
    single = top_eigenvalues(model, OBJECTIVE, batches).values
    iterated = top_eigenvalues(model, OBJECTIVE, batches, method="lanczos").values
    model.double()
    # Weights in float32 are other weights, by 2^-24 each; Lanczos stops at residuals of 1e-5.
    assert error(single, double) < 1e-6
    assert error(iterated, double) < 1e-5


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
def test_density_has_integral_one_and_the_moments_of_the_matrix(matrix):
    model, (x, y) = network(), batch(rows=12)
    dense = curvature(model, x, y, matrix)
    found = spectral_density(model, OBJECTIVE, uneven(x, y), matrix, probes=40, steps=6)
    assert abs(torch.trapezoid(found.density, found.grid) - 1) < 1e-5
    n = found.weights
    second = n * float((found.node_weights * found.nodes**2).sum())
    # Five standard errors of 40 probes: u' A u has variance 2 (|A|_F^2 - |diag A|^2) for signs.
    for estimate, power in ((found.trace, dense), (second, dense @ dense)):
        spread = math.sqrt(2 * float(power.square().sum() - power.diag().square().sum()) / 40)
        assert abs(estimate - power.trace()) < 5 * spread
    assert 0.5 < found.trace_error / math.sqrt(2 * float(dense.square().sum() - dense.diag().square().sum()) / 40) < 2
    mean = float(torch.trapezoid(found.density * found.grid, found.grid))
    assert abs(n * mean - found.trace) < 1e-4 * n * found.width


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


@settings(max_examples=6)
@given(factor=st.floats(0.01, 100), cuts=st.lists(st.integers(1, 11), max_size=4, unique=True))
def test_values_scale_with_the_loss_and_do_not_see_how_batches_are_cut(factor, cuts):
    model, (x, y) = network(), batch(rows=12)
    scaled = Objective(OBJECTIVE.forward, lambda z, b: factor * cross_entropy(z, b[1], reduction="none"))
    parts = list(zip(x.tensor_split(sorted(cuts)), y.tensor_split(sorted(cuts)), strict=True))
    for matrix, degree in (("empirical_fisher", 2), ("hessian", 1)):
        plain = top_eigenvalues(model, OBJECTIVE, [(x, y)], 6, matrix).values
        assert error(top_eigenvalues(model, scaled, parts, 6, matrix).values, factor**degree * plain) < VALUES


@pytest.mark.parametrize("method", ["gram", "lanczos", "dense"])
def test_model_is_as_before_also_when_interrupted(method):
    model = nn.Sequential(network(), nn.Dropout(0.5), nn.BatchNorm1d(3).double())
    model[0][0].weight.grad = kept = torch.ones_like(model[0][0].weight)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    x, y = batch(rows=12)
    counted = []

    def stop(done):
        counted.append(done)
        if done == 5:
            raise KeyboardInterrupt

    def examine(watch):
        return top_eigenvalues(model, OBJECTIVE, uneven(x, y), 5, method=method, watch=watch)

    examine(None)
    with pytest.raises(KeyboardInterrupt):
        examine(stop)
    assert counted == [1, 2, 3, 4, 5]
    assert same_bits(model.state_dict().values(), before)
    assert all(module.training for module in model.modules())
    assert model[0][0].weight.grad is kept
    assert model[0][0].bias.grad is None


def test_interrupted_inside_a_product_the_model_is_as_before():
    model, (x, y) = network(), batch(rows=12)
    calls = []

    def forward(model, batch):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return model(batch[0])

    with pytest.raises(KeyboardInterrupt):
        # no memory: every product goes forward anew
        top_eigenvalues(model, Objective(forward, CrossEntropy()), uneven(x, y), 3, "hessian", memory=1e-9)
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())


def test_gradients_may_be_off_outside():
    model, (x, y) = network(), batch(rows=12)
    expected = top_eigenvalues(model, OBJECTIVE, [(x, y)], 3, "hessian").values
    with torch.no_grad():
        assert torch.equal(top_eigenvalues(model, OBJECTIVE, [(x, y)], 3, "hessian").values, expected)


class Shuffled(list):
    def __iter__(self):
        self.append(self.pop(0))
        return super().__iter__()


BATCH = batch(rows=12)
CUSTOM = Objective(OBJECTIVE.forward, lambda outputs, batch: outputs.square().sum(1))


def my_hinge(outputs, batch):
    return outputs.relu().sum(1)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 54), "k must be at most .* 53, got 54"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 0), "k must be a whole number >= 1, got 0"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 2.5), "k must be a whole number >= 1, got 2.5"),
        (
            lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 2, "kfac"),
            "'empirical_fisher', 'fisher', 'hessian', got 'kf",
        ),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 2, tolerance=-1.0), "tolerance must .* >= 0.*, got -1.0"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 2, tolerance=math.nan), "tolerance must .*got nan"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 2, method="qr"), "method must be one of .*, got 'qr'"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 2, "hessian", method="gram"), "use method None"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 9, max_products=8), "max_products must be at least k, 9"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [BATCH], 9, memory=0), "memory must be a number of GiB > 0, got 0"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, [], 2), "batches is empty"),
        (lambda m: top_eigenvalues(m, OBJECTIVE, iter([BATCH]), 2), r"list\(batches\)"),
        (
            lambda m: top_eigenvalues(m, Objective(OBJECTIVE.forward, my_hinge), [BATCH], 2, "fisher"),
            "got my_hinge: give one of these, or use matrix 'empirical_fisher' or 'hessian'",
        ),
        (
            lambda m: top_eigenvalues(m, Objective(lambda m, b: m(b[0]).detach(), CrossEntropy()), [BATCH], 2),
            "must not detach",
        ),
        (
            lambda m: top_eigenvalues(m, Objective(lambda m, b: m(b[0]) / 0, CrossEntropy()), [BATCH], 2),
            "losses must be finite",
        ),
        (
            lambda m: top_eigenvalues(m, OBJECTIVE, Shuffled(uneven(*BATCH)), 2, method="gram"),
            "same order each time",
        ),
        (lambda m: spectral_density(m, OBJECTIVE, [BATCH], probes=0), "probes must be a whole number >= 1, got 0"),
        (lambda m: spectral_density(m, OBJECTIVE, [BATCH], steps=0), "steps must be a whole number >= 1, got 0"),
        (lambda m: spectral_density(m, OBJECTIVE, [BATCH], width=-1.0), "width must be a finite number > 0"),
        (lambda m: spectral_density(m, CUSTOM, [BATCH], "fisher"), "got <lambda>"),
    ],
)
def test_bad_input_gets_one_sentence(action, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        action(network())
    assert "\n" not in str(caught.value)
