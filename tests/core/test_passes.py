"""What surrounds a pass: shared noise, and running statistics, which only the clean pass updates."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, frozen_batchnorm, ga_sam, same_noise, together
from problems import batch
from tolerances import same_bits

WORDS = r"displaced weights count in the running statistics .*: pass the model .* SharpBackward\(model\)"


@pytest.fixture
def noisy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    return model, batch()


def through_backward(model, loss, *given, **options):
    sharp = SharpBackward(*(given or [model.parameters()]), ga_sam(1e-3, steps=2), **options)
    return lambda: sharp(loss)


def through_closure(own, loss, **options):
    optimizer = SharpnessAware(torch.optim.SGD(own.parameters(), lr=0.1), ga_sam(1e-3, steps=2), **options)
    return lambda: optimizer.step(lambda: (value := loss()).backward() or value)


ENTRIES = pytest.mark.parametrize("entry", [through_backward, through_closure])


def masks_of(model, data, around, steps=2):
    """What the dropout layer let through in each pass."""
    x, y = data
    seen = []
    handle = model[2].register_forward_hook(lambda module, inputs, output: seen.append(output == 0))
    around = together(around, frozen_batchnorm(model))
    SharpBackward(model.parameters(), ga_sam(1e-9, steps=steps), around=around)(lambda: cross_entropy(model(x), y))
    handle.remove()
    return seen


class TestNoise:
    def test_passes_draw_fresh_masks_unless_they_share_noise(self, noisy):
        fresh = masks_of(*noisy, lambda k, last: torch.enable_grad())
        shared = masks_of(*noisy, same_noise())
        assert not torch.equal(fresh[0], fresh[1])
        assert all(torch.equal(mask, shared[0]) for mask in shared)

    def test_steps_still_differ_and_the_generator_ends_as_after_one_pass(self, noisy):
        model, (x, _) = noisy
        around = same_noise()
        torch.manual_seed(5)
        first, second = masks_of(*noisy, around)[0], masks_of(*noisy, around)[0]
        after = torch.rand(3)
        assert not torch.equal(first, second)
        torch.manual_seed(5)
        model(x), model(x)
        assert torch.equal(after, torch.rand(3))

    def test_noise_after_a_failure_goes_on_as_if_nothing_was_set_back(self, noisy):
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


class Averaged(nn.Module):
    """Running statistics of a user's own: one buffer is written, the other replaced."""

    def __init__(self):
        super().__init__()
        for name in ("written", "replaced"):
            self.register_buffer(name, torch.zeros(6).double())
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


def around_instances(**options):
    """Rows of two halves, each normalised by itself."""
    halves = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, **options), nn.Flatten())
    return nn.Sequential(nn.Linear(6, 6), halves, nn.Linear(6, 3)).double()


class TestStatistics:
    @pytest.mark.parametrize("how", ["model", "context", "nested", "optimizer"])
    def test_running_statistics_count_the_clean_pass_only(self, noisy, how):
        model, (x, y) = noisy
        once = copy.deepcopy(model)
        once[:2](x)
        around = frozen_batchnorm(model)
        options = {
            "model": {},
            "context": {"around": around},
            "nested": {"around": together(around, around, frozen_batchnorm(model[1]))},
            "optimizer": {"model": model},
        }[how]
        entry = through_closure if how == "optimizer" else through_backward
        given = [model] if how == "model" else []
        entry(model, lambda: cross_entropy(model(x), y), *given, **options)()
        assert same_bits(model[1].buffers(), once[1].buffers())
        assert model[1].track_running_stats

    def test_statistics_may_count_every_pass(self, noisy):
        model, (x, y) = noisy
        through_backward(model, lambda: cross_entropy(model(x), y), model, batchnorm="every pass")()
        assert model[1].num_batches_tracked == 3

    def test_statistics_thaw_after_a_failure(self, noisy):
        model, (x, y), calls = *noisy, []

        def failing():
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return cross_entropy(model(x), y)

        with pytest.raises(KeyboardInterrupt):
            through_backward(model, failing, around=together(same_noise(), frozen_batchnorm(model)))()
        assert model[1].track_running_stats
        assert model[1].num_batches_tracked == 1
        model(x)
        assert model[1].num_batches_tracked == 2

    def test_statistics_of_instances_count_the_clean_pass_only(self):
        model, (x, y) = around_instances(track_running_stats=True), batch()
        once = copy.deepcopy(model)
        once(x)
        around = frozen_batchnorm(model)
        through_backward(model, lambda: cross_entropy(model(x), y), around=together(around, around))()
        assert same_bits(model[1][1].buffers(), once[1][1].buffers())
        for _ in range(2):  # frozen instances are normalised as always, also with the running statistics
            expected = model(x)
            with around(1, True):
                assert same_bits([model(x)], [expected])
            model.eval()

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
    @pytest.mark.parametrize(
        "script", [torch.jit.script, lambda model: torch.jit.trace(model, torch.zeros(2, 6).double())]
    )
    def test_scripted_statistics_count_the_clean_pass_only(self, noisy, script):
        model, (x, y) = noisy
        whole = nn.Sequential(script(model[:2]), *model[2:])
        before = dict(whole.named_buffers())["0.1.num_batches_tracked"].item()  # tracing runs the model as well
        SharpBackward(whole, ga_sam(0.1, steps=3))(lambda: cross_entropy(whole(x), y))
        assert dict(whole.named_buffers())["0.1.num_batches_tracked"].item() == before + 1

    @pytest.mark.parametrize(("own", "names"), [(Averaged, ("written", "replaced")), (Unnoticed, ("ema",))])
    def test_other_running_statistics_count_the_clean_pass_only(self, own, names):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), own(), nn.Linear(6, 3)).double()
        x, y = batch()
        expected = 0.1 * model[0](x).detach().mean(0)
        SharpBackward(model, ga_sam(0.1, steps=3))(lambda: cross_entropy(model(x), y))
        for name in names:
            torch.testing.assert_close(getattr(model[1], name), expected, rtol=1e-12, atol=1e-12)


def normalised(norm=nn.BatchNorm1d, **options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8, **options), nn.Tanh(), nn.Linear(8, 3)).double()


def plainly(model, x):
    return model(x)


def checkpointed(model, x):
    return checkpoint(model, x, use_reentrant=False)


def kept_on_the_host(model, x):
    with torch.autograd.graph.save_on_cpu():
        return model(x)


def said(entry, model, forward=plainly, calls=3, **options):
    """What is said in these calls."""
    x, y = batch()
    call = entry(model, lambda: cross_entropy(forward(model, x), y), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            call()
    return [str(each.message) for each in caught]


class TestWarning:
    """If only the parameters were given, nothing can be frozen: it is said once, read off the graph."""

    @ENTRIES
    @pytest.mark.parametrize("forward", [plainly, checkpointed, kept_on_the_host])
    def test_counting_displaced_passes_is_said_once_unless_they_are_frozen(self, entry, forward):
        for make in (normalised, lambda: around_instances(track_running_stats=True)):
            [message] = said(entry, make(), forward)
            assert re.search(WORDS, message)
            model = make()
            assert said(entry, model, forward, around=frozen_batchnorm(model)) == []

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
