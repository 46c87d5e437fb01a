"""What surrounds a pass: shared noise, and running statistics, which only the clean pass updates."""

import copy
import re
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, frozen_batchnorm, ga_sam, sam, same_noise, together
from problems import ENTRIES, batch, closure_of, loss_of, messages_of, through_backward
from tolerances import EXACT, error, same_bits

WORDS = r"displaced weights count in the running statistics .*: pass the model .* SharpBackward\(model\)"
WALK = ga_sam(1e-3, steps=2)


@pytest.fixture
def noisy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def masks_of(model, around):
    """What the dropout layer let through in each pass."""
    seen = []
    handle = model[2].register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
    through_backward(model, ga_sam(1e-9, steps=2), around=together(around, frozen_batchnorm(model)))
    handle.remove()
    return seen


class TestNoise:
    def test_passes_draw_fresh_masks_unless_they_share_noise_and_steps_still_differ(self, noisy):
        fresh, around = masks_of(noisy, lambda k, last: torch.enable_grad()), same_noise()
        assert not torch.equal(fresh[0], fresh[1])
        torch.manual_seed(5)
        first, second = masks_of(noisy, around), masks_of(noisy, around)
        after = torch.rand(3)
        assert all(torch.equal(mask, first[0]) for mask in first)
        assert not torch.equal(first[0], second[0])
        torch.manual_seed(5)
        noisy(batch()[0]), noisy(batch()[0])
        assert torch.equal(after, torch.rand(3))  # the generator ends as after one pass a step

    def test_a_pass_of_ascent_shares_the_masks_and_leaves_the_generator(self, noisy):
        seen, loss = [], loss_of(noisy)
        noisy[2].register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
        torch.manual_seed(5)
        SharpBackward(noisy, sam(1e-9), around=same_noise())(loss, ascent=loss)
        after = torch.rand(3)
        assert torch.equal(seen[0], seen[1])
        torch.manual_seed(5)
        loss()
        assert torch.equal(after, torch.rand(3))

    def test_noise_after_a_failure_goes_on_as_if_nothing_was_set_back(self, noisy):
        around = same_noise()
        with around(0, False):
            torch.rand(1)
        state = torch.get_rng_state()
        with suppress(KeyboardInterrupt), around(1, True):
            torch.rand(7)
            raise KeyboardInterrupt
        assert torch.equal(torch.get_rng_state(), state)
        masks = masks_of(noisy, around)
        assert torch.equal(masks[0], masks[2])


class Averaged(nn.Module):
    """Statistics of a user's own: written, replaced, or written behind torch's back; also expanded or deleted ones."""

    def __init__(self):
        super().__init__()
        for name in ("written", "replaced", "hidden", "deleted"):
            self.register_buffer(name, torch.zeros(6).double())
        self.register_buffer("expanded", None)

    def forward(self, x):
        self.written.lerp_(x.detach().mean(0), 0.1)
        self.replaced = 0.9 * self.replaced + 0.1 * x.detach().mean(0)
        self.hidden.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.expanded = torch.arange(6.0).double().expand(len(x), 6)
        if "deleted" in self._buffers:
            self.deleted.add_(1)
            del self.deleted
        return x + self.expanded


def around_instances(**options):
    """Rows of two halves, each normalised by itself."""
    halves = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, **options), nn.Flatten())
    return nn.Sequential(nn.Linear(6, 6), halves, nn.Linear(6, 3)).double()


