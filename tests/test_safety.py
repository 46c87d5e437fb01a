"""Whatever happens in a pass: the weights come home bit for bit, and nothing of the caller's is lost."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from gasam import Pass, SharpBackward, SharpnessAware, climb, displaced, ga_sam
from gasam.trace import CLIMBED
from problems import Wavy, batch, network
from tolerances import error, flat, same_bits

STEPS = 3


class FailsAt:
    """A loss function that fails in pass k, before or after its backward."""

    def __init__(self, model, k: int, failure: type[BaseException]) -> None:
        self.model, self.k, self.failure, self.calls = model, k, failure, 0

    def __call__(self):
        x, y = batch()
        self.calls += 1
        if self.calls == self.k + 1:
            raise self.failure
        return cross_entropy(self.model(x), y)


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("k", range(STEPS + 1))
@pytest.mark.parametrize("norm", [2.0, math.inf])
def test_failure_in_any_pass_leaves_weights_and_gradients(failure, k, norm, small_portions):
    model = network()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    weights = [p.detach().clone() for p in model.parameters()]
    gradients = [p.grad.clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, norm=norm, steps=STEPS))
    with pytest.raises(failure):
        sharp(FailsAt(model, k, failure))
    assert same_bits(model.parameters(), weights)
    assert same_bits([p.grad for p in model.parameters()], gradients)
    sharp(FailsAt(model, -1, failure))  # and the next call works
    assert same_bits(model.parameters(), weights)


@pytest.mark.parametrize("k", range(STEPS + 1))
def test_failure_in_backward_leaves_weights_and_gradients(k):
    model = network()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=STEPS))
    weights = [p.detach().clone() for p in model.parameters()]
    calls = []

    def backward(loss):
        loss.backward()
        calls.append(loss)
        if len(calls) == k + 1:
            raise KeyboardInterrupt

    sharp.backward = backward
    with pytest.raises(KeyboardInterrupt):
        sharp(FailsAt(model, -1, ValueError))
    assert same_bits(model.parameters(), weights)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("moment", ["displace", "restore"])
@pytest.mark.parametrize("occurrence", [0, 1, 3])
def test_interrupt_while_weights_are_written(moment, occurrence, small_portions, monkeypatch):
    """The interrupt comes between two stretches, where some are moved and some are not, or some are home again."""
    from gasam.portions import Portion

    model = network()
    weights = [p.detach().clone() for p in model.parameters()]
    original, seen = getattr(Portion, moment), []

    def interrupted(self, *args):
        original(self, *args)
        seen.append(self)
        if len(seen) == occurrence + 1:
            raise KeyboardInterrupt

    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(FailsAt(model, -1, ValueError))  # the buffers now hold an older home
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    weights = [p.detach().clone() for p in model.parameters()]
    monkeypatch.setattr(Portion, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        sharp(FailsAt(model, -1, ValueError))
    assert len(seen) > occurrence
    assert same_bits(model.parameters(), weights)


def test_abandoned_walk_goes_home():
    problem = Wavy()
    parameters = problem.parameters()
    before = [p.detach().clone() for p in parameters.values()]

    def evaluate(k: int) -> Pass:
        loss = problem.loss(parameters)
        loss.backward()
        return Pass(loss.detach())

    visits = climb(list(parameters.values()), evaluate, ga_sam(0.1, steps=5))
    next(visits), next(visits)
    assert not same_bits(parameters.values(), before)
    del visits
    assert same_bits(parameters.values(), before)


def test_displaced_holds_the_offset_and_restores_on_failure():
    weights = [torch.randn(3, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
    before = [w.detach().clone() for w in weights]
    offset = [torch.randn_like(w) for w in before]

    def interrupted() -> None:
        with displaced(weights, offset):
            assert error(flat(weights), flat(before) + flat(offset)) < 1e-6
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert same_bits(weights, before)


def test_walk_within_a_walk_is_refused():
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    with pytest.raises(RuntimeError, match="on a walk already"):
        sharp(lambda: sharp(lambda: cross_entropy(model(x), y)))
    assert same_bits(model.parameters(), before)


@pytest.mark.parametrize("k", range(3))
def test_closure_that_fails_leaves_weights_and_the_base_as_they_were(k):
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    base = torch.optim.Adam(model.parameters())
    optimizer = SharpnessAware(base, ga_sam(0.1, steps=2))
    failing = FailsAt(model, k, KeyboardInterrupt)

    def closure():
        loss = failing()
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert same_bits(model.parameters(), before)
    assert not base.state


def test_gradients_survive_a_failure_to_set_them_aside():
    """Memory may run out while the caller's gradients are copied: none of them is lost."""
    model, (x, y) = network(), batch()

    class Unwilling(torch.Tensor):
        def clone(self, *args, **kwargs):
            raise MemoryError

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].bias.grad = torch.ones_like(model[0].bias).as_subclass(Unwilling)
    with pytest.raises(MemoryError):
        SharpBackward(model.parameters(), ga_sam(0.1))(lambda: cross_entropy(model(x), y))
    assert all(p.grad is not None and (p.grad == 1).all() for p in model.parameters())


@pytest.mark.parametrize("where", ["first", "second"])
def test_interrupt_on_the_way_home(where, monkeypatch):
    """Ctrl-C as the walk turns home, before anything was put back; and another walk afterwards."""
    from gasam.weights import Weights

    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    original, calls = Weights.restore, []

    def interrupted(self):
        calls.append(self)
        if len(calls) <= (1 if where == "first" else 2):
            raise KeyboardInterrupt
        original(self)

    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    monkeypatch.setattr(Weights, "restore", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), before)
    monkeypatch.undo()
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.active == CLIMBED


def test_refused_walk_keeps_the_gradients():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    before = [p.grad.clone() for p in model.parameters()]
    sharp.weights.walking = True
    with pytest.raises(RuntimeError, match="on a walk already"):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits([p.grad for p in model.parameters()], before)
