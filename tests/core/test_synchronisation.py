"""No step of the default path asks the device for a number: a fake tensor has none to give."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, asam, friendly_sam, ga_sam, gsam, look_sam, sam, wsam
from gasam.perturbation import GRANULARITIES
from problems import batch


def still_fake(trace) -> None:
    """Nobody asked for a number on the way, and what is traced still has none."""
    assert len(trace.losses) > 1
    assert all(isinstance(value, FakeTensor) for value in (*trace.losses, *trace.norms[1:], trace.active))


def run(entry, perturbation, after=still_fake) -> None:
    """A step on fake tensors: anything that depends on data raises."""
    data = batch(torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 300), nn.Linear(300, 3))
        x, y = torch.empty_like(data[0]), torch.zeros_like(data[1])
        after(entry(model, perturbation, lambda: cross_entropy(model(x), y)))


def through_backward(model, perturbation, loss):
    sharp = SharpBackward(model.named_parameters(), perturbation)
    sharp(loss)
    return sharp.last


def through_closure(model, perturbation, loss):
    optimizer = SharpnessAware(torch.optim.SGD(model.named_parameters(), lr=0.1), perturbation)

    def closure():
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    return optimizer.last


@pytest.mark.parametrize("entry", [through_backward, through_closure])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("steps", [1, 2])
def test_walk_never_synchronises(entry, granularity, norm, steps):
    run(entry, dataclasses.replace(ga_sam(0.1, norm, steps), granularity=granularity))


@pytest.mark.parametrize("perturbation", [sam(0.1), asam(0.1, eta=0.01, unit_vectors=True)], ids=["sam", "asam"])
def test_presets_never_synchronise(perturbation):
    run(through_backward, perturbation)


@pytest.mark.parametrize("entry", [through_backward, through_closure])
@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("preset", [gsam, wsam, friendly_sam, look_sam])
def test_functions_of_a_method_never_synchronise(entry, norm, preset):
    run(entry, preset(0.1, norm))


def test_a_step_between_walks_never_synchronises():
    data = batch(torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Linear(6, 3)
        x, y = torch.empty_like(data[0]), torch.zeros_like(data[1])
        sharp = SharpBackward(model, look_sam(0.1))
        for _ in range(7):
            sharp(lambda: cross_entropy(model(x), y))
        assert len(sharp.last.losses) == 1


def test_printing_the_trace_does():
    with pytest.raises(DataDependentOutputException):
        run(through_backward, ga_sam(0.1), after=str)
