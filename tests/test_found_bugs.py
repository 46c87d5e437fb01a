"""Found by running other libraries' tests against the core, and by attacks on it: memory, gradients, groups, state."""

import dataclasses
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gasam import SCALES, Perturbation, SharpBackward, SharpnessAware, asam, ga_sam, sam
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

    @pytest.mark.parametrize("how", ["swapped", "both one", "turned"])
    def test_memory_of_other_weights_is_given_back(self, how):
        a, b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        before, calls = [a.detach().clone(), b.detach().clone()], []

        def loss():
            calls.append(1)
            if len(calls) == 2 and how == "swapped":
                a.data, b.data = b.data, a.data
            elif len(calls) == 2 and how == "both one":
                a.data = b.data
            elif len(calls) == 2:
                a.data = a.data.t()
            return (a**2).sum() + (b**2).sum()

        sharp = SharpBackward([a, b], sam(0.1))
        sharp(loss)
        assert same_bits([a, b], before)
        with torch.no_grad():
            b.fill_(7.0)
        a.grad = b.grad = None
        sharp(loss)
        assert (b == 7).all()

    def test_several_steps_refuse_it(self):
        a, calls = nn.Parameter(torch.randn(4)), []
        before = a.detach().clone()

        def loss():
            calls.append(1)
            if len(calls) == 2:
                a.data = a.data.clone()
            return (a**2).sum()

        with pytest.raises(RuntimeError, match=r"parameter 0 was given other memory .* between steps"):
            SharpBackward([a], ga_sam(0.1, steps=2))(loss)
        assert same_bits([a], [before])

    def test_one_that_cannot_be_restored_does_not_keep_the_others(self, monkeypatch):
        from gasam.portions import Portion

        weights = [nn.Parameter(torch.randn(20_000)) for _ in range(3)]
        before, original = [w.detach().clone() for w in weights], Portion.restore

        def failing(portion):
            if portion.number == 1:
                raise RuntimeError("no")
            original(portion)

        monkeypatch.setattr(Portion, "restore", failing)
        sharp = SharpBackward(weights, sam(0.1))
        with pytest.raises(RuntimeError, match="no"):
            sharp(lambda: sum((w**2).sum() for w in weights))
        assert same_bits([weights[0], weights[2]], [before[0], before[2]])

    def test_expanded_weights_are_refused(self):
        with pytest.raises(TypeError, match="'b' is an expanded view"):
            SharpBackward([("b", nn.Parameter(torch.ones(1).expand(5)))], sam(0.1))


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

    def test_an_error_of_the_function_is_not_hidden(self):
        a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        a.grad, b.grad = torch.ones(3), torch.ones(3)
        calls = []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                a.data = torch.zeros(4)
                raise KeyError("mine")
            return (a**2).sum() + (b**2).sum()

        with pytest.raises((KeyError, RuntimeError)):
            SharpBackward([a, b], ga_sam(0.1, steps=2))(loss)
        assert (b.grad == 1).all()

    @pytest.mark.parametrize("kind", ["requires grad", "expanded"])
    def test_unusual_gradients_are_added_to(self, kind):
        a = nn.Parameter(torch.randn(3))
        a.grad = torch.ones(3, requires_grad=True) if kind == "requires grad" else torch.ones(1).expand(3)
        SharpBackward([a], sam(0.1))(lambda: 2 * a.sum())
        assert torch.equal(a.grad.detach(), torch.full((3,), 3.0))

    @pytest.mark.parametrize("steps", [1, 3])
    def test_two_parameters_may_share_one_gradient(self, steps):
        a, b, shared = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(2)), torch.zeros(2)
        a.grad = b.grad = shared
        SharpBackward([a, b], ga_sam(0.1, steps=steps))(lambda: 3 * a.sum() + 5 * b.sum())
        assert torch.allclose(shared, torch.full((2,), 8.0))

    def test_clearing_gradients_in_the_function_is_refused(self):
        model = nn.Linear(2, 1)

        def loss():
            model.zero_grad()
            return model(torch.ones(1, 2)).sum()

        with pytest.raises(RuntimeError, match="cleared the gradients"):
            SharpBackward(model.parameters(), ga_sam(0.1))(loss)


class TestScalesAtTheEdge:
    @pytest.mark.parametrize("scale", ["weight", "weight_rms", "weight_over_gradient"])
    def test_sparse_vectors_are_whole_filters(self, scale):
        norms = []
        for sparse in (True, False):
            w, i = nn.Parameter(torch.arange(1.0, 8.0)), torch.tensor([0, 1])
            sharp = SharpBackward([w], Perturbation(epsilon=0.1, norm=2.0, scale=scale, granularity="filter"))
            sharp(lambda w=w, i=i, s=sparse: torch.gather(w, 0, i, sparse_grad=s).sum())
            norms.append(sharp.last.norms[1])
        assert error(*norms) < 1e-6

    @pytest.mark.parametrize("scale", sorted(SCALES))
    def test_empty_tensors_do_not_stop_the_walk(self, scale):
        a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.empty(0))
        sharp = SharpBackward([a, b], Perturbation(epsilon=0.1, scale=scale))
        sharp(lambda: (a**2).sum() + b.sum())
        assert sharp.last.climbed

    def test_names_of_no_groups(self):
        b = nn.Parameter(torch.randn(4))
        groups = [{"params": [("a.weight", nn.Parameter(torch.randn(4)))]}, {"params": [("b", b)], "perturb": False}]
        scale = asam(0.1, only_named="weight").scale
        sharp = SharpBackward(groups, Perturbation(epsilon=0.1, scale=scale))
        sharp(lambda: (b**2).sum())
        assert not sharp.last.climbed

    @pytest.mark.parametrize("shape", [(2, 65_536), (2, 40_000)])
    def test_sums_of_wide_rows_are_accurate(self, shape):
        w = nn.Parameter(torch.zeros(shape))
        perturbation = Perturbation(epsilon=1.0, scale="inverse_gradient", granularity="filter", norm=2.0)
        sharp = SharpBackward([w], perturbation)
        sharp(lambda: 0.1 * w.sum())
        assert sharp.last.norms[1].item() == pytest.approx(1 / (0.1 * shape[1] ** 0.5), rel=2e-5)


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