class TestStatistics:
    @pytest.mark.parametrize("how", ["model", "context", "nested", "optimizer"])
    def test_running_statistics_count_the_clean_pass_only(self, noisy, how):
        once, loss = copy.deepcopy(noisy), loss_of(noisy)
        once[:2](batch()[0])
        around = frozen_batchnorm(noisy)
        if how == "model":
            SharpBackward(noisy, WALK)(loss)
        elif how == "optimizer":
            optimizer = SharpnessAware(torch.optim.SGD(noisy.parameters(), lr=0.1), WALK, model=noisy)
            optimizer.step(closure_of(loss))
        else:
            nested = together(around, around, frozen_batchnorm(noisy[1]))
            through_backward(noisy, WALK, around=nested if how == "nested" else around)
        assert same_bits(noisy[1].buffers(), once[1].buffers())
        assert noisy[1].track_running_stats

    def test_statistics_may_count_every_pass(self, noisy):
        SharpBackward(noisy, WALK, batchnorm="every pass")(loss_of(noisy))
        assert noisy[1].num_batches_tracked == 3

    def test_statistics_thaw_after_a_failure(self, noisy):
        calls, loss = [], loss_of(noisy)

        def failing():
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return loss()

        with pytest.raises(KeyboardInterrupt):
            through_backward(noisy, WALK, loss=failing, around=together(same_noise(), frozen_batchnorm(noisy)))
        assert noisy[1].num_batches_tracked == 1
        loss()
        assert noisy[1].num_batches_tracked == 2

    def test_statistics_of_instances_count_the_clean_pass_only(self):
        model, (x, _) = around_instances(track_running_stats=True), batch()
        once = copy.deepcopy(model)
        once(x)
        around = frozen_batchnorm(model)
        through_backward(model, WALK, around=together(around, around))
        assert same_bits(model[1][1].buffers(), once[1][1].buffers())
        for _ in range(2):  # frozen instances are normalised as always, also with the running statistics
            expected = model(x)
            with around(1, True):
                assert same_bits([model(x)], [expected])
            model.eval()

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
    @pytest.mark.parametrize("how", ["script", "trace"])
    def test_scripted_statistics_count_the_clean_pass_only(self, noisy, how):
        first = torch.jit.script(noisy[:2]) if how == "script" else torch.jit.trace(noisy[:2], batch()[0])
        whole = nn.Sequential(first, *noisy[2:])
        before = dict(whole.named_buffers())["0.1.num_batches_tracked"].item()  # tracing runs the model as well
        SharpBackward(whole, ga_sam(0.1, steps=3))(loss_of(whole))
        assert dict(whole.named_buffers())["0.1.num_batches_tracked"].item() == before + 1

    def test_other_running_statistics_count_the_clean_pass_only(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), Averaged(), nn.Linear(6, 3)).double()
        expected = 0.1 * model[0](batch()[0]).detach().mean(0)
        SharpBackward(model, ga_sam(0.1, steps=3))(loss_of(model))
        for name in ("written", "replaced", "hidden"):
            assert error(getattr(model[1], name), expected) < EXACT


def normalised(norm=nn.BatchNorm1d, **options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8, **options), nn.Tanh(), nn.Linear(8, 3)).double()


def checkpointed(model, x):
    return checkpoint(model, x, use_reentrant=False)


def kept_on_the_host(model, x):
    with torch.autograd.graph.save_on_cpu():
        return model(x)


def said(entry, model, forward=nn.Module.__call__, **options):
    """What is said in a call, in which all displaced passes are alike."""
    x, y = batch()
    return messages_of(lambda: entry(model, WALK, loss=lambda: cross_entropy(forward(model, x), y), **options))


class TestWarning:
    """If only the parameters were given, nothing can be frozen: it is said once, read off the graph."""

    @ENTRIES
    @pytest.mark.parametrize("forward", [nn.Module.__call__, checkpointed, kept_on_the_host])
    def test_counting_displaced_passes_is_said_once_unless_they_are_frozen(self, entry, forward):
        for make in (normalised, lambda: around_instances(track_running_stats=True)):
            [message] = said(entry, make(), forward)
            assert re.search(WORDS, message)
            model = make()
            assert said(entry, model, forward, around=frozen_batchnorm(model)) == []

    def test_it_is_said_in_the_first_call_alone(self):
        model = normalised()
        sharp = SharpBackward(model.parameters(), WALK)
        with pytest.warns(UserWarning, match=WORDS):
            sharp(loss_of(model))
        sharp(loss_of(model))  # warnings are errors here

    @ENTRIES
    def test_models_that_count_nothing_are_not_spoken_of(self, entry):
        untracked, evaluated = normalised(track_running_stats=False), normalised().eval()
        for model in (untracked, evaluated, normalised(nn.LayerNorm), around_instances()):
            assert said(entry, model) == []

    def test_compiled_graphs_say_nothing(self):
        torch.compiler.reset()
        model = normalised()
        quick = torch.compile(model, backend="aot_eager")
        assert said(through_backward, model, lambda _, x: quick(x)) == []
