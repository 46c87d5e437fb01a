"""Mean gradient norms of epochs: equal to torch's, absent where there is no gradient, resumable to the bit."""

import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn.functional import cross_entropy

from gasam.analysis.gradients import GradientNorms, transformer_layers
from problems import batch, network
from tolerances import EXACT, SINGLE, error, same_bits


def train(model, steps=6, record=lambda epoch: None, start=0, optimizer=None):
    """Train with two steps in each epoch; return the optimizer."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = batch(next(model.parameters()).dtype, rows=12)
    for step in range(start, steps):
        optimizer.zero_grad()
        rows = slice(6) if step % 2 else slice(6, 12)
        cross_entropy(model(x[rows]), y[rows]).backward()
        record(1 + step // 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    return optimizer


def test_norms_are_the_means_of_torchs_and_recording_changes_nothing():
    plain, model, seen = network(), network(), []
    norms = GradientNorms(model)

    def record(epoch):
        seen.append({name: float(torch.linalg.vector_norm(p.grad)) for name, p in model.named_parameters()})
        norms.record(epoch)

    train(plain)
    train(model, record=record)
    assert same_bits(plain.parameters(), model.parameters())
    assert [mean.epoch for mean in norms.by_epoch()] == [1, 2, 3]
    for mean, first, second in zip(norms.by_epoch(), seen[::2], seen[1::2], strict=True):
        assert mean.tensors == pytest.approx({name: (first[name] + second[name]) / 2 for name in first}, rel=EXACT)
        assert mean.whole == pytest.approx((math.hypot(*first.values()) + math.hypot(*second.values())) / 2, rel=EXACT)
        for layer in ("0", "2"):
            parts = [math.hypot(step[f"{layer}.weight"], step[f"{layer}.bias"]) for step in (first, second)]
            assert mean.layers[layer] == pytest.approx(sum(parts) / 2, rel=EXACT)
    assert norms.mean(2) == norms.by_epoch()[1]


def test_large_and_low_precision_tensors_are_summed_accurately():
    weights = nn.ParameterDict(
        {
            "large": torch.zeros(3_000_000),
            "low": torch.zeros(70, 30, dtype=torch.float16),
            "wide": torch.zeros(40, dtype=torch.float64),
        }
    )
    for weight in weights.values():
        weight.grad = (1 + torch.randn(weight.shape)).to(weight.dtype)
    weights["low"].grad = 300 * weights["low"].grad.t().contiguous().t()
    norms = GradientNorms(weights, str.upper)
    norms.record(1)
    expected = [float(weight.grad.double().norm()) for weight in weights.parameters()]
    assert error(list(norms.mean(1).tensors.values()), expected) < SINGLE / 20
    assert norms.mean(1).layers == {name.upper(): norm for name, norm in norms.mean(1).tensors.items()}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.encoder.layers.3.fc1.weight", "encoder 4"),
        ("decoder.block.2.layer.0.SelfAttention.relative_attention_bias.weight", "decoder 3"),
        ("transformer.h.5.mlp.c_fc.weight", "layer 6"),
        ("model.shared.weight", "embeddings"),
        ("lm_head.weight", "other"),
    ],
)
def test_layers_of_a_transformer(name, layer):
    assert transformer_layers(name) == layer


def test_recording_never_synchronises():
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(nn.Linear(6, 200), nn.Linear(200, 3))
        norms = GradientNorms(model)
        model(torch.empty(5, 6)).sum().backward()
        model[1].bias.grad = None
        norms.record(1)
        assert isinstance(norms.state_dict()["epochs"][1][0], FakeTensor)
        with pytest.raises(DataDependentOutputException):
            norms.by_epoch()


def test_a_tensor_without_gradient_is_absent_and_one_that_is_not_finite_affects_no_other_layer():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2, bias=False)})
    norms = GradientNorms(model)
    model["a"].weight.grad = torch.full((2, 2), 3.0)
    model["a"].bias.grad = torch.zeros(2)
    norms.record(1)
    model["a"].weight.grad = None
    model["b"].bias.grad = torch.tensor([3.0, 4.0])
    norms.record(1)
    [mean] = norms.by_epoch()
    assert mean.tensors == {"a.weight": 6, "a.bias": 0, "b.weight": None, "b.bias": 5, "c.weight": None}
    assert mean.layers == {"a": 3, "b": 5, "c": None}
    assert mean.whole == 5.5
    model["a"].bias.grad[0] = math.nan
    norms.record(2)
    assert norms.mean(2).layers == {"a": None, "b": 5, "c": None}
    assert norms.mean(2).whole is None


def test_sparse_gradients_count_rows_that_come_twice_together():
    words = torch.tensor([1, 4, 1, 1, 0])
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(9, 4, sparse=sparse)
        (table(words) @ torch.arange(4.0)).square().sum().backward()
        norms = GradientNorms(table)
        norms.record(1)
        found.append(norms.mean(1).tensors["weight"])
        assert table.weight.grad.is_sparse == sparse
    assert found[0] == pytest.approx(found[1], rel=SINGLE)


def test_resumed_recording_equals_one_never_stopped(tmp_path):
    model = network(torch.float32)
    whole = GradientNorms(model)
    train(model, 6, whole.record)

    model = network(torch.float32)
    before = GradientNorms(model)
    optimizer = train(model, 3, before.record)
    torch.save(before.state_dict(), tmp_path / "norms.pt")
    before.record(9)  # after saving
    after = GradientNorms(model)
    after.load_state_dict(torch.load(tmp_path / "norms.pt", weights_only=True))
    train(model, 6, after.record, start=3, optimizer=optimizer)
    assert after.by_epoch() == whole.by_epoch()
    left, right = ([total for total, _ in norms.state_dict()["epochs"].values()] for norms in (after, whole))
    assert same_bits(left, right)
