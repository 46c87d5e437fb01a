"""Attacks on the weights: the reference's walk, the best of several, and everything as before afterwards."""

import itertools
import math

import numpy as np
import pytest
import torch
from curvature import OBJECTIVE, uneven
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gasam import Perturbation, reference
from gasam.analysis.attack import attack, plain
from gasam.analysis.corruption import length
from gasam.analysis.objective import Objective, mean_loss
from problems import SHAPES, Wavy, network
from tolerances import EXACT, error, flat

NORMS = (1.5, 2.0, 3.0, math.inf)


class Model(nn.Module):
    """The weights of a problem, with the problem's names."""

    def __init__(self, problem) -> None:
        super().__init__()
        for name, weight in problem.parameters().items():
            owner, _, own = name.rpartition(".")
            if owner and not hasattr(self, owner):
                self.add_module(owner, nn.Module())
            self.get_submodule(owner).register_parameter(own, weight)


def wavy_objective(problem) -> Objective:
    """A batch is a number of examples with losses c L(w); c is 1 in the mean over all of [2, 3]."""
    shares = {2: 0.7, 3: 1.2}
    losses = lambda loss, rows: loss * torch.full((rows,), shares[rows], dtype=loss.dtype)  # noqa: E731
    return Objective(lambda model, rows: problem.loss(dict(model.named_parameters())), losses)


def at_zero(size):
    return nn.ParameterDict({"w": torch.zeros(size, dtype=torch.float64)})


def one_example(loss) -> Objective:
    return Objective(lambda model, batch: loss(model["w"]), lambda loss, batch: loss.reshape(1))


@pytest.mark.parametrize(
    ("scale", "granularity", "norm", "steps"),
    [
        ("one", "model", 2.0, 4),
        ("one", "layer", math.inf, 1),
        ("gradient_strength", "layer", 2.0, 3),
        ("gradient_strength", "module", 1.5, 4),
        ("inverse_gradient", "layer", 3.0, 1),
        ("weight", "element", 2.0, 4),
        ("weight", "filter", math.inf, 3),
        ("weight_rms", "model", 1.5, 1),
        ("weight_rms", "filter", 2.0, 4),
        ("gradient_strength", "element", math.inf, 3),
    ],
)
def test_attack_equals_the_reference(scale, granularity, norm, steps):
    """Full batch: the mean over uneven batches is the problem's loss, and so is its gradient."""
    problem = Wavy()
    model = Model(problem)
    offsets, losses, *_ = reference.walk(
        problem.start, problem.loss_and_gradient, reference.groups_of(SHAPES, granularity),
        scale=scale, epsilon=0.2, p=norm, K=steps, risk="mean",
    )  # fmt: skip
    ball = Perturbation(epsilon=0.2, norm=norm, scale=scale, granularity=granularity, steps=steps)
    found = attack(model, wavy_objective(problem), [2, 3], ball, restarts=0)
    worst = int(np.argmax(losses))
    assert error(found.walks[0], losses) < EXACT
    assert found.clean_loss == found.walks[0][0]
    assert error(found.loss, losses[worst]) < EXACT
    assert list(found.offset) == list(SHAPES)
    assert error(flat(found.offset.values()), offsets[worst]) < EXACT


@settings(max_examples=25)
@given(
    seed=st.integers(0, 50),
    norm=st.sampled_from(NORMS),
    radius=st.floats(1e-4, 3.0),
    steps=st.integers(1, 4),
    scale=st.sampled_from(["one", "gradient_strength"]),
)
def test_attack_is_never_below_clean_and_more_restarts_never_lower(seed, norm, radius, steps, scale):
    problem = Wavy(seed=seed)
    model, objective = Model(problem), wavy_objective(problem)
    ball = Perturbation(epsilon=radius, norm=norm, scale=scale, granularity="layer", steps=steps)
    found = [attack(model, objective, [2, 3], ball, restarts=n, seed=seed) for n in range(3)]
    assert found[0].clean_loss <= found[0].loss <= found[1].loss <= found[2].loss
    assert found[2].walks[:2] == found[1].walks
    for one in found:
        assert one.loss == max(itertools.chain(*one.walks))
        assert one.rise == one.loss - one.clean_loss
        if scale == "one":
            assert length(one.offset.values(), norm) <= radius * (1 + 1e-9)


def test_attack_finds_the_quadratic_maximum():
    """Over |a|_2 <= r the maximum of a.H a / 2 is r^2 lambda_1 / 2, along the first eigenvector."""
    torch.manual_seed(3)
    basis = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    hessian = basis @ torch.diag(torch.tensor([9.0, 2, 1, 0.5, 0.1, 0]).double()) @ basis.T
    ball = Perturbation(epsilon=0.3, norm=2.0, scale="one", granularity="model", steps=40, step_size=0.2)
    found = attack(at_zero(6), one_example(lambda w: w @ hessian @ w / 2), [0], ball, restarts=2)
    assert found.loss == pytest.approx(0.3**2 * 9 / 2, rel=1e-6)
    assert abs(found.offset["w"] @ basis[:, 0]) == pytest.approx(0.3, rel=1e-6)
    slope = torch.tensor([1.0, -2, 3], dtype=torch.float64)
    found = attack(at_zero(3), one_example(lambda w: slope @ w), [0], plain(0.1, math.inf), restarts=0)
    assert found.loss == pytest.approx(0.6)
    assert error(found.offset["w"], 0.1 * slope.sign()) < EXACT


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-3)])
def test_applied_holds_the_attack(dtype, rel):
    """A bf16 weight takes the offset's rounding once more: 2^-8 of a loss that moved."""
    model = network(dtype)
    found = attack(model, OBJECTIVE, uneven(dtype), plain(0.5))
    assert found.loss > found.clean_loss
    with found.applied(model):
        assert mean_loss(model, OBJECTIVE, uneven(dtype)) == pytest.approx(found.loss, rel=rel)


def test_loss_that_is_not_finite_ends_a_walk_and_is_never_the_result():
    """L = -log(1 - w): infinite at w = 1, NaN beyond; the walk w = 0, 0.6, 1.2 sees it."""
    ball = Perturbation(epsilon=2.0, norm=2.0, scale="one", granularity="model", steps=5, step_size=0.6)
    found = attack(at_zero(1), one_example(lambda w: -torch.log(1 - w)), [0], ball, restarts=0)
    assert found.loss == pytest.approx(-math.log(0.4))
    assert len(found.walks[0]) == 3
    assert not math.isfinite(found.walks[0][-1])
