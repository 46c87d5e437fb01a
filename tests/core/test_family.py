"""The methods of the family against references from their papers, over both entry points."""

import copy
import math
import pkgutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from family_reference import OPTIONS, PRESETS, RATE, expected_run, model_of, reference_of
from gasam import (
    Method,
    Schedule,
    SharpBackward,
    SharpnessAware,
    family,
    friendly_sam,
    gsam,
    look_sam,
    normalisation,
    sam,
    sam_on,
    wsam,
)
from gasam.family import norm, scaled
from problems import batch
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")

WALKS = [
    {"norm": 2.0, "epsilon": 0.1},
    {"norm": 2.0, "budget": 0.2, "cap": 0.03},
    {"norm": 1.5, "budget": 0.2},
    {"norm": math.inf, "epsilon": 0.02},
    {"norm": math.inf, "budget": 0.2, "cap": 0.03},
]


def by_backward(model, perturbation, seeds=range(20), *, sharp=None, data=batch, factor=lambda step: 1.0, **options):
    now = [0]
    sharp = sharp or SharpBackward(
        model, perturbation, backward=lambda loss: (loss * factor(now[0])).backward(), **options
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for now[0] in seeds:
        x, y = data(seed=now[0])
        optimizer.zero_grad()
        sharp(lambda x=x, y=y: cross_entropy(model(x), y))
        for parameter in model.parameters():
            parameter.grad /= factor(now[0])
        optimizer.step()
    return sharp


def by_closure(model, perturbation, seeds=range(20), *, sharp=None, data=batch, **options):
    optimizer = sharp or SharpnessAware(
        torch.optim.SGD(model.named_parameters(), lr=RATE), perturbation, model=model, **options
    )
    for seed in seeds:
        x, y = data(seed=seed)

        def closure(x=x, y=y):
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    return optimizer


ENTRIES = [by_backward, by_closure]


def kept_by(sharp):
    """The tensors that the method keeps, by name."""
    state = sharp.state_dict()
    return state.get("walk", state).get("method", {})


def test_every_file_of_the_folder_has_a_reference_here():
    assert {file.name for file in pkgutil.iter_modules(family.__path__)} == set(OPTIONS) == set(PRESETS)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("walk", WALKS, ids=str)
@pytest.mark.parametrize("method", OPTIONS)
def test_twenty_steps_equal_the_paper(method, walk, entry):
    model = model_of()
    sharp = entry(model, PRESETS[method](**walk, **OPTIONS[method]))
    options = {"p" if name == "norm" else name: value for name, value in walk.items()}
    expected, reference = expected_run(method, **options)
    assert error(flat(model.parameters()), expected) < EXACT
    assert error(sharp.last.norms[-1], np.linalg.norm(reference.offset) if len(sharp.last.losses) > 1 else 0.0) < EXACT
    assert error(flat(model_of().parameters()), flat(model.parameters())) > 0.01  # the steps did something


@pytest.mark.parametrize("scale", ["gradient_strength", "weight"])
@pytest.mark.parametrize("granularity", ["element", "filter", "layer", "module"])
@pytest.mark.parametrize("method", OPTIONS)
def test_methods_combine_with_scales_and_groups(method, scale, granularity):
    model, options = model_of(), {"scale": scale, "granularity": granularity}
    walk = replace(PRESETS[method](0.05, **OPTIONS[method]), **options)
    by_backward(model, walk, range(5))
    assert error(flat(model.parameters()), expected_run(method, 5, epsilon=0.05, **options)[0]) < EXACT


@pytest.mark.parametrize("method", OPTIONS)
def test_a_loss_scale_that_changes_in_every_step_changes_nothing(method):
    """The running mean and the kept component are those of the unscaled gradients."""
    model = model_of()
    scales = [65536.0, 1 / 3, 12.0, 1.0]
    by_backward(model, PRESETS[method](0.1, **OPTIONS[method]), factor=lambda step: scales[step % 4])
    assert error(flat(model.parameters()), expected_run(method, epsilon=0.1)[0]) < EXACT


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_has_the_same_bits(method, entry, dtype, tmp_path):
    def data(seed):
        return batch(dtype, seed=seed)

    walk = PRESETS[method](0.1, **OPTIONS[method])
    whole, first = model_of(dtype=dtype), model_of(dtype=dtype)
    entry(whole, walk, range(8), data=data)
    sharp = entry(first, walk, range(4), data=data)
    torch.save({"model": first.state_dict(), "sharp": sharp.state_dict()}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again = model_of(dtype=dtype)
    again.load_state_dict(saved["model"])
    resumed = entry(again, walk, [], data=data)
    resumed.load_state_dict(saved["sharp"])
    entry(again, walk, range(4, 8), data=data, sharp=resumed)
    assert same_bits(again.parameters(), whole.parameters())


@pytest.mark.parametrize("method", ["friendly_sam", "look_sam"])
def test_state_is_allocated_once_in_float32_or_wider(method):
    model, places = model_of(dtype=torch.bfloat16), []
    sharp = SharpBackward(model, PRESETS[method](0.1, **OPTIONS[method]))
    for seed in range(7):
        x, y = batch(torch.bfloat16, seed=seed)
        sharp(lambda x=x, y=y: cross_entropy(model(x), y))
        (kept,) = kept_by(sharp).values()
        places.append([tensor.data_ptr() for tensor in kept])
        assert {tensor.dtype for tensor in kept} == {torch.float32}
    assert all(place == places[0] for place in places)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("method", OPTIONS)
def test_a_step_that_is_not_finite_leaves_weights_and_state_alone(method, entry):
    """A NaN in the gradient of one pass: the next steps are as if the step had been left out."""
    for bad_pass in (0, 1):
        model, passes = model_of(), []
        sharp = entry(model, PRESETS[method](0.1, **OPTIONS[method]), range(5))  # so that LookSAM walks next
        kept, before = copy.deepcopy(kept_by(sharp)), [p.detach().clone() for p in model.parameters()]

        def poison(gradient, passes=passes, bad_pass=bad_pass):
            passes.append(0)
            return gradient * (math.nan if len(passes) == bad_pass + 1 else 1.0)

        model[3].bias.register_hook(poison)
        if entry is by_closure:  # which skips the step then, as a loss scaler does
            sharp.base.register_step_pre_hook(lambda *_, m=model: m.zero_grad())
            by_closure(model, None, [5], sharp=sharp)
        else:
            x, y = batch(seed=5)
            model.zero_grad()
            sharp(lambda m=model, x=x, y=y: cross_entropy(m(x), y))
            finite = flat([p.grad for p in model.parameters()]).isfinite().all()
            assert finite == (bad_pass == 0 and method not in ("gsam", "wsam"))
        assert len(passes) == 2
        assert same_bits(model.parameters(), before)
        for name, tensors in kept_by(sharp).items():
            assert flat(tensors).isfinite().all()
            if bad_pass == 0 or method == "look_sam":  # Friendly-SAM's mean has seen the clean gradient
                assert same_bits(tensors, kept[name])


class Broken(Method):
    def fold(self, gradients, kept, strength):
        scaled(gradients[0], 0.0)
        raise ZeroDivisionError


def test_everything_is_restored_if_a_method_raises():
    model, (x, y) = model_of(), batch()
    sharp = SharpBackward(model, replace(sam(0.1), method=Broken()))
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    held = [parameter.grad for parameter in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), before)
    assert all(p.grad is own and (own == 3).all() for p, own in zip(model.parameters(), held, strict=True))


@pytest.mark.parametrize("method", ["gsam", "wsam"])
@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_the_weight_of_a_schedule_applies_to_the_combined_gradient(method, weight):
    (x, y), found = batch(), []
    for schedule in (None, Schedule(every=2, weight=weight)):
        model = model_of()
        SharpBackward(model, PRESETS[method](0.1), schedule=schedule)(lambda m=model: cross_entropy(m(x), y))
        found.append(flat([p.grad for p in model.parameters()]))
    model = model_of()
    clean = flat(torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))
    assert error(found[1], clean + weight * (found[0] - clean)) < EXACT


