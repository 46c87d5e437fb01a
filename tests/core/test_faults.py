"""Faults in the walk that once lost something."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, SharpnessAware, ga_sam
from gasam.schedule import Clock
from gasam.trace import Watch
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
