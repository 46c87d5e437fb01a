"""What holds for every walk, whatever its options: tried on drawn ones."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gasam import SCALES, Perturbation, SharpBackward
from gasam.analysis import uniform_start
from problems import GRANULARITIES, Wavy, walked
from tolerances import EXACT, error, flat, same_bits

shapes = st.dictionaries(
    st.sampled_from(["a.weight", "a.bias", "b.weight", "b.bias", "c.gain"]),
    st.lists(st.integers(1, 4), max_size=3).map(tuple),
    min_size=1,
)
perturbations = st.builds(
    Perturbation,
    epsilon=st.floats(1e-3, 0.5),
    norm=st.one_of(st.floats(1.05, 8), st.just(2.0), st.just(math.inf)),
    scale=st.sampled_from(sorted(SCALES)),
    granularity=st.sampled_from(GRANULARITIES),
    steps=st.integers(1, 4),
    step_size=st.one_of(st.none(), st.floats(1e-3, 1.0)),
    risk=st.sampled_from(["mean", "final"]),
)
problems = st.builds(Wavy, shapes, st.integers(0, 100))


def scales(problem, parameters, perturbation) -> torch.Tensor:
    """T of every weight, read off a first step: a = T x, and for p = inf and a huge stride |x| is epsilon."""
    probe = Perturbation(epsilon=1e-3, scale=perturbation.scale, granularity=perturbation.granularity)
    return flat(walked(problem, parameters, probe)[-1].offset).abs() / 1e-3


def p_norm(x: torch.Tensor, p: float) -> float:
    return torch.linalg.vector_norm(x, p).item()


@given(problems, perturbations)
def test_walk_stays_in_the_ball_and_its_first_step_gains_the_dual_norm(problem, perturbation):
    """g.a_1 = min(eta, epsilon) |T g|_q with 1/p + 1/q = 1: no other step of that length gains more."""
    parameters, p = problem.parameters(), perturbation.norm
    size = scales(problem, parameters, perturbation)
    visits = walked(problem, parameters, perturbation)
    for visit in visits:
        x = torch.where(size > 0, flat(visit.offset) / size, 0.0)
        assert p_norm(x, p) <= perturbation.epsilon * (1 + 1e-6)
    gradient = flat(visits[0].gradient)
    dual = 1.0 if p == math.inf else p / (p - 1)
    eta = perturbation.step_size or 1.5 * perturbation.epsilon / perturbation.steps
    expected = min(eta, perturbation.epsilon) * p_norm(size * gradient, dual)
    assert gradient @ flat(visits[1].offset) == pytest.approx(expected, rel=1e-6)


@given(problems, perturbations)
def test_weights_come_home_bit_for_bit(problem, perturbation):
    parameters = problem.parameters(torch.float32)
    before = [p.detach().clone() for p in parameters.values()]
    calls = 0

    def loss():
        nonlocal calls
        calls += 1
        return problem.loss(parameters)

    SharpBackward(parameters.items(), perturbation)(loss)
    assert calls == perturbation.steps + 1
    assert same_bits(parameters.values(), before)


@given(problems, perturbations, st.floats(1e-3, 1e3))
def test_walk_does_not_see_the_factor_of_the_gradient(problem, perturbation, factor):
    parameters = problem.parameters()
    walks = [walked(problem, parameters, perturbation, factor=each) for each in (1.0, factor)]
    for plain, scaled in zip(*walks, strict=True):
        assert error(flat(scaled.offset), flat(plain.offset)) < 1e-8 or not flat(plain.offset).any()


DEGREES = {"gradient_strength": -1, "weight_over_gradient": -1, "inverse_gradient": -1}
"""The others do not depend on the gradient."""


@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_scale_has_its_degree_in_the_loss(scale, granularity):
    class Tenfold(Wavy):
        def loss(self, parameters):
            return 10 * super().loss(parameters)

    perturbation = Perturbation(epsilon=0.1, scale=scale, granularity=granularity)
    once, tenfold = (scales(p, p.parameters(), perturbation) for p in (Wavy(), Tenfold()))
    assert error(tenfold, once * 10.0 ** DEGREES.get(scale, 0)) < 1e-8


@pytest.mark.parametrize("granularity", ["element", "model"])
@pytest.mark.parametrize("scale", sorted(SCALES))
def test_splitting_a_tensor_changes_nothing_at_element_and_model_level(granularity, scale):
    perturbation = Perturbation(epsilon=0.2, norm=3.0, scale=scale, granularity=granularity, steps=2)
    gradients = []
    for shapes in ({"w": (12,)}, {"u": (2, 3), "v": (6,)}):
        problem = Wavy(shapes)
        parameters = problem.parameters()
        SharpBackward(parameters.values(), perturbation)(lambda q=problem, p=parameters: q.loss(p))
        gradients.append(flat([p.grad for p in parameters.values()]))
    assert error(gradients[1], gradients[0]) < EXACT


@pytest.mark.parametrize("norm", [1.5, 2.0, 3.0, math.inf])
def test_random_start_lies_in_the_ball_and_adds_a_visit(norm):
    problem = Wavy()
    parameters = problem.parameters()
    before = [p.detach().clone() for p in parameters.values()]
    perturbation = Perturbation(epsilon=0.3, norm=norm, scale="one", granularity="model", steps=2)

    def walk(seed: int):
        start = uniform_start(norm, torch.Generator().manual_seed(seed))
        return [flat(visit.offset) for visit in walked(problem, parameters, perturbation, start)]

    offsets = walk(0)
    assert [p_norm(a, norm) <= 0.3 * (1 + 1e-9) for a in offsets] == [True] * 4
    assert not offsets[0].any()
    assert p_norm(offsets[1], norm) == pytest.approx(0.3) or norm == math.inf
    assert torch.equal(offsets[1], walk(0)[1])
    assert not torch.equal(offsets[1], walk(1)[1])
    assert same_bits(parameters.values(), before)
