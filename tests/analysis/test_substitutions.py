"""The paper's two substitutions against dense gradients and Hessians, and where theory says how large they are."""

import json
import math

import pytest
import torch
from classified import OBJECTIVE
from scipy.stats import spearmanr
from torch import nn
from torch.autograd import grad
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from gasam.analysis.examples import example_gradients as from_batch
from gasam.analysis.examples import squares
from gasam.analysis.likelihoods import CrossEntropy, SquaredError
from gasam.analysis.objective import Objective, examined
from gasam.analysis.products import Products
from gasam.analysis.substitutions import fisher_substitution, norm_substitution, rank_correlation, top_eigenvalue
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits

SIZES = [30, 5, 15, 3]


def in_batches(x, y, size):
    return list(zip(x.split(size), y.split(size), strict=True))


def example_gradients(model, x, y):
    """One row an example, each from a pass of its own."""
    weights = list(model.parameters())
    return torch.stack([flat(grad(cross_entropy(model(x[j : j + 1]), y[j : j + 1]), weights)) for j in range(len(y))])


def dense_hessian(model, x, y):
    shapes = {name: weight.shape for name, weight in model.named_parameters()}

    def loss(vector):
        parts = zip(vector.split(SIZES), shapes.items(), strict=True)
        return cross_entropy(functional_call(model, {name: part.view(s) for part, (name, s) in parts}, (x,)), y)

    return hessian(loss, flat(model.parameters()))


def test_norms_equal_dense_ones():
    model, (x, y) = network(), batch(rows=12)
    found = norm_substitution(model, OBJECTIVE, in_batches(x, y, (5, 7)))
    rows = example_gradients(model, x, y)
    single = torch.stack([part.norm(dim=1).mean() for part in rows.split(SIZES, dim=1)])
    joint = sum(len(b) * torch.stack([p.norm() for p in b.mean(0).split(SIZES)]) for b in rows.split((5, 7))) / 12
    assert error([t.examples for t in found.tensors], single) < EXACT
    assert error([t.batch for t in found.tensors], joint) < EXACT
    logs = (joint / single).log()
    assert found.factor == pytest.approx(float(logs.mean().exp()), rel=EXACT)
    assert found.spread == pytest.approx(float(logs.std(unbiased=False)), rel=1e-8)
    roots = torch.tensor(SIZES).sqrt()
    assert found.rank_correlation == pytest.approx(spearmanr(roots / joint, roots / single).statistic)
    assert (found.examples, found.batch_size) == (12, 6)
    assert [t.name for t in found.tensors] == [name for name, _ in model.named_parameters()]


def test_single_examples_are_what_is_substituted_for():
    found = norm_substitution(network(), OBJECTIVE, in_batches(*batch(rows=6), 1))
    assert [t.ratio for t in found.tensors] == pytest.approx([1.0] * 4)
    assert found.spread < 1e-7
    assert found.rank_correlation == pytest.approx(1)


def test_the_batch_never_has_more_than_its_examples():
    for seed in range(5):
        found = norm_substitution(network(seed=seed), OBJECTIVE, in_batches(*batch(rows=12, seed=seed), (2, 9, 1)))
        assert all(t.ratio <= 1 + EXACT for t in found.tensors)


def test_at_a_minimum_that_fits_no_example_the_batch_says_nothing_of_the_examples():
    """Equal inputs with contradicting labels: the whole gradient vanishes, those of the examples do not."""
    model, (x, y) = network(), batch(rows=24)
    data = torch.cat([x, x]), torch.cat([y, (y + 1) % 3])
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(data[0]), data[1]) + 1e-3 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    before = norm_substitution(model, OBJECTIVE, [data])
    optimizer.step(closure)
    after = norm_substitution(model, OBJECTIVE, [data])
    assert all(t.examples > 0.05 for t in after.tensors)
    assert after.factor < before.factor / 5


class Wordy(nn.Module):
    """Recurrent, with an embedding and a part that is not used."""

    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(7, 3, sparse=sparse)
        self.recurrent = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 3)
        self.idle = nn.Linear(1, 1)

    def forward(self, words):
        return self.out(self.recurrent(self.table(words))[0][:, -1])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("told_apart", [True, False])
