"""The size of a walk: a budget is the rise of the linearised loss, and a cap bounds every group."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SCALES, FreeLB, Perturbation, SharpBackward, asam, ga_sam, layer_sam, multi_step_defense, sam
from gasam.perturbation import GRANULARITIES
from problems import Wavy, batch, network
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")
PRESETS = [sam, asam, layer_sam, multi_step_defense, ga_sam]


def offsets_of(model, perturbation, loss=None, **options):
    """a_k of each pass, as lists of tensors, and the trace."""
    x, y = batch(next(model.parameters()).dtype)
    seen = []

    def remembering():
        seen.append([p.detach().clone() for p in model.parameters()])
        return cross_entropy(model(x), y) if loss is None else loss(model)

    sharp = SharpBackward(model, perturbation, **options)
    sharp(remembering)
    return [[a - b for a, b in zip(point, seen[0], strict=True)] for point in seen], sharp.last


def gradient_of(model):
    x, y = batch(next(model.parameters()).dtype)
    return torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))


@pytest.mark.parametrize(("scale", "granularity"), list(itertools.product(SCALES, GRANULARITIES)))
def test_budget_is_the_rise_of_the_linearised_loss(scale, granularity):
    gradient = flat(gradient_of(network()))
    for norm in (1.3, 2.0, 4.0, math.inf):
        perturbation = Perturbation(budget=0.03, norm=norm, scale=scale, granularity=granularity)
        offsets, trace = offsets_of(network(), perturbation)
        assert (gradient @ flat(offsets[1])).item() == pytest.approx(0.03, rel=1e-9)
        assert trace.predicted_rise.item() == pytest.approx(0.03, rel=1e-9)


@given(
    budget=st.floats(1e-6, 10),
    cap=st.floats(1e-4, 2),
    norm=st.sampled_from([1.5, 2.0, 3.0, math.inf]),
    scale=st.sampled_from(sorted(SCALES)),
    granularity=st.sampled_from(GRANULARITIES),
    steps=st.integers(1, 4),
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=80)
def test_no_group_moves_further_than_its_cap(budget, cap, norm, scale, granularity, steps, seed):
    perturbation = Perturbation(budget=budget, cap=cap, norm=norm, scale=scale, granularity=granularity, steps=steps)
    model = network(seed=seed)
    with torch.no_grad():
        model[0].bias.zero_()
    rms = flat(model.parameters()).square().mean().sqrt()
    offsets, trace = offsets_of(model, perturbation)
    for k, offset in enumerate(offsets):
        for weight, moved in zip(model.parameters(), offset, strict=True):
            rows = (
                list(zip(weight, moved, strict=True))
                if granularity == "filter" and weight.ndim == 2
                else [(weight, moved)]
            )
            if granularity == "module":
                continue
            for w, a in rows:
                limit = cap * max(w.norm().item(), 0.01 * math.sqrt(w.numel()) * rms.item())
                assert a.norm().item() <= limit * (1 + 1e-9) + 1e-12, (k, w.shape)
    assert trace.groups.capped.any() or trace.predicted_rise.item() >= budget * 0.999 or steps > 1


@pytest.mark.parametrize("size", [{"epsilon": 0.01}, {"budget": 0.01}])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_inactive_cap_changes_no_bit(size, steps, norm, granularity):
    results = []
    for cap in (None, 1e6):
        model = network()
        offsets_of(model, Perturbation(cap=cap, norm=norm, steps=steps, granularity=granularity, **size))
        results.append([p.grad for p in model.parameters()])
    assert same_bits(*results)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_take_a_budget_and_a_cap(preset):
    made = preset(budget=0.1, cap=0.01)
    assert (made.budget, made.cap, made.epsilon) == (0.1, 0.01, None)
    assert dataclasses.replace(made, budget=None, epsilon=0.2, cap=None) == preset(0.2)


@pytest.mark.parametrize("preset", PRESETS)
def test_rho_is_called_epsilon(preset):
    with pytest.raises(TypeError, match=r"rho is called epsilon here: write sam\(epsilon=0\.05"):
        preset(rho=0.05)
    with pytest.raises(TypeError, match="no option 'floor'"):
        preset(0.05, floor=0.1)


@pytest.mark.parametrize(("options", "words"), [
    ({}, "give either an epsilon or a budget, got epsilon=None and budget=None"),
    ({"epsilon": 0.1, "budget": 0.1}, "give either an epsilon or a budget, got epsilon=0.1 and budget=0.1"),
    ({"budget": -1.0}, "budget must be a finite number >= 0, got -1.0"),
    ({"budget": math.inf}, "budget must be a finite number >= 0, got inf"),
    ({"epsilon": 0.1, "cap": 0.0}, "cap must be a finite number > 0, or None for no cap, got 0.0"),
    ({"epsilon": 0.1, "cap": math.inf}, "cap must be a finite number > 0, or None for no cap, got inf"),
])  # fmt: skip
def test_bad_sizes_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        Perturbation(**options)


@pytest.mark.filterwarnings("default:a budget without a cap")
def test_budget_without_a_cap_is_warned_of():
    with pytest.warns(UserWarning, match=r"a budget without a cap .*ga_sam\(budget=0\.1, cap=0\.01\)"):
        SharpBackward(network(), ga_sam(budget=0.1))


def test_budget_of_zero_is_one_plain_pass():
    offsets, trace = offsets_of(network(), ga_sam(budget=0.0, cap=0.1))
    assert len(offsets) == 1
    assert str(trace).startswith("off: one plain pass")


@pytest.mark.parametrize("steps", [1, 2])
def test_without_a_gradient_the_weights_stay(steps):
    offsets, trace = offsets_of(
        network(), ga_sam(budget=0.1, cap=0.1, steps=steps), loss=lambda model: 0 * model(batch()[0]).sum()
    )
    assert flat(offsets[-1]).abs().max() == 0
    assert str(trace).startswith("did not move: the gradient or the scale is zero")


def test_zero_weights_stay_and_say_so():
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    offsets, trace = offsets_of(model, ga_sam(budget=0.1, cap=0.1))
    assert flat(offsets[-1]).abs().max() == 0
    assert str(trace).startswith("did not move: all weights are zero, and the cap")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_weights_have_the_same_budget(dtype):
    model = network(dtype)
    perturbation = ga_sam(budget=0.02, cap=0.5)
    gradient = [g.double() for g in gradient_of(model)]
    _, trace = offsets_of(model, perturbation)
    assert trace.predicted_rise.item() == pytest.approx(0.02, rel=1e-3)
    offset = [g.sign() * g.numel() ** 0.5 / g.norm() for g in gradient]
    epsilon = 0.02 / sum((a * g).sum() for a, g in zip(offset, gradient, strict=True))
    assert trace.norms[-1].item() == pytest.approx((epsilon * flat(offset).norm()).item(), rel=1e-3)


def test_freelb_has_no_budget():
    with pytest.raises(TypeError, match="budget"):
        FreeLB(nn.Embedding(3, 4), budget=0.1)


def test_ga_sam_with_norm_two_is_a_budget_already():
    """|T g|_2 = 1, so epsilon and budget are the same number."""
    problem = Wavy()
    folded = []
    for size in ({"epsilon": 0.2}, {"budget": 0.2}):
        parameters = problem.parameters()
        SharpBackward(parameters.items(), Perturbation(norm=2.0, **size))(lambda p=parameters: problem.loss(p))
        folded.append(flat([p.grad for p in parameters.values()]))
    assert error(*folded) < EXACT
