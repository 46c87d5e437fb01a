"""Running statistics that displaced passes count in: said once, read off the graph, and nothing where all is well."""

import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, frozen_batchnorm, ga_sam
from problems import batch

WORDS = r"displaced weights count in the running statistics .*: pass the model .* SharpBackward\(model\)"


def normalised(norm=nn.BatchNorm1d, **options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), norm(8, **options), nn.Tanh(), nn.Linear(8, 3)).double()


def instances(**options):
    """Rows of two halves, each normalised by itself."""
    halves = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, **options), nn.Flatten())
    return nn.Sequential(nn.Linear(6, 6), halves, nn.Linear(6, 3)).double()


def through_backward(model, loss, **options):
    sharp = SharpBackward(model.parameters(), ga_sam(1e-3, steps=2), **options)
    return lambda: sharp(loss)


def through_closure(model, loss, **options):
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(1e-3, steps=2), **options)

    def closure():
        value = loss()
        value.backward()
        return value

    return lambda: optimizer.step(closure)


def plainly(model, x):
    return model(x)


def checkpointed(model, x):
    return checkpoint(model, x, use_reentrant=False)


def kept_on_the_host(model, x):
    with torch.autograd.graph.save_on_cpu():
        return model(x)


def said(entry, model, forward=plainly, calls=2, **options):
    """How often it is said in these calls."""
    x, y = batch()
    call = entry(model, lambda: cross_entropy(forward(model, x), y), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            call()
    return len(caught)


ENTRIES = pytest.mark.parametrize("entry", [through_backward, through_closure])
FORWARDS = pytest.mark.parametrize("forward", [plainly, checkpointed, kept_on_the_host])


@ENTRIES
def test_counting_displaced_passes_is_said(entry):
    model, (x, y) = normalised(), batch()
    with pytest.warns(UserWarning, match=WORDS):
        entry(model, lambda: cross_entropy(model(x), y))()


@ENTRIES
@FORWARDS
def test_it_is_said_once(entry, forward):
    assert said(entry, normalised(), forward, calls=3) == 1
    assert said(entry, instances(track_running_stats=True), forward, calls=3) == 1


@ENTRIES
@FORWARDS
def test_frozen_statistics_are_not_spoken_of(entry, forward):
    for model in (normalised(), instances(track_running_stats=True)):
        assert said(entry, model, forward, around=frozen_batchnorm(model)) == 0


@ENTRIES
@pytest.mark.parametrize(
    "model",
    [
        normalised(track_running_stats=False),
        normalised().eval(),
        normalised(nn.LayerNorm),
        instances(),
    ],
    ids=["untracked", "evaluated", "layers", "instances"],
)
def test_models_that_count_nothing_are_not_spoken_of(entry, model):
    assert said(entry, model) == 0


def test_looking_computes_no_checkpointed_pass_again():
    """Three passes, each computed again once, for its backward."""
    model = normalised()
    assert said(through_backward, model, checkpointed, calls=1) == 1
    assert model[1].num_batches_tracked == 6


def test_plain_passes_are_not_displaced():
    model, (x, y) = normalised(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(1e-3))
    sharp.enabled = False
    sharp(lambda: cross_entropy(model(x), y))
    sharp.enabled = True
    with pytest.warns(UserWarning, match=WORDS):
        sharp(lambda: cross_entropy(model(x), y))


def test_compiled_graphs_say_nothing():
    torch.compiler.reset()
    model = normalised()
    quick = torch.compile(model, backend="aot_eager")
    assert said(through_backward, model, lambda _, x: quick(x)) == 0


def test_bias_in_front_of_batch_norm_spoils_the_statistics_unless_they_are_frozen():
    """Batch norm removes the bias, so its gradient is rounding noise, and T moves it far. The noise is put in by hand:
    how much a processor rounds depends on its instructions."""
    torch.manual_seed(0)
    x = torch.randn(512, 20).double()
    y = x[:, :3].argmax(1)
    noise = 1e-9 * torch.randn(64).double()
    losses = {}
    for batchnorm in ("every pass", "clean pass"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)).double()
        model[0].bias.register_hook(lambda gradient: noise)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        sharp = SharpBackward(model, ga_sam(1e-4), batchnorm=batchnorm)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(50):
                some = torch.randint(512, (64,))
                optimizer.zero_grad()
                sharp(lambda m=model, i=some: cross_entropy(m(x[i]), y[i]))
                optimizer.step()
        assert len(caught) == 1
        assert re.search(r"in the last one 0\.bias moved by .* times its norm", str(caught[0].message))
        losses[batchnorm] = cross_entropy(model.eval()(x), y).item()
    assert losses["clean pass"] < 0.3
    assert losses["every pass"] > 10
