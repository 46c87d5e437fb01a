"""The walk against the independent reference, over the whole product of its options."""

import itertools
import math

import pytest
import torch

from gasam import SCALES, Pass, Perturbation, SharpBackward, climb, reference
from gasam.groups import GRANULARITIES
from gasam.weights import Weights
from problems import SHAPES, Wavy
from tolerances import EXACT, error, flat, same_bits

NORMS = (1.5, 2.0, 3.0, math.inf)
STEPS = (1, 2, 3, 5)
# Radii at which the loss changes visibly and no weight is sent across the landscape.
EPSILON = {"one": 0.3, "gradient_strength": 2.0, "weight_over_gradient": 0.3, "inverse_gradient": 0.3}


def check_against_reference(scale: str, granularity: str, norm: float, steps: int, risk: str) -> None:
    problem = Wavy()
    parameters = problem.parameters()
    perturbation = Perturbation(
        epsilon=EPSILON.get(scale, 0.2), norm=norm, scale=scale, granularity=granularity, steps=steps, risk=risk
    )
    groups = reference.groups_of(SHAPES, granularity)
    offsets, losses, _, folded = reference.walk(
        problem.start,
        problem.loss_and_gradient,
        groups,
        scale=scale,
        epsilon=perturbation.epsilon,
        p=norm,
        K=steps,
        risk=risk,
    )
    before = [p.detach().clone() for p in parameters.values()]

    sharp = SharpBackward(parameters.items(), perturbation)
    loss = sharp(lambda: problem.loss(parameters))

    assert error(loss, losses[0]) < EXACT
    assert error(torch.stack(sharp.last.losses), losses) < EXACT
    assert error(torch.stack(sharp.last.norms), [float((a @ a) ** 0.5) for a in offsets]) < EXACT
    assert error(flat([p.grad for p in parameters.values()]), folded) < EXACT
    assert same_bits(parameters.values(), before)

    weights = Weights(list(parameters.values()), list(SHAPES))
    for visit in climb(weights, lambda k: evaluate(problem, parameters), perturbation):
        assert error(flat(visit.offset()), offsets[visit.k]) < EXACT
    assert same_bits(parameters.values(), before)


def evaluate(problem: Wavy, parameters) -> Pass:
    for parameter in parameters.values():
        parameter.grad = None
    loss = problem.loss(parameters)
    loss.backward()
    return Pass(loss.detach())


PRODUCT = list(itertools.product(SCALES, GRANULARITIES))


@pytest.mark.parametrize(("scale", "granularity"), PRODUCT)
def test_walk_equals_the_reference(scale, granularity):
    for norm, steps, risk in itertools.product(NORMS, STEPS, ("mean", "final")):
        check_against_reference(scale, granularity, norm, steps, risk)


@pytest.mark.parametrize(("scale", "granularity"), PRODUCT)
def test_cut_and_joined_tensors_walk_alike(scale, granularity, small_portions):
    for norm, steps in itertools.product(NORMS, STEPS):
        check_against_reference(scale, granularity, norm, steps, "mean")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step_size", [0.01, 0.05, 1.0])
def test_given_step_size_is_used(norm, step_size):
    problem = Wavy()
    parameters = problem.parameters()
    perturbation = Perturbation(epsilon=0.2, norm=norm, steps=3, step_size=step_size, scale="weight")
    *_, folded = reference.walk(
        problem.start, problem.loss_and_gradient, reference.groups_of(SHAPES, "layer"),
        scale="weight", epsilon=0.2, p=norm, K=3, risk="mean", eta=step_size,
    )  # fmt: skip
    SharpBackward(parameters.values(), perturbation)(lambda: problem.loss(parameters))
    assert error(flat([p.grad for p in parameters.values()]), folded) < EXACT
