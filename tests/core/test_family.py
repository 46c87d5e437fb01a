"""The methods of the family against references from their papers, over both entry points."""

import copy
import math
import pkgutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from family_reference import OPTIONS, PRESETS, RATE, expected_run, model_of, reference_of
from gasam import Method, Schedule, SharpBackward, SharpnessAware, family, look_sam, normalisation
from problems import at_home, closure_of, gradient_of, loss_of
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")

WALKS = [
    {"norm": 2.0, "epsilon": 0.1},
    {"norm": 2.0, "budget": 0.2, "cap": 0.03},
    {"norm": 1.5, "budget": 0.2},
    {"norm": math.inf, "epsilon": 0.02},
    {"norm": math.inf, "budget": 0.2, "cap": 0.03},
]


def by_backward(model, perturbation, seeds=range(20), *, sharp=None, scales=(1.0,), **options):
    sharp = sharp or SharpBackward(model, perturbation, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for seed in seeds:
        scale = scales[seed % len(scales)]
        sharp.backward = lambda loss, scale=scale: (loss * scale).backward()
        optimizer.zero_grad()
        sharp(loss_of(model, seed=seed))
        for parameter in model.parameters():
            parameter.grad /= scale
        optimizer.step()
    return sharp


def by_closure(model, perturbation, seeds=range(20), *, sharp=None, **options):
    base = torch.optim.SGD(model.named_parameters(), lr=RATE)
    optimizer = sharp or SharpnessAware(base, perturbation, model=model, **options)
    for seed in seeds:
        optimizer.step(closure_of(loss_of(model, seed=seed)))
    return optimizer


ENTRIES = pytest.mark.parametrize("entry", [by_backward, by_closure])
METHODS = pytest.mark.parametrize("method", OPTIONS)


def kept_by(sharp):
    """The tensors that the method keeps, by name."""
    state = sharp.state_dict()
    return state.get("walk", state).get("method", {})


def test_every_file_of_the_folder_has_a_reference_here():
    in_test_cheap = {"momentum_sam", "random_offsets"}
    files = {file.name for file in pkgutil.iter_modules(family.__path__)} - in_test_cheap
    assert files == set(OPTIONS) == set(PRESETS)


@ENTRIES
@pytest.mark.parametrize("walk", WALKS, ids=str)
@METHODS
def test_twenty_steps_equal_the_paper(method, walk, entry):
    model = model_of()
    sharp = entry(model, PRESETS[method](**walk, **OPTIONS[method]))
    options = {"p" if name == "norm" else name: value for name, value in walk.items()}
    expected, reference = expected_run(method, **options)
    assert error(flat(model.parameters()), expected) < EXACT
    assert error(sharp.last.norms[-1], np.linalg.norm(reference.offset) if len(sharp.last.losses) > 1 else 0.0) < EXACT
    assert error(flat(model_of().parameters()), flat(model.parameters())) > 0.01  # the steps did something


@pytest.mark.parametrize(("scale", "granularity"), [
    ("gradient_strength", "element"), ("weight", "filter"), ("gradient_strength", "layer"), ("weight", "module")
])  # fmt: skip
@METHODS
def test_methods_combine_with_scales_and_groups(method, scale, granularity):
    model, options = model_of(), {"scale": scale, "granularity": granularity}
    by_backward(model, replace(PRESETS[method](0.05, **OPTIONS[method]), **options), range(5))
    assert error(flat(model.parameters()), expected_run(method, 5, epsilon=0.05, **options)[0]) < EXACT


@METHODS
def test_a_loss_scale_that_changes_in_every_step_changes_nothing(method):
    """The running mean and the kept component are those of the unscaled gradients."""
    model = model_of()
    by_backward(model, PRESETS[method](0.1, **OPTIONS[method]), scales=(65536.0, 1 / 3, 12.0, 1.0))
    assert error(flat(model.parameters()), expected_run(method, epsilon=0.1)[0]) < EXACT


@ENTRIES
@METHODS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_has_the_same_bits(method, entry, dtype, tmp_path):
    walk = PRESETS[method](0.1, **OPTIONS[method])
    whole, first, again = (model_of(dtype) for _ in range(3))
    entry(whole, walk, range(8))
    sharp = entry(first, walk, range(4))
    assert {tensor.dtype for tensors in kept_by(sharp).values() for tensor in tensors} <= {torch.float32}
    torch.save({"model": first.state_dict(), "sharp": sharp.state_dict()}, tmp_path / "saved.pt")
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again.load_state_dict(saved["model"])
    resumed = entry(again, walk, [])
    resumed.load_state_dict(saved["sharp"])
    entry(again, walk, range(4, 8), sharp=resumed)
    assert same_bits(again.parameters(), whole.parameters())


@pytest.mark.parametrize("bad_pass", [0, 1])
@ENTRIES
@METHODS
def test_a_step_that_is_not_finite_leaves_weights_and_state_alone(method, entry, bad_pass):
    """A NaN in the gradient of one pass: the next steps are as if the step had been left out."""
    model, passes = model_of(), []
    sharp = entry(model, PRESETS[method](0.1, **OPTIONS[method]), range(5))  # so that LookSAM walks next
    kept = copy.deepcopy(kept_by(sharp))

    def poison(gradient):
        passes.append(0)
        return gradient * (math.nan if len(passes) == bad_pass + 1 else 1.0)

    model[3].bias.register_hook(poison)
    with at_home(model.parameters()):
        if entry is by_closure:  # which skips the step then, as a loss scaler does
            sharp.base.register_step_pre_hook(lambda *_: model.zero_grad())
            by_closure(model, None, [5], sharp=sharp)
        else:
            model.zero_grad()
            sharp(loss_of(model, seed=5))
            finite = gradient_of(model).isfinite().all()
            assert finite == (bad_pass == 0 and method not in ("gsam", "wsam"))
    assert len(passes) == 2
    for name, tensors in kept_by(sharp).items():
        assert flat(tensors).isfinite().all()
        if bad_pass == 0 or method == "look_sam":  # Friendly-SAM's mean has seen the clean gradient
            assert same_bits(tensors, kept[name])


@pytest.mark.parametrize("method", ["gsam", "wsam"])
@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_the_weight_of_a_schedule_applies_to_the_combined_gradient(method, weight):
    found = []
    for schedule in (None, Schedule(every=2, weight=weight)):
        model = model_of()
        SharpBackward(model, PRESETS[method](0.1), schedule=schedule)(loss_of(model))
        found.append(gradient_of(model))
    clean = gradient_of(model, loss_of(model)())
    assert error(found[1], clean + weight * (found[0] - clean)) < EXACT


@ENTRIES
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
    with at_home([words.weight]), pytest.raises(TypeError, match=r"sparse gradient of an embedding: use sparse=False"):
        sharp(lambda: words(torch.tensor([1, 3])).square().sum())
    assert words.weight.grad is None


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
    model, gradients = model_of(), []

    class Spy(Method):
        def fold(self, given, kept, strength):
            gradients.extend(flat(each).clone() for each in given)
            return given[-1]

    walk = replace(PRESETS[method](0.1, **OPTIONS[method]), steps=steps)
    SharpBackward(model, replace(walk, method=Spy()))(loss_of(model))
    model.zero_grad()
    SharpBackward(model, walk)(loss_of(model))
    assert len(gradients) == steps + 1
    calls = iter([gradients[0], gradients[-1]])
    reference = reference_of(method, model_of(), epsilon=0.1)
    expected = reference.gradient(flat(model.parameters()).numpy(), lambda w: (0.0, next(calls).numpy()))
    assert error(gradient_of(model), expected) < EXACT


def test_look_sam_follows_the_strength_between_walks():
    model = model_of()
    sharp = SharpBackward(model, look_sam(0.1, alpha=0.7), schedule=Schedule(every=2, weight=1, warmup=3))
    sharp(loss_of(model))
    [kept] = sharp.state_dict()["method"].values()
    component, clean = flat(kept), gradient_of(model, loss_of(model)())
    model.zero_grad()
    sharp(loss_of(model))
    expected = clean + 0.7 * 0.5 * clean.norm() / component.norm() * component
    assert error(gradient_of(model), expected) < EXACT
