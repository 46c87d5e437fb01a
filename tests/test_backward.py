"""SharpBackward: what it returns, what it leaves behind, and what it says to mistakes."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, asam, ga_sam, sam
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


@pytest.fixture
def parts():
    model, (x, y) = network(), batch()
    return model, lambda: cross_entropy(model(x), y)


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
def test_off_is_plain_backward_bit_for_bit(parts, off):
    model, loss = parts
    loss().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    calls = []
    sharp = SharpBackward(model.parameters(), ga_sam(0.0 if off == "epsilon" else 0.1, steps=3))
    sharp.enabled = off != "enabled"
    sharp.around = lambda k, last: calls.append((k, last)) or torch.enable_grad()
    sharp(loss)
    assert same_bits([p.grad for p in model.parameters()], plain)
    assert calls == [(0, True)]
    assert str(sharp.last).startswith("off")


def test_clean_loss_is_returned_without_a_graph(parts):
    model, loss = parts
    expected = loss().item()
    result = SharpBackward(model.parameters(), ga_sam(0.1))(loss)
    assert result.item() == expected
    assert not result.requires_grad


def test_whatever_comes_with_the_loss_is_returned_from_the_clean_pass(parts):
    model, loss = parts
    calls = []

    def with_more():
        calls.append(len(calls))
        return loss(), {"pass": calls[-1]}, "text"

    result, more, text = SharpBackward(model.parameters(), ga_sam(0.1, steps=2))(with_more)
    assert (more, text) == ({"pass": 0}, "text")
    assert calls == [0, 1, 2]
    assert not result.requires_grad


def test_loss_of_shape_one_is_a_number(parts):
    model, loss = parts
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(lambda: loss().reshape(1))
    assert sharp.last.sharpness.shape == ()


def test_trace_says_what_happened(parts):
    model, loss = parts
    sharp = SharpBackward(model.named_parameters(), sam(0.1), detailed=True)
    assert sharp.last is None
    sharp(loss)
    trace = sharp.last
    assert [norm.item() for norm in trace.norms] == pytest.approx([0.0, 0.1])
    assert trace.sharpness.item() == pytest.approx((trace.losses[1] - trace.losses[0]).item())
    assert trace.sharpness > 0
    assert str(trace).startswith("fine; losses ")
    size = flat(model.parameters()).norm().item()
    assert trace.metrics()["perturbation_ratio"] == pytest.approx(0.1 / size)


@pytest.mark.parametrize(("granularity", "labels"), [
    ("element", ["0.weight", "0.bias", "2.weight", "2.bias"]),
    ("layer", ["0.weight", "0.bias", "2.weight", "2.bias"]),
    ("module", ["0", "2"]),
    ("model", ["0.weight", "0.bias", "2.weight", "2.bias"]),
    ("filter", [f"0.weight[{i}]" for i in range(5)] + ["0.bias"] + [f"2.weight[{i}]" for i in range(3)] + ["2.bias"]),
])  # fmt: skip
def test_detail_has_a_ratio_for_each_group(parts, granularity, labels):
    model, loss = parts
    perturbation = dataclasses.replace(ga_sam(0.01, norm=2.0), granularity=granularity)
    sharp = SharpBackward(model.named_parameters(), perturbation, detailed=True)
    moved = []

    def remembering():
        moved.append([p.detach().clone() for p in model.parameters()])
        return loss()

    sharp(remembering)
    home, displaced = moved
    ratios = dict(zip(sharp.last.detail.labels, sharp.last.detail.ratios.tolist(), strict=True))
    assert list(ratios) == labels
    if granularity == "layer":
        expected = [((b - a).norm() / a.norm()).item() for a, b in zip(home, displaced, strict=True)]
        assert list(ratios.values()) == pytest.approx(expected, rel=1e-6)
    assert sharp.last.detail.realised_cosine.item() == pytest.approx(1.0)
    assert sharp.last.detail.realised_norm.item() == pytest.approx(sharp.last.norms[-1].item())
    assert all(label in str(sharp.last) for label in labels)


def test_around_surrounds_every_pass_with_its_backward(parts):
    model, loss = parts
    events = []

    class Context:
        def __init__(self, k, last):
            self.name = (k, last)

        def __enter__(self):
            events.append(("in", *self.name))

        def __exit__(self, *_):
            events.append(("out", *self.name))

    def backward(value):
        events.append("backward")
        value.backward()

    SharpBackward(model.parameters(), ga_sam(0.1, steps=2), around=Context, backward=backward)(loss)
    expected = [[("in", k, k == 2), "backward", ("out", k, k == 2)] for k in range(3)]
    assert events == [event for pass_ in expected for event in pass_]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("steps", [1, 2])
def test_activation_checkpointing_changes_nothing(use_reentrant, steps):
    x, y = batch()
    x.requires_grad_()
    gradients = []
    for run in (lambda m: m(x), lambda m: checkpoint(m, x, use_reentrant=use_reentrant)):
        model = network()
        SharpBackward(model.parameters(), ga_sam(0.1, steps=steps))(lambda m=model, r=run: cross_entropy(r(m), y))
        gradients.append(flat([p.grad for p in model.parameters()]))
    assert error(*gradients) < EXACT


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_work_on_their_own_model(copier):
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), asam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    twin, twin_sharp = copier((model, sharp))
    model.zero_grad()
    twin.zero_grad()
    sharp(lambda: cross_entropy(model(x), y))
    twin_sharp(lambda: cross_entropy(twin(x), y))
    assert same_bits([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_optimizer_groups_can_be_given(parts):
    model, loss = parts
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "perturb": False}, {"params": model[2].parameters()}], lr=0.1
    )
    sharp = SharpBackward(optimizer.param_groups, ga_sam(0.1))
    sharp(loss)
    assert len(sharp.weights.tensors) == 2
    assert all(p.grad is not None for p in model.parameters())


MISTAKES = {
    "returns nothing": (lambda m: None, TypeError, "got NoneType: is a `return` missing"),
    "returns a number": (
        lambda m: 1.0,
        TypeError,
        "or an output with a loss, got float",
    ),
    "returns an empty tuple": (lambda m: (), TypeError, "got tuple"),
    "not a single number": (lambda m: m(batch()[0]), ValueError, "single number, got the shape .12, 3."),
    "no graph": (lambda m: m(batch()[0]).mean().detach(), RuntimeError, "no graph"),
    "another model": (lambda m: network()(batch()[0]).mean(), RuntimeError, "no parameter got a gradient"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistaken_loss_functions_are_told(name):
    function, kind, words = MISTAKES[name]
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(kind, match=words):
        SharpBackward(model.parameters(), ga_sam(0.1))(lambda: function(model))
    assert same_bits(model.parameters(), before)


def test_loss_function_that_calls_backward_is_told(parts):
    model, loss = parts

    def backs():
        value = loss()
        value.backward(retain_graph=True)
        return value

    with pytest.raises(RuntimeError, match="loss function called backward"):
        SharpBackward(model.parameters(), ga_sam(0.1))(backs)


def test_backward_that_does_nothing_is_told(parts):
    model, loss = parts
    with pytest.raises(RuntimeError, match="backward did not differentiate the loss"):
        SharpBackward(model.parameters(), ga_sam(0.1), backward=lambda value: None)(loss)


def test_call_without_gradients_is_told(parts):
    model, loss = parts
    with pytest.raises(RuntimeError, match=r"torch\.no_grad"), torch.no_grad():
        SharpBackward(model.parameters(), ga_sam(0.1))(loss)


CLOSURES = {
    "returns nothing": (lambda loss: loss().backward(), TypeError, "must return the loss"),
    "returns a pair": (lambda loss: (loss().backward(), 1), TypeError, "a single number, got tuple"),
    "never calls backward": (lambda loss: loss(), RuntimeError, "call loss.backward"),
}


@pytest.mark.parametrize("name", CLOSURES)
def test_mistaken_closures_are_told(name, parts):
    model, loss = parts
    closure, kind, words = CLOSURES[name]
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1))
    with pytest.raises(kind, match=words):
        optimizer.step(lambda: closure(loss))
    assert same_bits(model.parameters(), before)


def test_losses_grow_along_the_walk(parts):
    """Five small steps uphill on a smooth loss: each visit is higher than the one before."""
    model, loss = parts
    sharp = SharpBackward(model.parameters(), ga_sam(0.02, norm=math.inf, steps=5))
    sharp(loss)
    losses = torch.stack(sharp.last.losses)
    assert (losses.diff()[:3] > 0).all()
