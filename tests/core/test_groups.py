"""Parameter groups, distributed checkpoints, weights and results that other libraries' tests use."""

import math
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.functional import cross_entropy

from family_reference import Reference
from gasam import Perturbation, SharpBackward, SharpnessAware, ga_sam, sam
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


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

    @pytest.mark.parametrize("key", ["budget", "cap"])
    def test_options_of_the_walk_in_a_group_are_refused_with_the_strength_as_the_cure(self, key):
        with pytest.raises(ValueError, match=rf"key '{key}', .* write 'perturb': 0.5"):
            SharpBackward([{"params": network().parameters(), key: 0.1}], ga_sam(0.1))

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


STRENGTHS = {"0.weight": 1.0, "0.bias": 0.5, "2.weight": 2.0, "2.bias": 0}


def groups_of(model, strengths=STRENGTHS):
    return [{"params": [(name, p)], "perturb": strengths[name]} for name, p in model.named_parameters()]


class TestStrength:
    """A number in "perturb" multiplies T of the group."""

    @pytest.mark.parametrize("entry", ["backward", "closure"])
    @pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
    @pytest.mark.parametrize("granularity", ["element", "filter", "layer", "model"])
    @pytest.mark.parametrize("scale", ["gradient_strength"])
    def test_offset_is_that_of_the_reference_with_the_strengths_as_a_factor_of_the_scale(
        self, scale, granularity, norm, entry
    ):
        model, (x, y) = network(), batch()
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        moving = np.concatenate([np.full(p.numel(), STRENGTHS[name]) for name, p in model.named_parameters()])
        for size in ({"epsilon": 0.05}, {"budget": 0.2, "cap": 0.03}):
            options = {"scale": scale, "granularity": granularity}
            reference = Reference("sam", shapes, p=norm, moving=moving, **size, **options)

            def f(w):
                twin = network()
                nn.utils.vector_to_parameters(torch.from_numpy(w), twin.parameters())
                loss = cross_entropy(twin(x), y)
                return loss.item(), flat(torch.autograd.grad(loss, list(twin.parameters()))).numpy()

            expected = reference.gradient(flat(model.parameters()).numpy().copy(), f)
            walk = Perturbation(norm=norm, risk="final", **size, **options)
            model.zero_grad()
            if entry == "backward":
                sharp = SharpBackward(groups_of(model), walk)
                sharp(lambda: cross_entropy(model(x), y))
            else:
                sharp = SharpnessAware(torch.optim.SGD(groups_of(model), lr=0.0), walk, model=model)
                sharp.step(lambda: (loss := cross_entropy(model(x), y)).backward() or loss)
            assert error(flat([p.grad for p in model.parameters()]), expected) < EXACT
            assert error(sharp.last.norms[-1], np.linalg.norm(reference.offset)) < EXACT

    @pytest.mark.parametrize("alike", [(0, False), (1, True), (1.0, None)])
    def test_zero_and_one_are_false_and_true_bit_by_bit(self, alike):
        (x, y), found = batch(), []
        for value in alike:
            model = network()
            groups = groups_of(model, dict.fromkeys(STRENGTHS, 1) | {"0.weight": value})
            if value is None:
                del groups[0]["perturb"]
            SharpBackward(groups, ga_sam(0.1, steps=2))(lambda m=model: cross_entropy(m(x), y))
            found.append([p.grad for p in model.parameters()])
        assert same_bits(*found)

    @pytest.mark.parametrize("value", [-1, math.nan, math.inf, "half", None])
    def test_what_is_no_strength_is_refused(self, value):
        groups = [{"params": network().parameters(), "perturb": value}]
        with pytest.raises(ValueError, match=r"the key 'perturb' of a parameter group must be True, False or a finite"):
            SharpBackward(groups, ga_sam(0.1))

    def test_one_module_has_one_strength(self):
        walk = Perturbation(epsilon=0.1, granularity="module")
        with pytest.raises(ValueError, match=r"one 'perturb' for all parameters of a module, got 1 and 0.5 in '0'"):
            SharpBackward(groups_of(network()), walk)

    def test_a_function_of_the_modules_multiplies_the_strength_of_the_groups(self):
        model, (x, y) = network(), batch()
        walk = replace(sam(0.1), perturb=lambda module: 0.5 if module.out_features == 5 else 1.0)
        optimizer = torch.optim.SGD(groups_of(model), lr=0.0)
        sharp = SharpnessAware(optimizer, walk, model=model)
        assert sharp.sharp.weights.strengths == [0.5, 0.25, 2.0]
        sharp.step(lambda: (loss := cross_entropy(model(x), y)).backward() or loss)
        assert sharp.last.climbed
