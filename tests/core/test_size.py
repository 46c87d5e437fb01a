"""How far a walk goes: a budget is the rise of the linearised loss, a cap bounds every group, "perturb" keeps some."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from family_reference import Reference
from gasam import SCALES, FreeLB, Perturbation, SharpBackward, asam, ga_sam, layer_sam, multi_step_defense, sam
from problems import ENTRIES, GRANULARITIES, TEN_WALKS, batch, function_of, gradient_of, loss_of, network, shapes_of
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")
PRESETS = [sam, asam, layer_sam, multi_step_defense, ga_sam]


def offsets_of(model, perturbation, loss=None, **options):
    """a_k of each pass, as lists of tensors, and the trace."""
    usual, seen = loss or loss_of(model), []

    def remembering():
        seen.append([p.detach().clone() for p in model.parameters()])
        return usual()

    sharp = SharpBackward(model, perturbation, **options)
    sharp(remembering)
    return [[a - b for a, b in zip(point, seen[0], strict=True)] for point in seen], sharp.last


@pytest.mark.parametrize("name", TEN_WALKS)
def test_budget_is_the_rise_of_the_linearised_loss(name):
    walk = dataclasses.replace(TEN_WALKS[name], epsilon=None, budget=0.03, cap=None, steps=1, step_size=None)
    model = network()
    offsets, trace = offsets_of(model, walk)
    assert (gradient_of(model, loss_of(model)()) @ flat(offsets[1])).item() == pytest.approx(0.03, rel=1e-9)
    assert trace.groups.predicted_rise.item() == pytest.approx(0.03, rel=1e-9)


@given(
    budget=st.floats(1e-6, 10),
    cap=st.floats(1e-4, 2),
    norm=st.sampled_from([1.5, 2.0, 3.0, math.inf]),
    scale=st.sampled_from(sorted(SCALES)),
    granularity=st.sampled_from([each for each in GRANULARITIES if each != "module"]),
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
            by_row = granularity == "filter" and weight.ndim == 2
            for w, a in zip(weight, moved, strict=True) if by_row else [(weight, moved)]:
                limit = cap * max(w.norm().item(), 0.01 * math.sqrt(w.numel()) * rms.item())
                assert a.norm().item() <= limit * (1 + 1e-9) + 1e-12, (k, w.shape)
    assert trace.metrics()["capped"] > 0 or trace.groups.predicted_rise.item() >= budget * 0.999 or steps > 1


@pytest.mark.parametrize("name", ["sam", "ga_sam", "asam by filter", "ga_sam by module", "inverse gradient"])
def test_inactive_cap_changes_no_bit(name):
    results = []
    for cap in (None, 1e6):
        model = network()
        offsets_of(model, dataclasses.replace(TEN_WALKS[name], cap=cap))
        results.append([p.grad for p in model.parameters()])
    assert same_bits(*results)


@pytest.mark.filterwarnings("default:a budget without a cap")
def test_budget_without_a_cap_is_warned_of():
    with pytest.warns(UserWarning, match=r"a budget without a cap .*ga_sam\(budget=0\.1, cap=0\.01\)"):
        SharpBackward(network(), ga_sam(budget=0.1))
    with pytest.raises(TypeError, match="budget"):
        FreeLB(nn.Embedding(3, 4), budget=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_weights_have_the_same_budget(dtype):
    model = network(dtype)
    gradients = [g.double() for g in torch.autograd.grad(loss_of(model)(), list(model.parameters()))]
    _, trace = offsets_of(model, ga_sam(budget=0.02, cap=0.5))
    assert trace.groups.predicted_rise.item() == pytest.approx(0.02, rel=1e-3)
    offset = [g.sign() * g.numel() ** 0.5 / g.norm() for g in gradients]
    epsilon = 0.02 / sum((a * g).sum() for a, g in zip(offset, gradients, strict=True))
    assert trace.norms[-1].item() == pytest.approx((epsilon * flat(offset).norm()).item(), rel=1e-3)


@pytest.mark.parametrize(("make", "zero"), [
    (lambda model: 0 * model(batch()[0]).sum(), "gradient"),
    (lambda model: sum((p.square() + p).sum() for p in model.parameters()), "weights"),
])  # fmt: skip
@pytest.mark.parametrize("steps", [1, 2])
def test_without_a_gradient_or_without_weights_nothing_moves_and_it_is_said(make, zero, steps):
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(zero == "gradient")
    offsets, trace = offsets_of(model, ga_sam(budget=0.1, cap=0.1, steps=steps), loss=lambda: make(model))
    assert flat(offsets[-1]).abs().max() == 0
    assert trace.verdict() == "did not move: the gradient, the scale or all weights are zero"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_take_a_budget_and_a_cap_and_name_epsilon(preset):
    made = preset(budget=0.1, cap=0.01)
    assert (made.budget, made.cap, made.epsilon) == (0.1, 0.01, None)
    assert dataclasses.replace(made, budget=None, epsilon=0.2, cap=None) == preset(0.2)
    with pytest.raises(TypeError, match="rho is called epsilon"):
        preset(rho=0.05)


MOVING = {"0.weight": True, "0.bias": False, "2.weight": True, "2.bias": False}


@ENTRIES
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_what_must_not_move_stays_and_does_not_count(entry, granularity):
    model = network()
    with torch.no_grad():
        model[2].weight.mul_(1e-4)  # so small that its cap follows from the other weights
    moving = np.concatenate([np.full(p.numel(), MOVING[name]) for name, p in model.named_parameters()])
    options = {"scale": "gradient_strength", "granularity": granularity, "budget": 0.2, "cap": 0.03}
    reference = Reference("sam", shapes_of(model), p=2.0, moving=moving, **options)
    f = function_of(model, lambda m: loss_of(m)())
    expected = reference.gradient(flat(model.parameters()).numpy(), f)
    groups = [{"params": [(name, p)], "perturb": MOVING[name]} for name, p in model.named_parameters()]
    trace, gradient = entry(model, Perturbation(norm=2.0, risk="final", **options), given=groups)
    assert error(gradient, expected) < EXACT
    assert error(trace.norms[-1], np.linalg.norm(reference.offset)) < EXACT
