"""Types narrower than float64: no underflow, no overflow, norms in float32 or wider, honest reports; and numbers that
are not finite: the weights stay home, and the caller sees what came."""

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from gasam import SCALES, Pass, Perturbation, SharpBackward, ga_sam, sam
from gasam.analysis import displaced
from problems import ENTRIES, Wavy, at_home, batch, climbed, loss_of, network, through_backward
from tolerances import SINGLE, error, flat, same_bits


def offset_of(tensors, gradients, perturbation) -> torch.Tensor:
    """The first offset for given gradients."""

    def evaluate(k: int) -> Pass:
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient
        return Pass(torch.tensor(1.0))

    named = [(f"{i}.weight", tensor) for i, tensor in enumerate(tensors)]
    return flat(climbed(named, evaluate, perturbation)[1].offset)


@pytest.mark.parametrize(("norm", "step_size"), [
    (1.05, None), (1.5, None), (2.0, None), (3.0, None), (20.0, None), (math.inf, None),
    (250.0, None), (8.0, 1e5), (1.2, 1e5),  # 1.5^250 is beyond float32; so is 1e5^8
])  # fmt: skip
def test_float32_equals_float64(norm, step_size):
    found = []
    for dtype in (torch.float32, torch.float64):
        problem = Wavy()
        parameters = problem.parameters(dtype)
        walk = Perturbation(epsilon=0.3, norm=norm, scale="one", granularity="model", steps=3, step_size=step_size)
        sharp = SharpBackward(parameters.values(), walk)
        sharp(lambda q=problem, p=parameters: q.loss(p))
        found.append((flat([p.grad for p in parameters.values()]), torch.stack(sharp.last.norms)))
    assert found[0][1][-1] > 0.1
    limit = SINGLE if step_size is None and norm < 50 else 1e-3
    assert all(error(narrow, wide) < limit for narrow, wide in zip(*found, strict=True))


@pytest.mark.parametrize("scale", sorted(SCALES))
@pytest.mark.parametrize("norm", [1.5, 2.0, 3.0, math.inf])
def test_element_wise_scales_stay_finite_with_vanishing_gradients(scale, norm):
    gradient = torch.tensor([0.0, 1e-39, 1e-30, 1e-20, 1e-8, 1.0, -1e-39, -1e-12])
    weight = torch.linspace(-1, 1, 8).requires_grad_()
    found = offset_of([weight], [gradient], Perturbation(epsilon=1e-3, norm=norm, scale=scale, granularity="element"))
    assert found.isfinite().all()
    assert found[0] == 0
    assert found.abs().max() > 0
    assert found.abs().max() <= 1.001 * 1e-3 * 1e8  # the floor: T is at most 1e8 times a weight of 1


@pytest.mark.parametrize("scale", ["gradient_strength", "weight_over_gradient", "inverse_gradient"])
def test_a_weight_without_a_gradient_in_the_clean_pass_stays_home_in_all(scale):
    weight = torch.ones(2, requires_grad=True)

    def evaluate(k: int) -> Pass:
        weight.grad = torch.tensor([float(k), 1.0])
        return Pass(torch.tensor(1.0))

    walk = Perturbation(epsilon=0.1, scale=scale, granularity="element", steps=2)
    assert [value != 0 for value in climbed([("w", weight)], evaluate, walk)[2].offset[0]] == [False, True]


RAMP = torch.linspace(1e-4, 1e-3, 50)
INVERSE = Perturbation(epsilon=1e-8, scale="inverse_gradient")
NARROW = {
    # At p = 1.05 the direction is |h|^20: of gradients of 1e-3 nothing would be left in float32.
    "small p": (RAMP, sam(0.1, norm=1.05), 0.1 * RAMP.double() ** 20 / (RAMP.double() ** 20).norm(1.05), SINGLE),
    # |g|^2 is 4e8 here: beyond float16, whose largest number is 65504.
    "large gradient": (torch.full((400,), 1000.0).half(), sam(1.0), torch.full((400,), 0.05), 1e-3),
    "small epsilon": (torch.full((4,), 1e-4).half(), INVERSE, torch.full((4,), 1e-8 / 2e-4), 1e-3),
}


@pytest.mark.parametrize("name", NARROW)
def test_nothing_underflows_or_overflows(name):
    gradient, walk, expected, limit = NARROW[name]
    assert error(offset_of([torch.zeros_like(gradient, requires_grad=True)], [gradient], walk), expected) < limit


