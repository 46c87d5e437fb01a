"""Biases of attention keys: their gradient is rounding, GA-SAM sends them far, and float32 pays for it."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from trainer_models import classifier, own_mean, sentences, stacked

from gasam import SharpBackward, ga_sam
from tolerances import error, flat

EPSILON, FLOOR = 1e-4, 1e-8


@pytest.fixture(scope="module")
def trained():
    """Fifty steps in float32: at the start no attention layer has any gradient to speak of."""
    model, batch = classifier().float(), stacked(sentences(64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        own_mean(model, batch).backward()
        optimizer.step()
    return model, batch


def is_key(name):
    return name.endswith("key.bias")


def perturbed(model, batch, epsilon, *, move=True, floor=FLOOR):
    """How far the keys' biases went, and the float32 gradient of the rest at w + a against float64 at that point."""
    model = copy.deepcopy(model)
    named = dict(model.named_parameters())
    keys = [p for name, p in named.items() if is_key(name)]
    groups = [{"params": [p for n, p in named.items() if not is_key(n)]}, {"params": keys, "perturb": move}]
    seen = []

    def loss():
        seen.append(copy.deepcopy(model.state_dict()))
        return own_mean(model, batch)

    model.zero_grad()
    SharpBackward(groups, replace(ga_sam(epsilon), risk="final", floor=floor))(loss)
    exact = copy.deepcopy(model).double()
    exact.load_state_dict(seen[1])
    exact.zero_grad()
    own_mean(exact, batch).backward()
    found, expected = (flat([p.grad for n, p in m.named_parameters() if not is_key(n)]) for m in (model, exact))
    distance = max((seen[1][name] - seen[0][name]).abs().max().item() for name in named if is_key(name))
    return distance, error(found, expected)


def test_gradient_of_the_keys_biases_is_rounding(trained):
    model, batch = trained
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    own_mean(exact, batch).backward()
    sizes = {name: p.grad.square().mean().sqrt().item() for name, p in exact.named_parameters()}
    assert max(size for name, size in sizes.items() if is_key(name)) < 1e-12 * max(sizes.values())
    assert all(size > 1e-12 for name, size in sizes.items() if not is_key(name))


def test_they_go_as_far_as_the_floor_lets_them_and_no_further(trained):
    """For norm inf epsilon / (floor sqrt(n)) each: 187 here, 1 of a net with a hundred million weights."""
    n = sum(p.numel() for p in trained[0].parameters())
    for floor in (FLOOR, 1e-6):
        distance, _ = perturbed(*trained, EPSILON, floor=floor)
        assert distance == pytest.approx(EPSILON / (floor * math.sqrt(n)), rel=1e-2)


def test_float32_loses_digits_where_they_go_far_and_none_where_they_stand_still(trained):
    assert perturbed(*trained, EPSILON, move=False)[1] < 1e-5
    assert 1e-5 < perturbed(*trained, EPSILON)[1] < 1e-3
    assert perturbed(*trained, EPSILON, floor=1e-6)[1] < 1e-5
    assert perturbed(*trained, 200 * EPSILON)[1] > 0.1
    assert perturbed(*trained, 200 * EPSILON, move=False)[1] < 1e-4
