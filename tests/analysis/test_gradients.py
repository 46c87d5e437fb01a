"""Gradient norms during training: right, never waiting for the device, absent where absent, resumable to the bit."""

import json
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn.functional import cross_entropy

from gasam.analysis.gradients import GradientNorms, transformer_layers
from problems import batch, network
from tolerances import EXACT, SINGLE, error, same_bits


def train(model, steps=6, record=lambda **where: None, start=0, optimizer=None):
    """Some epochs of two steps each; gives the optimizer."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = batch(next(model.parameters()).dtype, rows=12)
    for step in range(start, steps):
        optimizer.zero_grad()
        rows = slice(6) if step % 2 else slice(6, 12)
        cross_entropy(model(x[rows]), y[rows]).backward()
        record(epoch=1 + step // 2, step=step % 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    return optimizer


def noted(model, into, **where):
    """What the recorder should find, by torch."""
    into.append({name: float(torch.linalg.vector_norm(p.grad)) for name, p in model.named_parameters()})


def test_norms_are_those_of_torch_by_step_and_by_epoch():
    model, expected = network(), []
    norms = GradientNorms(model)

    def record(**where):
        noted(model, expected)
        norms.record(**where)

    train(model, 6, record)
    found = norms.by_step()
    assert [(row.epoch, row.step) for row in found] == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    for row, right in zip(found, expected, strict=True):
        assert row.tensors == pytest.approx(right, rel=EXACT)
        assert row.whole == pytest.approx(math.hypot(*right.values()), rel=EXACT)
        assert row.layers == pytest.approx(
            {i: math.hypot(right[f"{i}.weight"], right[f"{i}.bias"]) for i in ("0", "2")}, rel=EXACT
        )
    means = norms.by_epoch()
    assert [mean.epoch for mean in means] == [1, 2, 3]
    for mean, first, second in zip(means, found[::2], found[1::2], strict=True):
        assert mean.step is None
        assert mean.whole == pytest.approx((first.whole + second.whole) / 2, rel=EXACT)
        for kind in ("tensors", "layers"):
            pairs = zip(getattr(first, kind).values(), getattr(second, kind).values(), strict=True)
            assert list(getattr(mean, kind).values()) == pytest.approx([(a + b) / 2 for a, b in pairs], rel=EXACT)
    assert norms.mean(2) == means[1]


def test_large_and_low_precision_tensors_are_summed_accurately():
    weights = {
        "large": nn.Parameter(torch.zeros(3_000_000)),
        "half": nn.Parameter(torch.zeros(70, 30, dtype=torch.float16)),
        "wide": nn.Parameter(torch.zeros(40, dtype=torch.float64)),
    }
    for weight in weights.values():
        weight.grad = (1 + torch.randn(weight.shape)).to(weight.dtype)
    weights["half"].grad = 300 * weights["half"].grad.t().contiguous().t()
    norms = GradientNorms(weights)
    norms.record(epoch=1, step=1)
    expected = [float(weight.grad.double().norm()) for weight in weights.values()]
    assert error(list(norms.by_step()[0].tensors.values()), expected) < SINGLE / 20


def test_layers_come_from_a_mapping_or_a_function_in_order_of_appearance():
    model = network()
    kinds = {name: name.split(".")[1] for name, _ in model.named_parameters()}
    for layers in (kinds, kinds.__getitem__):
        norms = GradientNorms(model.named_parameters(), layers)
        train(model, 1, norms.record)
        [row] = norms.by_step()
        assert list(row.layers) == ["weight", "bias"]
        for kind, norm in row.layers.items():
            parts = [value for name, value in row.tensors.items() if kinds[name] == kind]
            assert norm == pytest.approx(math.hypot(*parts), rel=EXACT)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.encoder.layers.3.fc1.weight", "encoder 4"),
        ("model.decoder.layers.0.encoder_attn.k_proj.bias", "decoder 1"),
        ("bert.encoder.layer.11.attention.self.query.weight", "encoder 12"),
        ("decoder.block.2.layer.0.SelfAttention.relative_attention_bias.weight", "decoder 3"),
        ("transformer.h.5.mlp.c_fc.weight", "layer 6"),
        ("model.layers.0.input_layernorm.weight", "layer 1"),
        ("model.encoder.embed_tokens.weight", "embeddings"),
        ("model.shared.weight", "embeddings"),
        ("transformer.wte.weight", "embeddings"),
        ("embeddings.LayerNorm.weight", "embeddings"),
        ("model.encoder.layer_norm.weight", "other"),
        ("lm_head.weight", "other"),
        ("convolutions.0.weight", "other"),
    ],
)
def test_layers_of_a_transformer(name, layer):
    assert transformer_layers(name) == layer


@pytest.mark.parametrize("every_step", [True, False])
def test_recording_never_synchronises(every_step):
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(nn.Linear(6, 200), nn.Linear(200, 3000), nn.Linear(3000, 3))
        norms = GradientNorms(model, every_step=every_step)
        for step in range(3):
            model.zero_grad()
            model(torch.empty(5, 6)).sum().backward()
            model[1].bias.grad = None
            norms.record(epoch=1, step=step)
        kept = norms.state_dict()
        assert isinstance(kept["epochs"][1][0], FakeTensor)
        with pytest.raises(DataDependentOutputException):
            norms.by_epoch()


def test_a_tensor_without_gradient_is_absent_and_not_zero():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2, bias=False)})
    norms = GradientNorms(model, every_step=True)
    model["a"].weight.grad = torch.full((2, 2), 3.0)
    model["a"].bias.grad = torch.zeros(2)
    norms.record(epoch=1, step=1)
    model["a"].weight.grad = None
    model["b"].bias.grad = torch.tensor([3.0, 4.0])
    norms.record(epoch=1, step=2)
    first, second = norms.by_step()
    assert first.tensors == {"a.weight": 6, "a.bias": 0, "b.weight": None, "b.bias": None, "c.weight": None}
    assert first.layers == {"a": 6, "b": None, "c": None}
    assert second.layers == {"a": 0, "b": 5, "c": None}
    [mean] = norms.by_epoch()
    assert mean.tensors == {"a.weight": 6, "a.bias": 0, "b.weight": None, "b.bias": 5, "c.weight": None}
    assert mean.layers == {"a": 3, "b": 5, "c": None}
    assert mean.whole == 5.5


def test_a_gradient_that_is_not_finite_is_seen_as_such_and_spoils_no_other_layer():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    norms = GradientNorms(model)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    model["a"].bias.grad[0] = math.nan
    norms.record(epoch=1, step=1)
    for row in (norms.by_step()[0], norms.by_epoch()[0]):
        assert row.tensors == {"a.weight": 2, "a.bias": None, "b.weight": 2, "b.bias": pytest.approx(2**0.5)}
        assert row.layers == {"a": None, "b": pytest.approx(6**0.5)}
        assert row.whole is None
    json.dumps(norms.as_json(), allow_nan=False)


def test_sparse_gradients_count_rows_that_come_twice_together():
    words = torch.tensor([1, 4, 1, 1, 0])
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(9, 4, sparse=sparse)
        (table(words) @ torch.arange(4.0)).square().sum().backward()
        norms = GradientNorms(table)
        norms.record(epoch=1, step=1)
        found.append(norms.by_step()[0].tensors["weight"])
        assert table.weight.grad.is_sparse == sparse
    assert found[0] == pytest.approx(found[1], rel=SINGLE)


@pytest.mark.parametrize("every_step", [True, False])
def test_resumed_recording_equals_one_never_stopped(every_step, tmp_path):
    model = network(torch.float32)
    whole = GradientNorms(model, every_step=every_step)
    train(model, 6, whole.record)

    model = network(torch.float32)
    before = GradientNorms(model, every_step=every_step)
    optimizer = train(model, 3, before.record)
    torch.save(before.state_dict(), tmp_path / "norms.pt")
    before.record(epoch=9, step=9)  # what was saved does not know of it
    after = GradientNorms(model, every_step=every_step)
    after.load_state_dict(torch.load(tmp_path / "norms.pt", weights_only=True))
    train(model, 6, after.record, start=3, optimizer=optimizer)
    assert after.as_json() == whole.as_json()
    left, right = after.state_dict(), whole.state_dict()
    assert same_bits([kept[0] for kept in left["epochs"].values()], [kept[0] for kept in right["epochs"].values()])
    assert len(after.as_json()["epochs"]) == 3


def test_recording_does_not_change_training():
    plain, watched = network(torch.float32), network(torch.float32)
    train(plain)
    norms = GradientNorms(watched)
    train(watched, record=norms.record)
    assert same_bits(list(plain.parameters()), list(watched.parameters()))
    assert len(norms.by_step()) == 6


def test_recording_follows_a_model_that_changes_its_type():
    model = network()
    norms = GradientNorms(model)
    train(model, 1, norms.record)
    model.float()
    train(model, 2, norms.record, start=1)
    assert [row.step for row in norms.by_step()] == [0, 1]


def twice(model):
    norms = GradientNorms(model)
    norms.record(epoch=1, step=3)
    norms.record(epoch=1, step=3)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda m: GradientNorms(nn.ReLU()), "no parameters to record"),
        (lambda m: GradientNorms(m.parameters()), "pairs of name and tensor, got a Parameter"),
        (lambda m: GradientNorms([("a", torch.ones(2)), ("a", torch.ones(2))]), "must differ"),
        (lambda m: GradientNorms({"a": torch.ones(2, dtype=torch.int64)}), "'a' must be .* got torch.int64"),
        (lambda m: GradientNorms(m, {"0.weight": "first"}), "'0.bias' is not in it"),
        (lambda m: GradientNorms(m, lambda name: 3), "must be a string, got 3 for '0.weight'"),
        (lambda m: GradientNorms(m, every_step=False).by_step(), "every_step=False"),
        (lambda m: GradientNorms(m).mean(2), "epoch must be one that was recorded"),
        (twice, "got 3 after 3 in epoch 1"),
        (lambda m: GradientNorms(m).load_state_dict(GradientNorms(nn.Linear(1, 1)).state_dict()), "its 'names'"),
        (lambda m: GradientNorms(m, str).load_state_dict(GradientNorms(m).state_dict()), "its 'labels'"),
        (lambda m: GradientNorms(m).load_state_dict(GradientNorms(m, every_step=False).state_dict()), "every_step"),
    ],
)
def test_bad_input_gets_one_sentence(action, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        action(network())
    assert "\n" not in str(caught.value)
