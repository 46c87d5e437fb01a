"""Faults in the walk that once lost something."""

import warnings

import pytest
import torch
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, SharpnessAware, ga_sam
from gasam.portions import Portion
from gasam.schedule import Clock
from gasam.watch import Watch
from gasam.weights import run_again_if_interrupted
from problems import batch, network
from tolerances import same_bits


class Once:
    """Calls a method, and raises the first time instead, or after it."""

    def __init__(self, monkeypatch, owner, name, failure, after=False):
        self.raised = False
        original = getattr(owner, name)

        def failing(inner, *args, **kwargs):
            found = original(inner, *args, **kwargs) if self.raised or after else None
            if not self.raised:
                self.raised = True
                raise failure
            return found

        monkeypatch.setattr(owner, name, failing)


def test_portion_that_fails_once_is_restored(monkeypatch):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    Once(monkeypatch, Portion, "restore", RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), before)


def test_walk_after_one_that_could_not_be_restored_starts_from_the_present_weights(monkeypatch):
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))

    def never(self):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(Portion, "restore", never)
        with pytest.raises(RuntimeError, match="out of memory"):
            sharp(lambda: cross_entropy(model(x), y))
    left = [p.detach().clone() for p in model.parameters()]
    sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), left)


@pytest.mark.parametrize(("owner", "name"), [(Watch, "add"), (Clock, "after"), (Clock, "_end_step")])
@pytest.mark.parametrize("after", [False, True])
def test_failure_after_the_walk_undoes_the_step(owner, name, after, monkeypatch):
    model, (x, y) = network(), batch()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    gradients = [p.grad.clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1), schedule=Schedule(warmup=3, progress=0.2))
    sharp.load_state_dict(sharp.state_dict() | {"initial": 2.0, "smoothed": 1.0})
    state = sharp.state_dict()
    Once(monkeypatch, owner, name, KeyboardInterrupt, after)
    with pytest.raises(KeyboardInterrupt):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits([p.grad for p in model.parameters()], gradients)
    assert sharp.state_dict() == state


@pytest.mark.parametrize("name", ["after", "_end_step"])
@pytest.mark.parametrize("after", [False, True])
def test_step_is_neither_made_nor_counted_if_the_count_is_interrupted(name, after, monkeypatch):
    model, (x, y) = network(), batch()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1), schedule=Schedule(warmup=3))

    def closure():
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    before = [p.detach().clone() for p in model.parameters()]
    Once(monkeypatch, Clock, name, KeyboardInterrupt, after)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert optimizer.clock.state.step == 0
    assert same_bits(model.parameters(), before)


def test_interrupt_just_before_the_gradients_are_undone(monkeypatch):
    """The cleanup is cut off before it has begun."""
    model = network()
    calls = []

    def cut_off(action):
        calls.append(action)
        if len(calls) == 1:
            raise KeyboardInterrupt
        run_again_if_interrupted(action)

    def failing():
        monkeypatch.setattr("gasam.weights.run_again_if_interrupted", cut_off)
        raise ValueError

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        sharp(failing)
    assert calls
    assert all(p.grad is not None and (p.grad == 1).all() for p in model.parameters())
