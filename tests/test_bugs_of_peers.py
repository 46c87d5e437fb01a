"""Found by running other libraries' tests against the core: memory given away in a pass, groups, views, state."""

import dataclasses
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gasam import Perturbation, SharpBackward, SharpnessAware, asam, ga_sam, sam
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


class TestMemoryGivenAwayInAPass:
    """A displaced pass may rebind p.data: both the old and the new memory must be restored."""

    @pytest.mark.parametrize("size", [10, 300])
    @pytest.mark.parametrize("how", ["vector", "copy", "to"])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_both_are_restored(self, size, how, sparse):
        model = nn.ModuleDict({"words": nn.Embedding(20, 4, sparse=sparse), "out": nn.Linear(size, size)})
        before = [p.detach().clone() for p in model.parameters()]
        old = [p.detach() for p in model.parameters()]
        calls = []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                if how == "vector":
                    vector_to_parameters(parameters_to_vector(model.parameters()), model.parameters())
                elif how == "copy":
                    for parameter in model.parameters():
                        parameter.data = parameter.data.clone()
                else:
                    model.double()
                    model.float()
            words = model["words"](torch.tensor([1, 3]))
            return model["out"](torch.ones(2, size)).square().mean() + words.square().mean()

        sharp = SharpBackward(model.parameters(), ga_sam(0.5))
        sharp(loss)
        assert same_bits(model.parameters(), before)
        assert same_bits(old, before)
        assert not any(a.is_set_to(b) for a, b in zip(old, model.parameters(), strict=True))
        model.zero_grad()
        sharp(loss)  # and the next step uses the new memory
        assert same_bits(model.parameters(), before)

    def test_another_type_is_refused_and_the_old_memory_restored(self):
        model, (x, y) = network(torch.float32), batch(torch.float32)
        before, old = [p.detach().clone() for p in model.parameters()], [p.detach() for p in model.parameters()]
        calls = []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                model[0].double()
            return cross_entropy(model[2](model[1](model[0](x.to(model[0].weight.dtype))).float()), y)

        named = SharpBackward(model.named_parameters(), ga_sam(0.5))
        with pytest.raises(RuntimeError, match=r"0\.weight changed from .*float32.* to .*float64.* between steps"):
            named(loss)
        assert same_bits(old, before)
        assert all(p.grad is None for p in model.parameters())


class TestAsamsAuthors:
    """They have T = |w| + eta where the name contains "weight", and T = 1 elsewhere."""

    def test_offset_is_theirs(self):
        model = nn.ModuleDict({"norm": nn.LayerNorm(4), "first": nn.Linear(4, 4)}).double()
        model.register_parameter("kernel", nn.Parameter(torch.randn(4, 4, dtype=torch.float64)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        x, seen = torch.randn(3, 4, dtype=torch.float64), []

        def loss():
            seen.append([p.detach().clone() for p in model.parameters()])
            return (model["first"](model["norm"](x)) @ model.kernel).square().mean()

        SharpBackward(model.named_parameters(), asam(0.3, eta=0.01, only_named="weight"))(loss)
        model.zero_grad()
        loss().backward()
        scales = [p.abs() + 0.01 if "weight" in n else torch.ones_like(p) for n, p in model.named_parameters()]
        scaled = [T * p.grad for T, p in zip(scales, model.parameters(), strict=True)]
        length = flat(scaled).norm()
        expected = flat([0.3 * T * h / length for T, h in zip(scales, scaled, strict=True)])
        assert error(flat(seen[1]) - flat(seen[0]), expected) < EXACT

    def test_names_are_needed(self):
        with pytest.raises(ValueError, match="only_named needs the parameters' names"):
            SharpBackward(network().parameters(), asam(0.1, only_named="weight"))

    @pytest.mark.parametrize("granularity", ["module", "model"])
    def test_groups_of_several_tensors_are_refused(self, granularity):
        with pytest.raises(ValueError, match="only_named needs groups of one tensor"):
            dataclasses.replace(asam(0.1, only_named="weight"), granularity=granularity)

    @pytest.mark.parametrize("granularity", ["filter", "layer"])
    def test_a_scale_sees_names_of_groups(self, granularity):
        seen = []

        def scale(group):
            seen.extend(group.names)
            return torch.ones_like(group.size)

        model, (x, y) = network(), batch()
        perturbation = Perturbation(epsilon=0.1, scale=scale, granularity=granularity)
        SharpBackward(model.named_parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        rows = 5 if granularity == "filter" else 1
        assert seen[: rows + 1] == ["0.weight"] * rows + ["0.bias"]


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


class TestCallersGradients:
    @pytest.mark.parametrize(
        "perturbation", [ga_sam(0.1), sam(0.1), ga_sam(0.1, steps=3)], ids=["mean", "final", "K=3"]
    )
    def test_a_flat_buffer_gets_the_gradient(self, perturbation):
        model, (x, y) = network(), batch()
        expected = network()
        SharpBackward(expected.parameters(), perturbation)(lambda: cross_entropy(expected(x), y))
        sizes = [p.numel() for p in model.parameters()]
        buffer = torch.full((sum(sizes),), 2.0, dtype=torch.float64)
        for parameter, part in zip(model.parameters(), buffer.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        SharpBackward(model.parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        assert error(buffer, 2.0 + flat([p.grad for p in expected.parameters()])) < EXACT

    @pytest.mark.parametrize("k", [0, 1, 2])
    def test_a_failure_leaves_the_buffer_as_it_was(self, k):
        model, (x, y) = network(), batch()
        tensors = [torch.randn_like(p) for p in model.parameters()]
        before, calls = [t.clone() for t in tensors], []
        for parameter, tensor in zip(model.parameters(), tensors, strict=True):
            parameter.grad = tensor

        def backward(loss):
            loss.backward()
            calls.append(1)
            if len(calls) == k + 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            SharpBackward(model.parameters(), ga_sam(0.1, steps=2), backward=backward)(
                lambda: cross_entropy(model(x), y)
            )
        assert same_bits(tensors, before)
        assert all(p.grad is tensor for p, tensor in zip(model.parameters(), tensors, strict=True))


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
