"""SharpBackward: what it returns, and what it leaves in `.grad`."""

from collections import namedtuple
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, ga_sam, sam
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
    assert sharp.last.verdict().startswith("off")


Output = namedtuple("Output", ["loss", "logits"])


def hugging_face_output(loss):
    return pytest.importorskip("transformers.modeling_outputs").SequenceClassifierOutput(loss=loss)


FORMS = {
    "loss": (lambda loss: loss, lambda found: found),
    "shape one": (lambda loss: loss.reshape(1), lambda found: found),
    "tuple": (lambda loss: (loss, "text"), lambda found: found[0]),
    "dictionary": (lambda loss: {"loss": loss, "rows": 12}, lambda found: found["loss"]),
    "mapping": (lambda loss: MappingProxyType({"loss": loss}), lambda found: found["loss"]),
    "hugging face": (lambda loss: hugging_face_output(loss), lambda found: found.loss),
    "namedtuple": (lambda loss: Output(loss, 1), lambda found: found.loss),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_the_clean_pass_returned_comes_back_without_a_graph(parts, form):
    model, loss = parts
    make, read = FORMS[form]
    calls, made = [], []

    def function():
        calls.append(loss())
        made.append(make(calls[-1]))
        return made[-1]

    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2))
    found = sharp(function)
    assert len(calls) == 3
    assert read(found).item() == calls[0].item()
    assert not read(found).requires_grad
    assert type(found) is type(made[0]) or form == "mapping"
    assert read(made[0]).requires_grad  # the function's own result is not changed
    assert sharp.last.sharpness.shape == ()


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


class TestCallersGradients:
    @pytest.mark.parametrize("weight", [1.0, 4.0])
    @pytest.mark.parametrize("perturbation", [ga_sam(0.1), sam(0.1), ga_sam(0.1, steps=3)], ids=["1", "final", "3"])
    def test_a_flat_buffer_gets_the_gradient(self, perturbation, weight):
        model, (x, y), schedule = network(), batch(), Schedule(weight=weight)
        expected = network()
        SharpBackward(expected, perturbation, schedule=schedule)(lambda: cross_entropy(expected(x), y))
        sizes = [p.numel() for p in model.parameters()]
        buffer = torch.full((sum(sizes),), 2.0, dtype=torch.float64)
        for parameter, part in zip(model.parameters(), buffer.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        SharpBackward(model, perturbation, schedule=schedule)(lambda: cross_entropy(model(x), y))
        assert error(buffer, 2.0 + flat([p.grad for p in expected.parameters()])) < EXACT

    @pytest.mark.parametrize("kind", ["requires grad", "expanded"])
    def test_unusual_gradients_are_added_to(self, kind):
        a = nn.Parameter(torch.randn(3))
        a.grad = torch.ones(3, requires_grad=True) if kind == "requires grad" else torch.ones(1).expand(3)
        SharpBackward([a], sam(0.1))(lambda: 2 * a.sum())
        assert torch.equal(a.grad.detach(), torch.full((3,), 3.0))

    @pytest.mark.parametrize("steps", [1, 3])
    def test_two_parameters_may_share_one_gradient(self, steps):
        a, b, shared = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2)), torch.zeros(2)
        a.grad = b.grad = shared
        SharpBackward([a, b], ga_sam(0.1, steps=steps))(lambda: 3 * a.sum() + 5 * b.sum())
        assert torch.allclose(shared, torch.full((2,), 8.0))