@pytest.mark.parametrize("contiguous", [True, False])
def test_large_float32_norms_are_accurate(contiguous):
    """One float32 sum over 20 million squares is off by 1e-4 and more."""
    gradient = torch.rand(4000, 5000)
    weight = torch.zeros(4000, 5000) if contiguous else torch.zeros(5000, 4000).t()
    found = offset_of([weight.requires_grad_()], [gradient], sam(1.0)).double()
    assert found.norm().item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [1, 3])
def test_low_precision_weights_come_home(dtype, steps):
    model = network(dtype)
    sharp, loss = SharpBackward(model.parameters(), sam(1e-2, steps=steps)), loss_of(model)
    with at_home(model.parameters()):
        sharp(lambda: loss().float())
    assert sharp.last.norms[-1].item() == pytest.approx(1e-2, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("epsilon", [1e-3, 1e-1])
def test_displaced_weights_are_rounded_once(dtype, epsilon):
    """Against the weights plus the offset in float64."""
    model, (x, y) = network(dtype), batch(dtype)
    places, gradients = [], []

    def loss():
        places.append(flat(model.parameters()).double())
        return cross_entropy(model(x).float(), y)

    def backward(value):
        value.backward()
        gradients.append(flat([p.grad for p in model.parameters()]).double())

    sharp = SharpBackward(model.parameters(), sam(epsilon), backward=backward)
    sharp(loss)
    expected = (places[0] + epsilon * gradients[0] / gradients[0].norm()).to(dtype).double()
    assert (places[1] == expected).double().mean().item() > 0.99  # float32 may round to the other side of a tie
    assert not torch.equal(places[1], places[0])


def test_displaced_weights_are_seen_under_autocast_and_home_again_after():
    model, (x, _) = network(torch.float32), batch(torch.float32)
    weights = list(model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        before = model(x)
        with displaced(weights, [torch.full_like(w, 0.5) for w in weights]):
            moved = model(x)
        after = model(x)
    with torch.no_grad():
        for weight in weights:
            weight.add_(0.5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(moved, model(x))
    assert not torch.equal(moved, before)
    assert torch.equal(after, before)


# Each value of each option with some others.
POISONED = [
    (math.nan, 2.0, "element", 1), (-math.inf, 2.0, "element", 2), (math.nan, math.inf, "element", 2),
    (-math.inf, math.inf, "element", 1), (math.nan, 2.0, "layer", 2), (-math.inf, 2.0, "layer", 1),
    (math.inf, 1.5, "model", 1), (math.nan, math.inf, "filter", 1),
]  # fmt: skip


@ENTRIES
@pytest.mark.parametrize(("where", "k"), [("loss", 0), ("scale", 0), ("loss", 1)])
def test_what_is_not_finite_keeps_the_weights_home_from_then_on(entry, where, k):
    model, places, walk = network(), [], ga_sam(0.1, steps=2)
    if where == "scale":
        walk = dataclasses.replace(walk, scale=lambda group: group.gradient * math.inf)
    usual, before = loss_of(model), [p.detach().clone() for p in model.parameters()]

    def loss():
        places.append(same_bits(model.parameters(), before))
        return usual() * (math.nan if where == "loss" and len(places) == k + 1 else 1.0)

    trace, gradient = entry(model, walk, loss=loss)
    assert places == [True, k == 0, True]
    assert trace.not_finite
    assert gradient.isnan().any() == (where == "loss")


@pytest.mark.parametrize(("poison", "norm", "granularity", "steps"), POISONED)
def test_non_finite_gradient_stays_home_and_reaches_the_caller(poison, norm, granularity, steps):
    model = network()
    usual = loss_of(model)
    before = [p.detach().clone() for p in model.parameters()]
    model[2].bias.register_hook(lambda g: g.index_fill(0, torch.tensor([1]), poison))

    def loss():
        assert same_bits(model.parameters(), before)
        return usual()

    trace, _ = through_backward(model, ga_sam(0.1, norm, steps, granularity=granularity), loss=loss)
    assert trace.not_finite
    assert "not finite" in str(trace)
    assert [norm.item() for norm in trace.norms] == [0.0] * (steps + 1)
    assert not model[2].bias.grad.isfinite().all()
    assert model[0].weight.grad.isfinite().all()
