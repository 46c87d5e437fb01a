"""In a displaced pass parameters point to other memory: who sees w + a, who does not, and what stays as it is."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import weight_norm

from gasam import SharpBackward, asam, ga_sam, sam
from problems import TEN_WALKS, at_home, batch, gradient_of, loss_of, network
from tolerances import EXACT, error

WALK = ga_sam(0.1, steps=2)


def stepped(model, loss, walk=WALK, **options):
    """The losses and the gradient of one call; the weights must be home, in their own memory."""
    sharp = SharpBackward(model, walk, **options)
    with at_home(model.parameters()):
        sharp(loss)
    return torch.stack(sharp.last.losses), gradient_of(model)


def expected(walk=WALK):
    model = network()
    return stepped(model, loss_of(model), walk)


def assert_equal(found, wanted):
    assert all(error(one, other) < EXACT for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", TEN_WALKS)
def test_walks_after_the_measured_ones_and_walks_in_place_are_the_same(name):
    """The first 20 walks are measured in full; what others leave out may not change the step."""
    model, found = network(), []
    for in_place in (False, True):
        sharp = SharpBackward(model.named_parameters(), TEN_WALKS[name], in_place=in_place)
        for _ in range(22):
            model.zero_grad()
            sharp(loss_of(model))
            found.append((torch.stack(sharp.last.norms), gradient_of(model)))
    for each in found[1:]:
        assert_equal(each, found[0])


def test_a_graph_from_before_the_exchange_raises_instead_of_giving_wrong_gradients():
    model, kept = network(), []

    def loss():
        kept.append(sum((p * p).sum() for p in model.parameters()))
        return kept[0] + kept[-1]

    def backward(value):
        value.backward(retain_graph=True)

    with at_home(model.parameters()), pytest.raises(RuntimeError, match="modified by an inplace operation"):
        SharpBackward(model, sam(0.1), backward=backward)(loss)


LAYOUTS = {
    "one flat buffer": lambda shape, flat, at: flat[at : at + shape.numel()].view(shape),
    "every second place": lambda shape, flat, at: flat[2 * at : 2 * (at + shape.numel()) : 2].view(shape),
    "turned": lambda shape, flat, at: (
        torch.empty(shape[::-1]).double().t() if len(shape) == 2 else torch.empty(shape).double()
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("walk", [WALK, asam(0.1)], ids=["ga_sam", "asam"])
@pytest.mark.parametrize("in_place", [False, True])
def test_views_of_any_layout_walk_alike_and_keep_their_strides(layout, walk, in_place):
    model, memory, at, strides = network(), torch.zeros(200).double(), 0, []
    for parameter in model.parameters():
        view = LAYOUTS[layout](parameter.shape, memory, at)
        at += parameter.numel()
        parameter.data = view.copy_(parameter.data)

    usual = loss_of(model)

    def loss():
        strides.append([p.stride() for p in model.parameters()])
        return usual()

    assert_equal(stepped(model, loss, walk, in_place=in_place), expected(walk))
    assert all(each == strides[0] for each in strides)


@pytest.mark.parametrize("in_place", [False, True])
def test_another_name_of_the_memory_sees_the_walk_only_in_place(in_place):
    """A view, or a state dict that was taken before; a model that reads by such a name is told so."""
    weight = nn.Parameter(torch.randn(50).double())
    view, seen, places = weight.detach(), [], []

    def loss():
        seen.append(view.clone())
        places.append(weight.data_ptr())
        return (view + (weight - weight.detach())).square().sum()

    sharp = SharpBackward([("w", weight)], ga_sam(0.1, steps=2), in_place=in_place)
    sharp(loss)
    assert torch.equal(seen[0], seen[1]) != in_place
    assert sharp.last.verdict().startswith("without effect: ") != in_place
    assert torch.equal(view, seen[0])
    sharp(loss)
    assert places[1] == places[2] == places[4]  # the other memory is kept


def parametrized(model):
    model[0] = weight_norm(model[0])
    return model


READERS = {
    "parametrized": parametrized,
    "functional_call": lambda model: lambda x: functional_call(model, dict(model.named_parameters()), x),
    "script": torch.jit.script,
    "trace": lambda model: torch.jit.trace(model, batch()[0]),
}


@pytest.mark.parametrize("how", READERS)
@pytest.mark.filterwarnings("ignore")
def test_other_ways_to_run_a_model_follow(how):
    """The walk in place is the same."""
    (x, y), found = batch(), []
    for in_place in (False, True):
        model = network()
        reader = READERS[how](model)
        found.append(stepped(model, lambda r=reader: nn.functional.cross_entropy(r(x), y), in_place=in_place))
    assert_equal(*found)
    assert found[0][0][1] != found[0][0][0]
    if how != "parametrized":
        assert_equal(found[0], expected())


def test_writes_of_a_displaced_pass_vanish():
    words = nn.Embedding(5, 3, max_norm=1.0).double()
    with torch.no_grad():
        words.weight.mul_(0.1)
    with at_home(words.parameters()):
        SharpBackward(words, sam(5.0))(lambda: (words(torch.tensor([1, 2])) + 1).square().sum())


def test_weights_that_hide_their_memory_are_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    hidden = nn.Parameter(TwoTensor(torch.randn(4), torch.randn(4)))
    with pytest.raises(TypeError, match=r"TwoTensor, whose memory the walk can't exchange: .*'perturb': False"):
        SharpBackward([("w", hidden)], sam(0.1))(lambda: hidden.square().sum())


def test_copies_and_pickles_leave_the_other_memory_behind():
    model = nn.Linear(300, 300)
    sharp = SharpBackward(model.parameters(), sam(0.1))
    empty = len(pickle.dumps(sharp))
    for _ in range(3):
        sharp(lambda: model(torch.ones(1, 300)).square().sum())
        model.zero_grad()
    assert len(pickle.dumps(sharp)) < 1.1 * empty
    twin = copy.deepcopy(sharp)
    with warnings.catch_warnings(action="ignore"), at_home(twin.parameters):
        twin(lambda: sum(p.square().sum() for p in twin.parameters))
