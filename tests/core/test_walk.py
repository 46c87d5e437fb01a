"""The walk against the independent reference, over the product of its options."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from gasam import SCALES, Perturbation, SharpBackward
from problems import GRANULARITIES, TEN_WALKS, Wavy, reference_walk, walked
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")

PRODUCT = list(itertools.product(SCALES, GRANULARITIES))
RISKS = ("mean", "final")
# Radii at which the loss changes visibly and no weight is sent across the landscape.
EPSILON = {"one": 0.3, "gradient_strength": 2.0, "weight_over_gradient": 0.3, "inverse_gradient": 0.3}


def sizes(scale: str) -> list[dict[str, float]]:
    """A budget of 0.7 and a cap of a tenth: some groups reach the cap, others do not."""
    epsilon = {"epsilon": EPSILON.get(scale, 0.2)}
    return [epsilon, {"budget": 0.7}, epsilon | {"cap": 0.1}, {"budget": 0.7, "cap": 0.1}]


def check_against_reference(problem, perturbation: Perturbation) -> None:
    parameters = problem.parameters()
    start, f = problem.start, problem.loss_and_gradient
    offsets, losses, _, folded = reference_walk(start, f, problem.shapes, perturbation)
    rise = f(start)[1] @ offsets[1]
    before = [p.detach().clone() for p in parameters.values()]

    sharp = SharpBackward(parameters.items(), perturbation)
    loss = sharp(lambda: problem.loss(parameters))

    assert error(loss, losses[0]) < EXACT
    assert error(torch.stack(sharp.last.losses), losses) < EXACT
    assert error(torch.stack(sharp.last.norms), [float((a @ a) ** 0.5) for a in offsets]) < EXACT
    assert error(flat([p.grad for p in parameters.values()]), folded) < EXACT
    assert error(sharp.last.groups.predicted_rise, rise) < EXACT
    assert same_bits(parameters.values(), before)

    if perturbation.risk != "mean":
        return  # where the climb goes does not depend on the risk
    for visit in walked(problem, parameters, perturbation):
        assert error(flat(visit.offset), offsets[visit.k]) < EXACT
    assert same_bits(parameters.values(), before)


@pytest.mark.parametrize(("scale", "granularity"), PRODUCT)
def test_walk_equals_the_reference(scale, granularity):
    """The forms of the size take turns: each meets every norm, number of steps and risk with some scale and groups."""
    turn = itertools.count(PRODUCT.index((scale, granularity)))
    for norm, steps, risk in itertools.product((1.5, 2.0, math.inf), (1, 3), RISKS):
        size = sizes(scale)[next(turn) % 4]
        walk = Perturbation(scale=scale, granularity=granularity, norm=norm, steps=steps, risk=risk, **size)
        check_against_reference(Wavy(), walk)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "granularity"), PRODUCT)
def test_walk_equals_the_reference_in_every_combination(scale, granularity):
    for norm, steps, risk, size in itertools.product((1.5, 2.0, 3.0, math.inf), (1, 2, 3, 5), RISKS, sizes(scale)):
        walk = Perturbation(scale=scale, granularity=granularity, norm=norm, steps=steps, risk=risk, **size)
        check_against_reference(Wavy(), walk)


class Separate:
    """L(w) = sum(c w^2) / 2 + b w for tensors of many sizes: cheap also for many weights."""

    def __init__(self, shapes) -> None:
        random = np.random.default_rng(0)
        self.shapes, n = shapes, sum(int(np.prod(shape)) for shape in shapes.values())
        self.start, self.b, self.c = random.normal(size=n), random.normal(size=n) / n, random.uniform(size=n) / n

    def loss_and_gradient(self, w):
        return w @ (self.c * w / 2 + self.b), self.c * w + self.b

    def parameters(self) -> dict[str, nn.Parameter]:
        parts = torch.from_numpy(self.start).split([int(np.prod(shape)) for shape in self.shapes.values()])
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: nn.Parameter(part.reshape(shape).clone()) for (name, shape), part in named}

    def loss(self, parameters):
        w = torch.cat([p.reshape(-1) for p in parameters.values()])
        return w @ (torch.from_numpy(self.c) * w / 2 + torch.from_numpy(self.b))


# Below, at and above powers of two at which large tensors may be cut, with rows of several lengths, and small ones.
SIZES = {
    **{"a.weight": (3, 5), "a.bias": (3,), "b.weight": (2, 70_000), "b.bias": (1,)},
    **{"c.weight": (300, 64), "c.bias": (300,), "d.weight": (2**17,), "d.bias": (2**16 + 1,), "e.weight": (7, 2, 3)},
}


@pytest.mark.parametrize("name", [name for name, walk in TEN_WALKS.items() if walk.granularity != "element"])
def test_large_and_small_tensors_walk_together(name):
    check_against_reference(Separate(SIZES), TEN_WALKS[name])
