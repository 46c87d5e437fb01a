"""Corruption that does not look at the loss: it is what it says, and the weights are as before afterwards."""

import math

import pytest
import torch
from curvature import bits
from torch import nn

from gasam.analysis.corruption import applied, length, pruned, quantised, random_corruption
from gasam.groups import wide
from problems import network
from tolerances import flat, same_bits


def convolution(dtype=torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(45, 7)).to(dtype)


def matrices(model):
    return [p.detach().clone() for p in model.parameters() if p.ndim >= 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("norm", [1.2, 2.0, 20.0, math.inf])
def test_random_corruption_has_the_norm_it_says(norm, dtype):
    model = convolution(dtype)
    offset = random_corruption(model, 0.07, norm, seed=3)
    assert list(offset) == [name for name, _ in model.named_parameters()]
    assert all(values.dtype == wide(dtype) for values in offset.values())
    expected = torch.linalg.vector_norm(flat(offset.values()).double(), norm).item()
    assert expected == pytest.approx(0.07, rel=1e-6)
    assert length(offset.values(), norm) == pytest.approx(expected, rel=1e-12)


def test_random_corruption_is_of_corners_for_the_box_and_depends_on_the_seed_alone():
    offset = flat(random_corruption(convolution(), 0.1, math.inf).values())
    assert set(offset.tolist()) == {torch.tensor(0.1).item(), -torch.tensor(0.1).item()}
    small, large, other = (
        flat(random_corruption(network(), radius, seed=seed).values()) for radius, seed in [(1, 0), (8, 0), (1, 1)]
    )
    assert torch.equal(8 * small, large)
    assert abs(small @ other) < 0.7


def test_applied_holds_the_sum_rounded_once():
    dtype = torch.bfloat16
    model, home = network(dtype), bits(network(dtype))
    offset = random_corruption(model, 0.5)
    with applied(model, offset):
        pairs = zip(home, offset.values(), strict=True)
        assert same_bits(model.parameters(), [(before.float() + values).to(dtype) for before, values in pairs])
    assert same_bits(model.parameters(), home)
    with applied(model, {"0.bias": torch.ones(5, dtype=dtype)}):
        assert torch.equal(model[0].bias, home[1] + 1)
        assert same_bits([model[0].weight], home[:1])
    assert same_bits(model.parameters(), home)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(("levels", "dtype"), [(2, torch.float32), (4, torch.float32), (16, torch.float64)])
def test_quantised_has_few_levels_and_errs_by_half_a_step(levels, dtype, by_row):
    model = convolution(dtype)
    with torch.no_grad():
        model[3].weight[0].zero_()  # a row of zeros stays one
    home, before = bits(model), matrices(model)
    with quantised(model, levels, by_row=by_row):
        after = matrices(model)
        assert torch.equal(model[0].bias, home[1])
        assert torch.equal(model[1].weight, home[2])
    assert same_bits(model.parameters(), home)
    if by_row:
        before, after = ([row for matrix in matrices for row in matrix] for matrices in (before, after))
    for old, new in zip(before, after, strict=True):
        step = old.abs().max().clamp(min=1e-30) / (2 ** (levels - 1) - 1)
        assert len(new.unique()) <= 2**levels
        assert (new - old).abs().max() <= step / 2 * (1 + 1e-2 * (dtype == torch.float32) + 1e-9)
        assert ((new / step) - (new / step).round()).abs().max() < 1e-2
        assert new.abs().max() == pytest.approx(old.abs().max().item())


@pytest.mark.parametrize(
    ("fraction", "dtype"), [(0.0, torch.float32), (0.01, torch.float32), (0.5, torch.bfloat16), (0.99, torch.float32)]
)
def test_pruned_zeroes_the_fraction_of_every_tensor_and_the_smallest(fraction, dtype):
    model = convolution(dtype)
    home, before = bits(model), matrices(model)
    with pruned(model, fraction):
        after = matrices(model)
        assert torch.equal(model[0].bias, home[1])
    assert same_bits(model.parameters(), home)
    for old, new in zip(before, after, strict=True):
        gone = new == 0
        assert int(gone.sum()) == round(fraction * old.numel())
        assert torch.equal(new[~gone], old[~gone])
        assert not gone.any() or old[gone].abs().max() <= old[~gone].abs().min()
