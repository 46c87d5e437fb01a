"""Contexts around a pass: shared noise, frozen statistics; nested, combined, interrupted."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, frozen_batchnorm, ga_sam, same_noise, together
from problems import batch
from tolerances import same_bits


@pytest.fixture
def noisy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    return model, batch()


def masks_of(model, data, around, steps=2):
    """What the dropout layer let through in each pass."""
    x, y = data
    seen = []
    handle = model[2].register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
    around = together(around, frozen_batchnorm(model))
    SharpBackward(model.parameters(), ga_sam(1e-9, steps=steps), around=around)(lambda: cross_entropy(model(x), y))
    handle.remove()
    return seen


def test_passes_draw_fresh_masks_unless_they_share_noise(noisy):
    fresh = masks_of(*noisy, lambda k, last: torch.enable_grad())
    shared = masks_of(*noisy, same_noise())
    assert not torch.equal(fresh[0], fresh[1])
    assert all(torch.equal(mask, shared[0]) for mask in shared)


def test_steps_still_differ_and_the_generator_ends_as_after_one_pass(noisy):
    model, (x, _) = noisy
    around = same_noise()
    torch.manual_seed(5)
    first, second = masks_of(*noisy, around)[0], masks_of(*noisy, around)[0]
    after = torch.rand(3)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    model(x), model(x)
    assert torch.equal(after, torch.rand(3))


def test_noise_after_a_failure_goes_on_as_if_nothing_was_set_back(noisy):
    around = same_noise()
    with around(0, False):
        torch.rand(1)
    state = torch.get_rng_state()

    def failing():
        with around(1, True):
            torch.rand(7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert torch.equal(torch.get_rng_state(), state)
    masks = masks_of(*noisy, around)
    assert torch.equal(masks[0], masks[2])


def test_walks_inside_a_pass_have_their_own_noise():
    around = same_noise()
    outer, inner = [], []
    for k in range(2):
        with around(k, k == 1):
            outer.append(torch.rand(1))
            for j in range(2):
                with around(j, j == 1):
                    inner.append(torch.rand(1))
            outer.append(torch.rand(1))
    assert torch.equal(outer[0], outer[2])
    assert torch.equal(outer[1], outer[3])
    assert all(torch.equal(value, inner[0]) for value in inner)
    assert not torch.equal(outer[0], inner[0])


def statistics(model):
    return [buffer.clone() for buffer in model[1].buffers()]


@pytest.mark.parametrize("nested", [False, True])
def test_running_statistics_count_the_clean_pass_only(noisy, nested):
    model, (x, y) = noisy
    x_only = nn.Sequential(model[0], model[1])
    start = statistics(model)
    x_only(x)
    once = statistics(model)
    for buffer, value in zip(model[1].buffers(), start, strict=True):
        buffer.copy_(value)

    around = frozen_batchnorm(model)
    if nested:
        around = together(around, around, frozen_batchnorm(model[1]))
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=3), around=around)
    sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(statistics(model), once)
    assert model[1].track_running_stats

    with pytest.warns(UserWarning, match="running statistics"):
        SharpBackward(model.parameters(), ga_sam(0.1, steps=3))(lambda: cross_entropy(model(x), y))
    assert model[1].num_batches_tracked == 5  # without the context every pass counts


def test_frozen_passes_normalise_by_their_batch(noisy):
    model, (x, _) = noisy
    around = frozen_batchnorm(model)
    plain = nn.Sequential(model[0], model[1])
    with around(0, False):
        expected = plain(x)
    with around(1, True):
        assert torch.equal(plain(x), expected)


def test_statistics_thaw_after_a_failure(noisy):
    model, (x, y) = noisy
    calls = []

    def failing():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return cross_entropy(model(x), y)

    around = together(same_noise(), frozen_batchnorm(model))
    with pytest.raises(KeyboardInterrupt):
        SharpBackward(model.parameters(), ga_sam(0.1), around=around)(failing)
    assert model[1].track_running_stats
    before = model[1].num_batches_tracked.item()
    model(x)
    assert model[1].num_batches_tracked == before + 1


def test_models_without_statistics_and_in_eval_mode_are_left_alone(noisy):
    model, (x, y) = noisy
    model[1] = nn.BatchNorm1d(8, track_running_stats=False).double()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1), around=frozen_batchnorm(model))
    sharp(lambda: cross_entropy(model(x), y))
    assert not model[1].track_running_stats
    model.eval()
    sharp(lambda: cross_entropy(model(x), y))
    assert not model[1].training


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_freeze_their_own_model(noisy, copier):
    model, (x, y) = noisy
    sharp = SharpBackward(model.parameters(), ga_sam(0.1), around=frozen_batchnorm(model))
    twin, twin_sharp = copier((model, sharp))
    twin_sharp(lambda: cross_entropy(twin(x), y))
    assert twin[1].num_batches_tracked == 1
    assert model[1].num_batches_tracked == 0


def instance_norm():
    torch.manual_seed(0)
    norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Conv1d(2, 3, 1), norm).double(), torch.randn(4, 2, 5).double()


def test_statistics_of_instances_count_the_clean_pass_only():
    (model, x), (once, _) = instance_norm(), instance_norm()
    once(x)
    around = together(frozen_batchnorm(model), frozen_batchnorm(model[1]))
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2), around=around)
    sharp(lambda: model(x).pow(3).mean())
    assert same_bits(model[1].buffers(), once[1].buffers())


def test_frozen_instances_normalise_as_ever():
    model, x = instance_norm()
    around, expected = frozen_batchnorm(model), model(x)
    with around(1, True):
        assert same_bits([model(x)], [expected])
    model.eval()
    expected = model(x)
    with around(1, True):
        assert same_bits([model(x)], [expected])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("script", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(2, 6).double())])
def test_scripted_statistics_count_the_clean_pass_only(noisy, script):
    model, (x, y) = noisy
    whole = nn.Sequential(script(model[:2]), *model[2:])
    before = dict(whole.named_buffers())["0.1.num_batches_tracked"].item()  # tracing runs the model as well
    SharpBackward(whole, ga_sam(0.1, steps=3))(lambda: cross_entropy(whole(x), y))
    assert dict(whole.named_buffers())["0.1.num_batches_tracked"].item() == before + 1


class Averaged(nn.Module):
    """Running statistics of a user's own: one buffer is written, the other replaced."""

    def __init__(self):
        super().__init__()
        self.register_buffer("written", torch.zeros(6).double())
        self.register_buffer("replaced", torch.zeros(6).double())
        self.register_buffer("constant", torch.ones(6).double())

    def forward(self, x):
        self.written.lerp_(x.detach().mean(0), 0.1)
        self.replaced = 0.9 * self.replaced + 0.1 * x.detach().mean(0)
        return x * self.constant


