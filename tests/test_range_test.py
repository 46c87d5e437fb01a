"""The range test: right numbers, named groups, and nothing changed."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, ga_sam, range_test, sam
from problems import batch, network
from tolerances import same_bits


def noisy():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    ).double()  # fmt: skip


def loss_of(model):
    return lambda rows: cross_entropy(model(rows[0]), rows[1])


BATCHES = [batch(seed=1), batch(seed=2)]


def test_nothing_is_changed():
    model = noisy()
    sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.5), schedule=Schedule(progress=0.2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    gradients = [p.grad for p in model.parameters()]
    watched = [*model.parameters(), *gradients, model[1].running_mean, model[1].running_var]
    before = [tensor.detach().clone() for tensor in watched]
    random, state = torch.get_rng_state(), sharp.state_dict()
    range_test(sharp, loss_of(model), BATCHES)
    assert same_bits(watched, before)
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert sharp.state_dict() == state
    assert sharp.last is None
    assert model[1].num_batches_tracked == 0


def test_rows_are_those_of_single_walks():
    model = network()
    found = range_test(SharpBackward(model, sam(0.1)), loss_of(model), BATCHES[:1], sizes=[0.05, 0.4])
    for row, size in zip(found.rows, (0.05, 0.4), strict=True):
        alone = network()
        sharp = SharpBackward(alone, sam(size), detailed=True)
        sharp(lambda alone=alone: loss_of(alone)(BATCHES[0]))
        assert row.measured == pytest.approx(sharp.last.rise.item())
        assert row.predicted == pytest.approx(sharp.last.predicted_rise.item())
        assert list(row.cosines.values()) == pytest.approx(sharp.last.detail.cosines.tolist())
    assert found.groups == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert found.turning_point() is None
    assert str(found).endswith("No group's gradient turns up to an epsilon of 0.4.")


def test_dropout_masks_are_shared():
    """With a tiny walk the cosines are 1; fresh masks would make them anything."""
    model = noisy()
    found = range_test(SharpBackward(model, ga_sam(budget=1e-7, cap=1.0)), loss_of(model), BATCHES, sizes=[1e-7])
    assert list(found.rows[0].cosines.values()) == pytest.approx([1.0] * 5, abs=1e-4)


def test_rounding_noise_is_left_out():
    """The bias in front of batch norm has no gradient: its cosine would be anything."""
    model = noisy().float()
    batches = [(x.float(), y) for x, y in BATCHES]
    found = range_test(SharpBackward(model, ga_sam(budget=0.1, cap=1.0)), loss_of(model), batches)
    assert found.without_signal == ["0.bias"]
    assert "Left out, because their gradient is only rounding noise: 0.bias." in str(found)
    assert all("0.bias" not in row.cosines for row in found.rows)


def test_batches_may_use_different_weights():
    model = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)]).double()
    sharp = SharpBackward(model, sam(0.1))
    found = range_test(sharp, lambda number: cross_entropy(model[number](BATCHES[0][0]), BATCHES[0][1]), [0, 1])
    assert found.groups == ("0.weight", "0.bias", "1.weight", "1.bias")


def test_replaced_buffers_are_restored():
    class Averaged(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3).double()
            self.register_buffer("mean", torch.zeros(3).double())

        def forward(self, x):
            x = self.layer(x)
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x

    model = Averaged()
    range_test(SharpBackward(model, sam(0.1)), loss_of(model), BATCHES)
    assert torch.equal(model.mean, torch.zeros(3).double())


def test_cap_that_hides_larger_walks_is_named():
    model = network()
    found = range_test(SharpBackward(model, ga_sam(budget=0.1, cap=0.01)), loss_of(model), BATCHES)
    assert "All groups are capped from 0.05 on: give a larger cap" in str(found)


def test_group_that_turns_is_named():
    flat = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
    bowl = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
    sharp = SharpBackward([("flat", flat), ("bowl", bowl)], sam(1.0))
    # Past w = 3 the slope of the bowl turns.
    found = range_test(sharp, lambda _: flat.sum() + (6 * bowl - bowl**2).sum(), [None])
    size, name = found.turning_point()
    assert name == "bowl"
    assert 1 < size < 8
    assert f"The gradient of bowl turns at an epsilon of {size:.3g}" in str(found)


@pytest.mark.parametrize("options", [{"batches": []}, {"batches": BATCHES, "sizes": [0.0]}])
def test_bad_arguments_are_named(options):
    model = network()
    with pytest.raises(ValueError, match="range_test needs at least one batch and sizes > 0, got"):
        range_test(SharpBackward(model, sam(0.1)), loss_of(model), **options)
