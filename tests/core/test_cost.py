"""What a call may not cost: waiting for the device, and memory of gradients that nobody needs any more."""

import dataclasses
import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, asam, friendly_sam, ga_sam, gsam, look_sam, sam, wsam
from problems import ENTRIES, TEN_WALKS, batch, through_backward, through_closure

METHODS = {
    "gsam": gsam(0.1),
    "wsam": wsam(0.1, 1.5),
    "friendly_sam": friendly_sam(0.1, math.inf),
    "eta": asam(0.1, eta=1),
}


def run(entry, perturbation):
    """A step on fake tensors, which have no number to give: anything that depends on data raises."""
    data = batch(torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 300), nn.Linear(300, 3))
        x, y = torch.empty_like(data[0]), torch.zeros_like(data[1])
        return entry(model, perturbation, loss=lambda: cross_entropy(model(x), y))[0]


@pytest.mark.filterwarnings("ignore:a budget without a cap")
@pytest.mark.parametrize("name", [*TEN_WALKS, *METHODS])
def test_walk_never_synchronises(name):
    walks = TEN_WALKS | METHODS
    trace = run((through_backward, through_closure)[list(walks).index(name) % 2], walks[name])
    assert len(trace.losses) > 1
    assert all(isinstance(value, FakeTensor) for value in (*trace.losses, *trace.norms[1:]))


def test_steps_between_walks_never_synchronise():
    def seven(model, perturbation, loss):
        sharp = SharpBackward(model, perturbation)
        for _ in range(7):
            sharp(loss)
        return [sharp.last]

    assert len(run(seven, look_sam(0.1)).losses) == 1


@pytest.fixture
def parts():
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))
    x, born = torch.randn(8, 40), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: born.append(weakref.ref(p.grad)))
    return model, born, lambda: model(x).square().mean()


def alive(born):
    return len({id(reference()) for reference in born if reference() is not None})


@pytest.fixture
def no_collector():
    """What waits for the collector in a cycle takes memory as well."""
    gc.disable()
    yield
    gc.enable()


WALKS = {
    "sam": sam(0.1),
    "sam, K = 3": dataclasses.replace(sam(0.1), steps=3),
    "asam": asam(0.1),
    "norm 3, K = 3": dataclasses.replace(sam(0.1, norm=3.0), steps=3),
    "friendly_sam": friendly_sam(0.1),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("name", WALKS)
@ENTRIES
def test_gradients_of_earlier_passes_are_gone_when_the_next_begins(parts, name, entry):
    model, born, loss = parts
    seen = []

    def counted():
        seen.append(alive(born))
        return loss()

    entry(model, WALKS[name], loss=counted)
    assert seen == [0] * (WALKS[name].steps + 1)
    assert alive(born) == 4  # the last pass's, for the optimizer


def test_last_keeps_no_graph_and_no_large_tensor(parts):
    model, _, loss = parts
    trace, _ = through_backward(model, ga_sam(0.1, steps=2), loss=loss)
    kept = [*trace.losses, *trace.norms]
    assert all(value.grad_fn is None and value.numel() == 1 and value.untyped_storage().nbytes() <= 8 for value in kept)
