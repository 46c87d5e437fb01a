"""The walk against the independent reference, over the whole product of its options."""

import itertools
import math

import pytest
import torch

from gasam import SCALES, Pass, Perturbation, SharpBackward, climb
from gasam.perturbation import GRANULARITIES
from gasam.weights import Weights
from problems import SHAPES, Wavy, reference_walk
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")

NORMS = (1.5, 2.0, 3.0, math.inf)
STEPS = (1, 2, 3, 5)
# Radii at which the loss changes visibly and no weight is sent across the landscape.
EPSILON = {"one": 0.3, "gradient_strength": 2.0, "weight_over_gradient": 0.3, "inverse_gradient": 0.3}


def sizes(scale: str) -> list[dict[str, float]]:
    """A budget of 0.7 and a cap of a tenth: some groups reach the cap, others do not."""
    epsilon = {"epsilon": EPSILON.get(scale, 0.2)}
    return [epsilon, {"budget": 0.7}, epsilon | {"cap": 0.1}, {"budget": 0.7, "cap": 0.1}]


def check_against_reference(
    scale: str, granularity: str, norm: float, steps: int, risk: str, size: dict[str, float]
) -> None:
    problem = Wavy()
    parameters = problem.parameters()
    perturbation = Perturbation(scale=scale, granularity=granularity, norm=norm, steps=steps, risk=risk, **size)
    gradients = []

    def loss_and_gradient(w):
        loss, gradient = problem.loss_and_gradient(w)
        gradients.append(gradient)
        return loss, gradient

    offsets, losses, _, folded = reference_walk(problem.start, loss_and_gradient, SHAPES, perturbation)
    rise = sum(g @ (a - b) for g, a, b in zip(gradients, offsets[1:], offsets, strict=False))
    before = [p.detach().clone() for p in parameters.values()]

    sharp = SharpBackward(parameters.items(), perturbation)
    loss = sharp(lambda: problem.loss(parameters))

    assert error(loss, losses[0]) < EXACT
    assert error(torch.stack(sharp.last.losses), losses) < EXACT
    assert error(torch.stack(sharp.last.norms), [float((a @ a) ** 0.5) for a in offsets]) < EXACT
    assert error(flat([p.grad for p in parameters.values()]), folded) < EXACT
    assert error(sharp.last.predicted_rise, rise) < EXACT
    assert same_bits(parameters.values(), before)

    if risk != "mean":
        return  # where the climb goes does not depend on the risk
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
    for norm, steps, risk, size in itertools.product(NORMS, STEPS, ("mean", "final"), sizes(scale)):
        check_against_reference(scale, granularity, norm, steps, risk, size)


@pytest.mark.parametrize(("scale", "granularity"), PRODUCT)
def test_cut_and_joined_tensors_walk_alike(scale, granularity, small_portions):
    for norm, steps, size in itertools.product(NORMS, STEPS, sizes(scale)[::3]):
        check_against_reference(scale, granularity, norm, steps, "mean", size)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("step_size", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("size", ["epsilon", "budget"])
def test_given_step_size_is_used(norm, step_size, size):
    problem = Wavy()
    parameters = problem.parameters()
    perturbation = Perturbation(norm=norm, steps=3, step_size=step_size, scale="weight", **{size: 0.2})
    *_, folded = reference_walk(problem.start, problem.loss_and_gradient, SHAPES, perturbation)
    SharpBackward(parameters.values(), perturbation)(lambda: problem.loss(parameters))
    assert error(flat([p.grad for p in parameters.values()]), folded) < EXACT
