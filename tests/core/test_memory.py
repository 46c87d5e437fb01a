"""What a walk no longer needs is freed before the next pass: a forgotten name would cost the size of the model."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import nn

from gasam import SharpBackward, SharpnessAware, asam, friendly_sam, ga_sam, sam


@pytest.fixture
def parts():
    model = nn.Sequential(nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 3))
    x = torch.randn(8, 40)
    born = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: born.append(weakref.ref(p.grad)))
    return model, born, lambda: model(x).square().mean()


def alive(born):
    return len({id(reference()) for reference in born if reference() is not None})


PERTURBATIONS = {"sam": sam(0.1), "asam": asam(0.1), "norm 3": sam(0.1, norm=3.0), "friendly": friendly_sam(0.1)}


@pytest.mark.parametrize(
    ("perturbation", "steps"),
    [(walk, steps) for name, walk in PERTURBATIONS.items() for steps in ((1,) if name == "friendly" else (1, 3))],
)
@pytest.mark.parametrize("entry", [SharpBackward, SharpnessAware])
def test_gradients_of_earlier_passes_are_gone_when_the_next_begins(parts, perturbation, steps, entry):
    """Without the collector's help: what waits for it in a cycle takes memory as well."""
    model, born, loss = parts
    seen = []

    def counted():
        seen.append(alive(born))
        return loss()

    def closure():
        value = counted()
        value.backward()
        return value

    gc.disable()
    try:
        if entry is SharpBackward:
            SharpBackward(model.parameters(), replace(perturbation, steps=steps))(counted)
        else:
            base = torch.optim.SGD(model.parameters(), lr=0.1)
            SharpnessAware(base, replace(perturbation, steps=steps)).step(closure)
    finally:
        gc.enable()
    assert seen == [0] * (steps + 1)
    assert alive(born) == 4  # the last pass's, for the optimizer


@pytest.mark.parametrize("steps", [1, 3])
def test_mean_risk_keeps_one_gradient_however_many_passes(parts, steps):
    model, born, loss = parts
    gc.disable()
    try:
        SharpBackward(model.parameters(), ga_sam(0.1, steps=steps))(loss)
    finally:
        gc.enable()
    assert alive(born) == 4


@pytest.mark.parametrize("in_place", [False, True])
def test_another_name_of_the_weights_sees_the_walk_only_in_place(parts, in_place):
    """By default parameters point to other memory in a displaced pass; afterwards to their own again."""
    model, _, loss = parts
    places = [p.data_ptr() for p in model.parameters()]
    views, seen, there = [p.detach().view(-1)[:2] for p in model.parameters()], [], []

    def watched():
        seen.append(torch.cat(views))
        there.append([p.data_ptr() for p in model.parameters()])
        return loss()

    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2), in_place=in_place)
    sharp(watched), sharp(watched)
    assert [p.data_ptr() for p in model.parameters()] == places
    assert torch.equal(torch.cat(views), seen[0])
    assert torch.equal(seen[1], seen[0]) != in_place
    assert (there[1] == places) == in_place
    assert there[1] == there[2] == there[4] == there[5]  # the other memory is kept: torch.compile sees one address