def test_gradients_of_examples_are_those_of_single_passes(sparse, told_apart):
    torch.manual_seed(0)
    model = Wordy(sparse).double()
    data = torch.randint(7, (5, 6)), torch.randint(3, (5,))

    def forward(model, batch):
        assert told_apart or len(batch[0]) == 5
        return model(batch[0])

    objective = Objective(forward, CrossEntropy())
    losses = objective(model, data)
    found = [squares(g) for g in from_batch(model, objective, data, losses, list(model.parameters()))]
    assert len(found) == 5
    for j, row in enumerate(found):
        model.zero_grad()
        cross_entropy(model(data[0][j : j + 1]), data[1][j : j + 1]).backward()
        expected = [0.0 if p.grad is None else float(p.grad.to_dense().square().sum()) for p in model.parameters()]
        assert error(row, expected) < EXACT
    report = norm_substitution(model, OBJECTIVE, [data])
    assert {t.name for t in report.tensors if t.ratio is None} == {"idle.weight", "idle.bias"}


class Attentive(nn.Module):
    """Its keys' bias adds the same to every score of a query: the gradient cancels. The queries' are merely small."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
        self.out = nn.Linear(6, 3)
        self.query.weight.data *= 1e-6

    def forward(self, x):
        x = x.view(len(x), 1, 6) + torch.eye(6, dtype=x.dtype)
        chances = (self.query(x) @ self.key(x).mT).softmax(2)
        return self.out((chances @ self.value(x)).mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_that_cancel_have_no_ratio_and_small_ones_have(dtype):
    torch.manual_seed(0)
    model = Attentive().to(dtype)
    for report, number in ((norm_substitution, "ratio"), (fisher_substitution, "difference")):
        found = report(model, OBJECTIVE, [batch(dtype)])
        assert [t.name for t in found.tensors if getattr(t, number) is None] == ["key.bias"]


def test_products_equal_dense_matrices():
    model, (x, y) = network(), batch(rows=12)
    rows = example_gradients(model, x, y)
    dense = dense_hessian(model, x, y), rows.T @ rows / 12
    v = torch.randn(53, dtype=torch.float64)
    batches = in_batches(x, y, (5, 7))
    with examined(model) as named:
        found = [Products(model, OBJECTIVE, batches, named, kind)(v) for kind in ("hessian", "empirical_fisher")]
    for matrix, product in zip(dense, found, strict=True):
        assert error(product, matrix @ v) < EXACT


def test_fisher_report_agrees_with_dense_matrices():
    model, (x, y) = network(), batch(rows=12)
    found = fisher_substitution(model, OBJECTIVE, in_batches(x, y, (5, 7)), probes=400, iterations=200)
    rows = example_gradients(model, x, y)
    H, F = dense_hessian(model, x, y), rows.T @ rows / 12  # noqa: N806
    for t, h, f in zip(found.tensors, H.diagonal().split(SIZES), F.diagonal().split(SIZES), strict=True):
        assert t.fisher == pytest.approx(float(f.sum()), rel=EXACT)
        assert abs(t.hessian - float(h.sum())) < 4 * t.hessian_error
        assert t.difference == pytest.approx((t.fisher - t.hessian) / abs(t.hessian))
    assert found.fisher_trace == pytest.approx(float(F.trace()), rel=EXACT)
    spread = (2 * (H.square().sum() - H.diagonal().square().sum())).sqrt() / math.sqrt(400)
    assert found.hessian_trace_error == pytest.approx(float(spread), rel=0.2)
    assert abs(found.hessian_trace - float(H.trace())) < 4 * spread
    tops = [float(torch.linalg.eigvalsh(matrix)[-1]) for matrix in (H, F)]
    assert [found.hessian_top, found.fisher_top] == pytest.approx(tops, rel=1e-3)
    assert found.top_ratio == pytest.approx(tops[1] / tops[0], rel=2e-3)
    # 400 probes: a relative error of 1 / sqrt(400), less what the two sides have in common
    assert found.distance == pytest.approx(float((H - F).norm() / H.norm()), rel=0.05)
    assert found.cosine == pytest.approx(float((H * F).sum() / (H.norm() * F.norm())), abs=0.05)


def drawn(model, rows, seed=3):
    """Examples whose labels the model itself draws."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    chances = model(x).detach().softmax(1)
    return x, torch.multinomial(chances, 1, generator=generator)[:, 0]


