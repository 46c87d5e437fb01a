"""Parameter groups, distributed checkpoints, weights and results that other libraries' tests use."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, ga_sam, sam
from problems import batch, network
from tolerances import same_bits


class TestDistributedCheckpoint:
    """Its functions create the state of a fresh optimizer by a step with learning rates of 0 and no closure."""

    @pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01)])
    def test_state_comes_from_a_fresh_optimizer(self, rate):
        model = network()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = SharpnessAware(torch.optim.Adam(model.parameters(), lr=rate, foreach=False), ga_sam(0.1))
        state = get_optimizer_state_dict(model, optimizer)
        assert optimizer.param_groups[0]["lr"] == rate
        assert same_bits(model.parameters(), before)
        twin = network()
        other = SharpnessAware(torch.optim.Adam(twin.parameters(), lr=0.5, foreach=False), ga_sam(0.1))
        set_optimizer_state_dict(twin, other, state)
        assert other.param_groups[0]["lr"] == rate
        assert all(p.grad is None for p in twin.parameters())

    def test_a_rate_above_zero_needs_a_closure(self):
        groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": 0.0}, {"params": [nn.Parameter(torch.ones(2))]}]
        optimizer = SharpnessAware(torch.optim.SGD(groups, lr=0.1), ga_sam(0.1))
        with pytest.raises(RuntimeError, match="needs a closure"):
            optimizer.step()


class TestGroups:
    @pytest.mark.parametrize("key", ["rho", "epsilon"])
    def test_a_size_in_a_group_is_refused(self, key):
        groups = [{"params": network().parameters(), key: 0.1}]
        with pytest.raises(ValueError, match=rf"key '{key}', .* give it to the perturbation"):
            SharpBackward(groups, ga_sam(0.1))
        with pytest.raises(ValueError, match=rf"key '{key}'"):
            SharpnessAware(torch.optim.SGD(groups, lr=0.1), ga_sam(0.1))

    @pytest.mark.parametrize(
        "build", [lambda o: SharpnessAware(o, sam(0.1)), lambda o: SharpBackward(o.param_groups, sam(0.1))]
    )
    def test_maximisation_is_refused(self, build):
        with pytest.raises(ValueError, match=r"maximize=True.*minimise the negative"):
            build(torch.optim.SGD(network().parameters(), lr=0.1, maximize=True))

    @pytest.mark.parametrize("bad", [{"rho": 0.1}, {"params": [torch.zeros(2, dtype=torch.cfloat)]}])
    def test_a_bad_group_is_refused_when_it_is_added(self, bad):
        model = network()
        optimizer = SharpnessAware(torch.optim.SGD(model[0].parameters(), lr=0.1), sam(0.1))
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group({"params": list(model[2].parameters())} | bad)
        assert len(optimizer.param_groups) == 1
        optimizer.add_param_group({"params": model[2].parameters()})
        assert len(optimizer.param_groups) == 2

    def test_groups_can_be_assigned(self):
        model = network()
        optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), sam(0.1))
        optimizer.param_groups = [optimizer.param_groups[0] | {"lr": 0.3}]
        assert optimizer.base.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_weights_are_refused_by_name(dtype):
    weight = torch.zeros(4, dtype=dtype)
    with pytest.raises(TypeError, match=r"'w' has type torch\.float8.* 16 bits or more"):
        SharpBackward([("w", weight)], ga_sam(0.1))


def test_a_namedtuple_comes_back_as_one():
    Output = namedtuple("Output", ["loss", "logits"])
    model, (x, y) = network(), batch()

    def forward():
        logits = model(x)
        return Output(cross_entropy(logits, y), logits)

    found = SharpBackward(model.parameters(), ga_sam(0.1))(forward)
    assert isinstance(found, Output)
    assert not found.loss.requires_grad
    assert found.logits.shape == (12, 3)