@pytest.mark.parametrize("entry", ENTRIES)
def test_look_sam_needs_one_pass_in_the_steps_between(entry):
    model, passes = model_of(), []
    sharp = entry(model, look_sam(0.1), [])
    for seed in range(11):
        entry(model, None, [seed], sharp=sharp)
        passes.append(len(sharp.last.losses))
    assert passes == [2, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2]
    assert sharp.last.verdict() == "fine"


@pytest.mark.parametrize("method", ["gsam", "wsam", "friendly_sam", "look_sam"])
def test_sparse_gradients_are_refused(method):
    words = nn.Embedding(10, 4, sparse=True)
    sharp = SharpBackward(words, PRESETS[method](0.1))
    before = words.weight.detach().clone()
    with pytest.raises(TypeError, match=r"sparse gradient of an embedding: use sparse=False"):
        sharp(lambda: words(torch.tensor([1, 3])).square().sum())
    assert torch.equal(words.weight, before)
    assert words.weight.grad is None


class NoList(Method):
    def fold(self, gradients, kept, strength):
        return norm(gradients[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: look_sam(0.1, alpha=-1), r"alpha must be a finite number >= 0, got -1"),
        (lambda: wsam(0.1, gamma=1.0), r"gamma must be a number in \[0, 1\), got 1.0"),
        (lambda: friendly_sam(0.1, decay=1), r"decay must be a number in \[0, 1\), got 1"),
        (lambda: gsam(rho=0.1), r"rho is called epsilon here: write sam\(epsilon=0.1"),
        (lambda: replace(look_sam(0.1), steps=2), r"LookSAM is defined for 1 ascent step, got steps=2"),
        (lambda: replace(friendly_sam(0.1), steps=2), r"FriendlySAM is defined for 1 ascent step"),
        (lambda: replace(sam(0.1), risk="worst"), r"risk must be one of 'mean', 'final', got 'worst'"),
        (lambda: replace(sam(0.1), method="up"), r"method must be a gasam.Method or None, got 'up'"),
        (lambda: SharpBackward(model_of(), look_sam(0.1), schedule=Schedule()), r"Schedule\(every=5, weight=1\)"),
        (lambda: SharpBackward(model_of(), look_sam(0.1), schedule=Schedule(every=4)), r"every >= 2 and weight=1"),
        (lambda: SharpBackward(model_of(), look_sam(0.1), schedule=lambda step: 1.0), r"every >= 2 and weight=1"),
        (lambda: SharpBackward(nn.Linear(2, 2), sam_on(0.1)), "no parameter of Linear moves"),
        (lambda: SharpBackward(model_of().parameters(), sam_on(0.1)), r"give the model, as in SharpBackward\(model"),
        (
            lambda: by_backward(model_of(), replace(sam(0.1), method=NoList()), range(1)),
            r"NoList.fold must return a list with one tensor for each parameter.* got Tensor",
        ),
    ],
)
def test_what_can_not_be_right_is_refused_by_name(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_normalisation_layers_are_known_by_their_class():
    class LlamaRMSNorm(nn.Module):
        pass

    class Block(nn.BatchNorm2d):
        pass

    kinds = [nn.BatchNorm1d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.RMSNorm(2), nn.InstanceNorm3d(2), Block(2)]
    assert all(map(normalisation, [*kinds, LlamaRMSNorm(), nn.SyncBatchNorm(2)]))
    assert not any(map(normalisation, [nn.Linear(2, 2), nn.Embedding(2, 2), nn.Sequential(nn.LayerNorm(2))]))


@pytest.mark.parametrize("method", ["gsam", "wsam"])
@pytest.mark.parametrize("steps", [2, 3])
def test_gsam_and_wsam_use_the_last_gradient_of_a_longer_walk(method, steps):
    (x, y), model, gradients = batch(), model_of(), []
    parameters = list(model.parameters())

    class Spy(Method):
        def fold(self, given, kept, strength):
            gradients.extend(flat(each).clone() for each in given)
            return given[-1]

    walk = replace(PRESETS[method](0.1, **OPTIONS[method]), steps=steps)
    SharpBackward(model, replace(walk, method=Spy()))(lambda: cross_entropy(model(x), y))
    model.zero_grad()
    SharpBackward(model, walk)(lambda: cross_entropy(model(x), y))
    assert len(gradients) == steps + 1
    calls = iter([gradients[0], gradients[-1]])
    reference = reference_of(method, model_of(), epsilon=0.1)
    expected = reference.gradient(flat(parameters).numpy(), lambda w: (0.0, next(calls).numpy()))
    assert error(flat([p.grad for p in parameters]), expected) < EXACT
