"""Whatever happens in a call, the weights are restored bit for bit, and nothing of the caller's is lost."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gasam import SharpBackward, SharpnessAware, ga_sam, sam
from gasam.analysis import displaced
from problems import ENTRIES, at_home, batch, closure_of, loss_of, network
from tolerances import EXACT, error, flat, same_bits


def large():
    """A model whose tensors are cut into several pieces, beside small ones."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30_000), nn.Tanh(), nn.Linear(30_000, 3)).double()


def failing(function, failure, k):
    """Calls the function, and fails after call k."""
    calls = []

    def called(*args):
        calls.append(1)
        found = function(*args)
        if len(calls) == k + 1:
            raise failure
        return found

    return called


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["loss", "backward"])
@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("make", [network, large])
def test_failure_in_any_pass_leaves_weights_and_gradients(failure, where, k, make):
    model = make()
    gradients = [torch.randn_like(p) for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    loss, backward = loss_of(model), torch.Tensor.backward
    loss, backward = (failing(loss, failure, k), backward) if where == "loss" else (loss, failing(backward, failure, k))
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2), backward=backward)
    with at_home(model.parameters()):
        with at_home(gradients), pytest.raises(failure):
            sharp(loss)
        assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
        sharp(loss)  # and the next call works
    assert sharp.last.climbed


@pytest.mark.parametrize("k", range(3))
def test_closure_that_fails_leaves_weights_and_the_base_as_they_were(k):
    model = network()
    base, loss = torch.optim.Adam(model.parameters()), loss_of(model)
    closure = failing(closure_of(loss), KeyboardInterrupt, k)
    with at_home(model.parameters()), pytest.raises(KeyboardInterrupt):
        SharpnessAware(base, ga_sam(0.1, steps=2)).step(closure)
    assert not base.state


def test_displaced_holds_the_offset_and_restores_on_failure():
    weights = [torch.randn(3, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
    offset = [torch.randn_like(w) for w in weights]

    def interrupted(before) -> None:
        with displaced(weights, offset):
            assert error(flat(weights), flat(before) + flat(offset)) < 1e-6
            raise KeyboardInterrupt

    with at_home(weights) as before, pytest.raises(KeyboardInterrupt):
        interrupted(before)


def test_walk_within_a_walk_is_refused_and_keeps_the_gradients():
    model = network()
    sharp, loss = SharpBackward(model.parameters(), ga_sam(0.1)), loss_of(model)
    sharp(loss)
    with (
        at_home([*model.parameters(), *(p.grad for p in model.parameters())]),
        pytest.raises(RuntimeError, match="on a walk already"),
    ):
        sharp(lambda: sharp(loss))


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
@ENTRIES
def test_gradients_that_share_their_storage_are_folded_one_by_one(risk, steps, entry):
    """Autograd may leave one tensor as the gradient of two parameters, each a view of it."""

    def gradients(copies: bool):
        model = nn.ParameterDict({
            "first": nn.Parameter(torch.linspace(-1, 1, 4).double().reshape(2, 2)),
            "second": nn.Parameter(torch.linspace(0, 2, 4).double().reshape(4, 1)),
        })  # fmt: skip

        def loss():
            parts = [p.view(-1) * 1.0 if copies else p.view(-1) for p in model.parameters()]
            return ((parts[0] + parts[1]) ** 2).sum()

        return entry(model, sam(0.1, risk=risk, steps=steps), loss=loss)[1]

    assert error(gradients(copies=False), gradients(copies=True)) < EXACT


class TestMemoryGivenAwayInAPass:
    """A displaced pass may rebind p.data: afterwards, each parameter has its own values again."""

    @pytest.mark.parametrize("how", ["vector", "copy", "to"])
    @pytest.mark.parametrize(("size", "sparse"), [(10, False), (10, True), (300, False)])
    def test_both_are_restored(self, size, how, sparse):
        model = nn.ModuleDict({"words": nn.Embedding(20, 4, sparse=sparse), "out": nn.Linear(size, size)})
        old, calls = [p.detach() for p in model.parameters()], []

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
        with at_home(model.parameters()):
            with at_home(old):
                sharp(loss)
            model.zero_grad()
            sharp(loss)  # and the next step works

    def test_another_type_is_refused_and_the_old_memory_restored(self):
        model, (x, y) = network(torch.float32), batch(torch.float32)
        old, calls = [p.detach() for p in model.parameters()], []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                model[0].double()
            return cross_entropy(model[2](model[1](model[0](x.to(model[0].weight.dtype))).float()), y)

        named = SharpBackward(model.named_parameters(), ga_sam(0.5))
        with at_home(old), pytest.raises(RuntimeError, match=r"0\.weight .*float32.*float64"):
            named(loss)
        assert all(p.grad is None for p in model.parameters())

    @pytest.mark.parametrize("how", ["swapped", "both one", "turned"])
    def test_memory_of_other_weights_is_given_back(self, how):
        a, b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        calls = []

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
        with at_home([a, b]):
            sharp(loss)
        with torch.no_grad():
            b.fill_(7.0)
        a.grad = b.grad = None
        sharp(loss)
        assert (b == 7).all()


@pytest.mark.parametrize("full_first", [False, True])
def test_a_failed_allocation_leaves_the_layout_before(full_first, monkeypatch):
    gaps, small, large = (
        nn.Parameter(torch.randn(6, 12)[:, ::2]),
        nn.Parameter(torch.randn(9)),
        nn.Parameter(torch.randn(20_000)),
    )
    sharp, seen = SharpBackward([small, gaps, large], sam(0.5)), []

    def loss(full):
        seen.append(gaps.detach().clone())
        return small.square().sum() + gaps.square().sum() + (large.square().sum() if full else 0)

    def fails(*arguments, **options):
        raise torch.OutOfMemoryError

    sharp(lambda: loss(full_first))
    before = sharp.last.offsets[-1]
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", fails)
        with pytest.raises(torch.OutOfMemoryError):
            sharp(lambda: loss(not full_first))
    seen.clear()
    sharp(lambda: loss(full_first))
    assert torch.equal(sharp.last.offsets[-1], before)
    assert (seen[1] - seen[0]).norm() > 0


def test_memory_follows_other_strides():
    weight = nn.Parameter(torch.randn(4, 30, 40, 5))
    sharp, strides = SharpBackward([weight], sam(0.5)), []
    for form in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        weight.data, weight.grad = weight.data.contiguous(memory_format=form), None
        sharp(lambda: (strides.append(weight.stride()), weight.square().sum())[1])
        assert strides[-1] == strides[-2] == weight.stride()