class Unnoticed(nn.Module):
    """Statistics that are written behind torch's back, one that is an expanded view, and one that a pass deletes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(6).double())
        self.register_buffer("expanded", None)
        self.register_buffer("deleted", torch.zeros(6).double())

    def forward(self, x):
        self.ema.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.expanded = torch.arange(6.0).double().expand(len(x), 6)
        if "deleted" in self._buffers:
            self.deleted.add_(1)
            del self.deleted
        return x + self.expanded


def test_statistics_that_torch_does_not_notice_count_the_clean_pass_only():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Unnoticed(), nn.Linear(6, 3)).double()
    x, y = batch()
    expected = 0.1 * model[0](x).detach().mean(0)
    SharpBackward(model, ga_sam(0.1, steps=3))(lambda: cross_entropy(model(x), y))
    torch.testing.assert_close(model[1].ema, expected, rtol=1e-12, atol=1e-12)
    assert model[1].expanded.shape == (12, 6)


def test_other_running_statistics_count_the_clean_pass_only():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), Averaged(), nn.Linear(6, 3)).double()
    x, y = batch()
    expected = 0.1 * model[0](x).detach().mean(0)
    SharpBackward(model, ga_sam(0.1, steps=3))(lambda: cross_entropy(model(x), y))
    for buffer in (model[1].written, model[1].replaced):
        torch.testing.assert_close(buffer, expected, rtol=1e-12, atol=1e-12)


def test_statistics_that_begin_to_count_later_count_the_clean_pass_only(noisy):
    model, (x, y) = noisy
    model[1].eval()
    sharp = SharpBackward(model, ga_sam(0.1, steps=3))
    sharp(lambda: cross_entropy(model(x), y))
    model[1].train()
    expected = 0.1 * model[0](x).detach().mean(0)
    model[1].reset_running_stats()
    sharp(lambda: cross_entropy(model(x), y))
    torch.testing.assert_close(model[1].running_mean, expected, rtol=1e-12, atol=1e-12)
    assert model[1].num_batches_tracked == 1


def test_statistics_may_count_every_pass(noisy):
    model, (x, y) = noisy
    SharpBackward(model, ga_sam(0.1, steps=3), batchnorm="every pass")(lambda: cross_entropy(model(x), y))
    assert model[1].num_batches_tracked == 4


def test_statistics_are_kept_by_the_optimizer_that_knows_the_model(noisy):
    model, (x, y) = noisy
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1), model=model)

    def closure():
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert model[1].num_batches_tracked == 1
