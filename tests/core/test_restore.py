"""Whatever happens in a call, the weights are restored bit for bit, and nothing of the caller's is lost."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gasam import SharpBackward, SharpnessAware, displaced, ga_sam, sam
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


def gradients_of(model):
    return [p.grad for p in model.parameters()]


def large():
    """A model whose tensors are cut into several pieces, beside small ones."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30_000), nn.Tanh(), nn.Linear(30_000, 3)).double()


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["loss", "backward"])
@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("make", [network, large])
def test_failure_in_any_pass_leaves_weights_and_gradients(failure, where, k, make):
    model, (x, y), calls = make(), batch(), {"loss": 0, "backward": 0}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    weights, gradients = ([t.clone() for t in each] for each in (model.parameters(), gradients_of(model)))

    def called(name):
        calls[name] += 1
        if name == where and calls[name] == k + 1:
            raise failure

    def loss():
        called("loss")
        return cross_entropy(model(x), y)

    def backward(value):
        value.backward()
        called("backward")

    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2), backward=backward)
    with pytest.raises(failure):
        sharp(loss)
    assert same_bits(model.parameters(), weights)
    assert same_bits(gradients_of(model), gradients)
    sharp(loss)  # and the next call works
    assert same_bits(model.parameters(), weights)
    assert sharp.last.climbed


@pytest.mark.parametrize("k", range(3))
def test_closure_that_fails_leaves_weights_and_the_base_as_they_were(k):
    model, (x, y), calls = network(), batch(), []
    before = [p.detach().clone() for p in model.parameters()]
    base = torch.optim.Adam(model.parameters())

    def closure():
        calls.append(1)
        loss = cross_entropy(model(x), y)
        loss.backward()
        if len(calls) == k + 1:
            raise KeyboardInterrupt
        return loss

    with pytest.raises(KeyboardInterrupt):
        SharpnessAware(base, ga_sam(0.1, steps=2)).step(closure)
    assert same_bits(model.parameters(), before)
    assert not base.state


def test_displaced_holds_the_offset_and_restores_on_failure():
    weights = [torch.randn(3, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
    before = [w.detach().clone() for w in weights]
    offset = [torch.randn_like(w) for w in before]

    def interrupted() -> None:
        with displaced(weights, offset):
            assert error(flat(weights), flat(before) + flat(offset)) < 1e-6
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert same_bits(weights, before)


def test_walk_within_a_walk_is_refused_and_keeps_the_gradients():
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    gradients = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="on a walk already"):
        sharp(lambda: sharp(lambda: cross_entropy(model(x), y)))
    assert same_bits(model.parameters(), before)
    assert same_bits([p.grad for p in model.parameters()], gradients)


def test_gradients_survive_a_failure_to_set_them_aside():
    """Memory may run out while the caller's gradients are copied: none of them is lost."""
    model, (x, y) = network(), batch()

    class Unwilling(torch.Tensor):
        def clone(self, *args, **kwargs):
            raise MemoryError

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].bias.grad = torch.ones_like(model[0].bias).as_subclass(Unwilling)
    with pytest.raises(MemoryError):
        SharpBackward(model.parameters(), ga_sam(0.1))(lambda: cross_entropy(model(x), y))
    assert all(p.grad is not None and (p.grad == 1).all() for p in model.parameters())


@pytest.mark.parametrize("make", [network, large])
def test_after_a_call_the_weights_are_in_the_same_memory(make):
    """Views, flattened weights of recurrent nets and graphs captured on a device go on seeing them."""
    model, (x, y) = make(), batch()
    places = [p.data_ptr() for p in model.parameters()]
    views = [p.detach() for p in model.parameters()]
    before = [p.clone() for p in views]
    SharpBackward(model.parameters(), ga_sam(0.1, steps=2))(lambda: cross_entropy(model(x), y))
    assert [p.data_ptr() for p in model.parameters()] == places
    assert same_bits(views, before)


@pytest.mark.parametrize("rows", [3, 40_000])
def test_parameters_that_share_their_storage_add_up_their_offsets_and_come_home(rows):
    """Weights tied by their data."""
    words, out = nn.Embedding(rows, 4, dtype=torch.float64), nn.Linear(4, rows, bias=False, dtype=torch.float64)
    out.weight.data = words.weight.data
    seen, gradients, before = [], [], words.weight.detach().clone()

    def loss():
        seen.append([words.weight.detach().clone(), out.weight.detach().clone()])
        return cross_entropy(out(words(torch.tensor([0, 1, 2]))), torch.tensor([1, 2, 0]))

    def backward(value):
        value.backward()
        gradients.append([words.weight.grad.clone(), out.weight.grad.clone()])

    sharp = SharpBackward([words.weight, out.weight], sam(0.05), backward=backward)
    sharp(loss)
    offset = 0.05 * sum(gradients[0]) / flat(gradients[0]).norm()
    assert same_bits(*[[each] for each in seen[1]])
    assert error(seen[1][0] - seen[0][0], offset) < EXACT
    sharp.perturbation = ga_sam(0.05, steps=2)
    sharp(loss)
    assert same_bits([words.weight], [before])


@pytest.mark.parametrize(("risk", "steps"), [("mean", 1), ("mean", 2), ("final", 1)])
@pytest.mark.parametrize("entry", ["backward", "closure"])
def test_gradients_that_share_their_storage_are_folded_one_by_one(risk, steps, entry):
    """Autograd may leave one tensor as the gradient of two parameters, each a view of it."""
    perturbation = dataclasses.replace(sam(0.1), risk=risk, steps=steps)

    def gradients(copies: bool):
        first = nn.Parameter(torch.linspace(-1, 1, 4).double().reshape(2, 2))
        second = nn.Parameter(torch.linspace(0, 2, 4).double().reshape(4, 1))

        def loss():
            parts = first.view(-1), second.view(-1)
            if copies:
                parts = parts[0] * 1.0, parts[1] * 1.0
            return ((parts[0] + parts[1]) ** 2).sum()

        if entry == "backward":
            SharpBackward([first, second], perturbation)(loss)
        else:
            optimizer = SharpnessAware(torch.optim.SGD([first, second], lr=0.0), perturbation)
            optimizer.step(lambda: (value := loss()).backward() or value)
        return flat([first.grad, second.grad])

    assert error(gradients(copies=False), gradients(copies=True)) < EXACT


class TestMemoryGivenAwayInAPass:
    """A displaced pass may rebind p.data: afterwards, each parameter has its own values again."""

    @pytest.mark.parametrize("how", ["vector", "copy", "to"])
    @pytest.mark.parametrize(("size", "sparse"), [(10, False), (10, True), (300, False)])
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
        model.zero_grad()
        sharp(loss)  # and the next step works
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
        with pytest.raises(RuntimeError, match=r"0\.weight .*float32.*float64"):
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

    def test_expanded_weights_are_refused(self):
        with pytest.raises(TypeError, match="'b' is an expanded view"):
            SharpBackward([("b", nn.Parameter(torch.ones(1).expand(5)))], sam(0.1))
