"""Weights and gradients that share their storage: brought home, and folded one by one."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, ga_sam, sam
from gasam.fold import overlap
from gasam.trace import CLIMBED
from tolerances import EXACT, error, flat, same_bits


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("rows", [3, 20_000])
def test_parameters_that_share_their_storage_come_home(steps, rows):
    """Weights tied by their data: the second is saved after the first has moved."""
    words, out = nn.Embedding(rows, 4), nn.Linear(4, rows, bias=False)
    out.weight.data = words.weight.data
    before = words.weight.detach().clone()
    sharp = SharpBackward([*words.parameters(), *out.parameters()], ga_sam(0.05, steps=steps))
    for _ in range(3):
        sharp(lambda: cross_entropy(out(words(torch.tensor([0, 1, 2]))), torch.tensor([1, 2, 0])))
    assert sharp.last.active == CLIMBED
    assert same_bits([words.weight], [before])


@pytest.mark.parametrize("risk", ["mean", "final"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("entry", ["backward", "closure"])
def test_gradients_that_share_their_storage_are_folded_one_by_one(risk, steps, entry):
    """Autograd may leave one tensor as the gradient of two parameters, each a view of it."""
    perturbation = dataclasses.replace(sam(0.1), risk=risk, steps=steps)

    def gradients(copies: bool):
        first = nn.Parameter(torch.linspace(-1, 1, 4).double().reshape(2, 2))
        second = nn.Parameter(torch.linspace(0, 2, 4).double().reshape(4, 1))

        def loss():
            parts = first.view(-1), second.view(-1)
            if copies:
                parts = parts[0] * 1.0, parts[1] * 1.0
            return ((parts[0] + parts[1]) ** 2).sum()

        if entry == "backward":
            SharpBackward([first, second], perturbation)(loss)
        else:
            optimizer = SharpnessAware(torch.optim.SGD([first, second], lr=0.0), perturbation)

            def closure():
                value = loss()
                value.backward()
                return value

            optimizer.step(closure)
        return flat([first.grad, second.grad])

    assert error(gradients(copies=False), gradients(copies=True)) < EXACT


@pytest.mark.parametrize("steps", [1, 2])
def test_gradients_that_overlap_in_part_are_folded_one_by_one(steps):
    """The backward of cat gives views of one tensor, which do not begin at one place."""
    head, tail = nn.Parameter(torch.linspace(-1, 1, 3).double()), nn.Parameter(torch.linspace(0, 2, 4).double())
    whole, zero = torch.linspace(1, 2, 5).double(), torch.zeros(2).double()

    def loss(copies: bool):
        parts = torch.cat([head, zero]), torch.cat([zero[:1], tail])
        if copies:
            parts = parts[0] * 1.0, parts[1] * 1.0
        return ((parts[0] + parts[1] - whole) ** 2).sum()

    gradients = []
    for copies in (False, True):
        SharpBackward([head, tail], ga_sam(0.1, steps=steps))(lambda c=copies: loss(c))
        gradients.append(flat([head.grad, tail.grad]))
        head.grad = tail.grad = None
    assert error(*gradients) < EXACT


VIEWS = {
    "buckets": (lambda flat: flat.split([3, 5, 4]), False),
    "with an empty one": (lambda flat: (flat[:3], flat[3:3], flat[3:], None), False),
    "turned": (lambda flat: (flat[:6].view(2, 3), flat[6:].view(2, 3).t()), False),
    "in part": (lambda flat: (flat[4:], flat[:5]), True),
    "at the last of a turned one": (lambda flat: (flat[:8].view(2, 4).t(), flat[7:]), True),
    "within": (lambda flat: (flat, flat[2:3]), True),
    "of two types": (lambda flat: (flat[:6].view(torch.float64), flat[4:]), True),
    "of two storages": (lambda flat: (flat, flat.clone(), None), False),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_one_storage_may_be_added_to_unless_they_overlap(name):
    views, expected = VIEWS[name]
    assert overlap(views(torch.zeros(12))) == expected
