"""A pass that replaces the storage of weights: old and new storage are restored, or it is refused."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gasam import SharpBackward, ga_sam, sam
from problems import batch, network
from tolerances import same_bits


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

        with pytest.raises(RuntimeError, match=r"replaced the storage of parameter 0, .* between steps"):
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