@pytest.mark.slow
def test_labels_of_the_model_itself_make_the_fisher_the_hessian():
    """Both then converge to the Gauss-Newton matrix, at the rate 1 / sqrt(examples); false labels stay away from it."""
    model = network()
    few, many = (drawn(model, rows) for rows in (100, 10_000))

    def distance(x, y):
        return fisher_substitution(model, OBJECTIVE, in_batches(x, y, 100), probes=4, iterations=1).distance

    distances = [distance(*few), distance(*many)]
    assert distances[1] < 0.1
    assert 4 < distances[0] / distances[1] < 25
    x, y = many
    assert distance(x, (y + x[:, 0].gt(0)) % 3) > 3 * distances[1]


@pytest.mark.parametrize(("values", "top"), [((3.0, 1.0, -2.0), 3.0), ((-5.0, 1.0, 2.0), 2.0), ((-1.0, -2.0), -1.0)])
def test_the_largest_eigenvalue_is_the_highest_not_the_farthest(values, top):
    matrix = torch.diag(torch.tensor(values, dtype=torch.float64))
    found, residual = top_eigenvalue(lambda v: matrix @ v, torch.ones(len(values), dtype=torch.float64), 200)
    assert found == pytest.approx(top, rel=1e-3)
    assert residual < 1e-2


def test_a_hessian_of_zero_is_said_to_be_zero():
    model = nn.Linear(3, 1, bias=False).double()
    objective = Objective(lambda m, b: m(b), lambda outputs, b: outputs[:, 0])
    found = fisher_substitution(model, objective, [torch.randn(4, 3, dtype=torch.float64)])
    assert (found.hessian_top, found.distance, found.top_ratio) == (0, None, None)
    assert "is zero" in found.sentence
    assert found.tensors[0].difference is None


def test_reports_are_plain_and_say_their_numbers():
    model, data = network(torch.float32), [batch(torch.float32)]
    model.train()
    weights = [p.detach().clone() for p in model.parameters()]
    for report in (norm_substitution(model, OBJECTIVE, data), fisher_substitution(model, OBJECTIVE, data)):
        saved = json.loads(json.dumps(report.as_json(), allow_nan=False))
        assert saved["tensors"][0]["name"] == "0.weight"
        assert saved["sentence"] == report.sentence
        number = report.factor if hasattr(report, "factor") else report.distance
        assert f"{number:.3g}" in report.sentence
    assert fisher_substitution(model, OBJECTIVE, data) == report
    assert model.training
    assert same_bits(weights, [p.detach() for p in model.parameters()])


def test_ranks():
    assert rank_correlation([1, 2, 3], [10, 30, 20]) == pytest.approx(0.5)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2], [5, 5, 7]) == pytest.approx(1)
    assert rank_correlation([1], [2]) is None


@torch.no_grad()
def without_gradients(model, batch):
    return model(batch[0])


@pytest.mark.parametrize("function", [norm_substitution, fisher_substitution])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((OBJECTIVE, []), "batches is empty"),
        ((OBJECTIVE, iter([])), r"list\(batches\)"),
        ((Objective(without_gradients, CrossEntropy()), [batch()]), "do not depend on any weight"),
        ((Objective(lambda m, b: m(b[0]) / 0, SquaredError()), [(batch()[0], torch.ones(12, 3))]), "not finite"),
    ],
)
def test_bad_input_gets_one_sentence(function, arguments, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        function(network(), *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"), [({"probes": 1}, "probes must be"), ({"iterations": 0}, "iterations must be")]
)
def test_bad_numbers_of_probes_get_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        fisher_substitution(network(), OBJECTIVE, [batch()], **options)


def test_losses_without_gradients_are_told():
    objective = Objective(OBJECTIVE.forward, lambda outputs, b: outputs.sum(1) * 0)
    with pytest.raises(ValueError, match="no tensor has a gradient"):
        norm_substitution(network(), objective, [batch()])
