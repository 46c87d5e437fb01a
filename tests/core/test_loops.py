"""Loops as people write them: after five steps the weights are those of a loop over the paper's reference."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, ga_sam, sam
from problems import ENTRIES, TEN_WALKS, batch, network, paper_walk, put_gradient, through_backward
from tolerances import EXACT, SINGLE, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")


def micro_batches(accumulate):
    """Five steps of `accumulate` micro-batches each."""
    return [[batch(rows=4, seed=accumulate * step + i) for i in range(accumulate)] for step in range(5)]


def joined(parts):
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def tools(model):
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.2, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


def plain_loss(model, x, y):
    return cross_entropy(model(x), y)


def paper_loop(model, steps, perturbation, clip=None, loss=plain_loss, skipped=()):
    """Every entry of a step is walked by itself; the mean of the folds is clipped and given to a plain optimizer."""
    optimizer, schedule = tools(model)
    for step, parts in enumerate(steps):
        if step not in skipped:
            folds = [paper_walk(model, lambda m, p=part: loss(m, *p), perturbation)[-1] for part in parts]
            put_gradient(model, sum(folds) / len(folds))
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        schedule.step()


def sharp_loop(model, steps, perturbation, clip=None, loss=plain_loss):
    optimizer, schedule = tools(model)
    parts = len(steps[0])
    sharp = SharpBackward(model.named_parameters(), perturbation, backward=lambda backed: (backed / parts).backward())
    for micro in steps:
        for x, y in micro:
            sharp(lambda: loss(model, x, y))  # noqa: B023
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def same_weights(model, expected) -> bool:
    return error(flat(model.parameters()), flat(expected.parameters())) < EXACT


@pytest.mark.parametrize("name", TEN_WALKS)
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.2), (3, None)])
def test_walk_for_each_micro_batch_with_clipping_and_a_schedule(name, accumulate, clip):
    model, expected, steps = network(), network(), micro_batches(accumulate)
    sharp_loop(model, steps, TEN_WALKS[name], clip)
    paper_loop(expected, steps, TEN_WALKS[name], clip)
    assert same_weights(model, expected)


@pytest.mark.parametrize("name", TEN_WALKS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_one_walk_for_all_micro_batches_with_clipping_and_a_schedule(name, clip):
    model, expected, steps = network(), network(), micro_batches(3)
    base, schedule = tools(model)
    clipping = (lambda: nn.utils.clip_grad_norm_(model.parameters(), clip)) if clip else None
    optimizer = SharpnessAware(base, TEN_WALKS[name], before_step=clipping)
    for micro in steps:

        def closure():
            losses = [plain_loss(model, *part) / len(micro) for part in micro]  # noqa: B023
            for loss in losses:
                loss.backward()
            return torch.stack(losses).sum().detach()

        optimizer.step(closure)
        schedule.step()
    paper_loop(expected, [[joined(micro)] for micro in steps], TEN_WALKS[name], clip)
    assert same_weights(model, expected)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_of_both_kinds(use_reentrant):
    def loss(model, x, y):
        hidden = checkpoint(model[:2], x.requires_grad_(), use_reentrant=use_reentrant)
        return cross_entropy(model[2](hidden), y)

    model, expected, steps = network(), network(), micro_batches(2)
    sharp_loop(model, steps, ga_sam(0.1, steps=2), loss=loss)
    paper_loop(expected, steps, ga_sam(0.1, steps=2))
    assert same_weights(model, expected)


@pytest.mark.parametrize("compiled", ["model", "loss"])
def test_compiled_models_see_the_moved_weights_and_are_compiled_once(compiled):
    """Captured and differentiated as ever; the machine code that would take half a minute is left out."""

    def compile_(function):
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    torch.compiler.reset()
    model, expected, steps = network(), network(), micro_batches(1)
    quick, whole = compile_(model), compile_(plain_loss)

    def loss(model, x, y):
        return whole(model, x, y) if compiled == "loss" else cross_entropy(quick(x), y)

    loss(model, *steps[0][0]).backward()
    model.zero_grad()
    with torch.compiler.set_stance("fail_on_recompile"):
        sharp_loop(model, steps, ga_sam(0.1, steps=2), loss=loss)
    paper_loop(expected, steps, ga_sam(0.1, steps=2))
    assert same_weights(model, expected)


class Carrying(nn.Module):
    """A recurrent net that goes on from the state it is given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.out = nn.LSTM(6, 5, 2), nn.Linear(5, 3)
        self.double()

    def loss_and_state(self, x, y, state):
        hidden, state = self.layers(x.unsqueeze(1), state)
        return cross_entropy(self.out(hidden.squeeze(1)), y), tuple(part.detach() for part in state)


@pytest.mark.parametrize("name", ["ga_sam, budget and cap", "multi_step_defense"])
def test_every_pass_of_a_recurrent_net_starts_from_the_same_state(name):
    model, expected = Carrying(), Carrying()
    state = expected_state = (torch.zeros(2, 1, 5).double(),) * 2
    places = [p.data_ptr() for p in model.layers._flat_weights]
    sharp = SharpBackward(model.parameters(), TEN_WALKS[name])
    optimizers = [tools(each)[0] for each in (model, expected)]
    for seed in range(5):
        x, y = batch(seed=seed)
        _, state = sharp(lambda: model.loss_and_state(x, y, state))  # noqa: B023
        optimizers[0].step()
        optimizers[0].zero_grad()

        def loss(each, x=x, y=y, carried=expected_state):
            return each.loss_and_state(x, y, carried)[0]

        put_gradient(expected, paper_walk(expected, loss, TEN_WALKS[name])[-1])
        _, expected_state = expected.loss_and_state(x, y, expected_state)
        optimizers[1].step()
    assert same_weights(model, expected)
    assert error(flat(state), flat(expected_state)) < EXACT
    assert [p.data_ptr() for p in model.layers._flat_weights] == places  # flattened weights stay where they are
    assert same_bits(model.layers._flat_weights, model.layers.parameters())


SCALED = {"ga_sam": ga_sam(0.5, norm=2.0, steps=3), "sam": sam(0.5)}
SCALE = 2.0**10  # a power of two, which rounds nothing


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # GradScaler skipped the optimizer's
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize(("where", "dtype", "overflow"), [
    ("inside", torch.bfloat16, None), ("around", torch.float16, None), ("inside", torch.float16, 2)
])  # fmt: skip
def test_scaled_run_equals_the_unscaled_reference(name, where, dtype, overflow):
    """Autocast and GradScaler. Inputs beyond the largest float16: the step is skipped, and the scale is halved."""
    model, expected = network(torch.float32), network(torch.float32)
    batches, walk = [batch(torch.float32, seed=seed) for seed in range(5)], SCALED[name]
    if overflow is not None:
        batches[overflow] = (batches[overflow][0] * 1e6, batches[overflow][1])
    autocast, scaler = torch.autocast("cpu", dtype), torch.amp.GradScaler("cpu", init_scale=SCALE)
    optimizer, schedule = tools(model)
    sharp = SharpBackward(model.parameters(), walk, backward=lambda backed: scaler.scale(backed).backward())
    outer, inner = (autocast, nullcontext()) if where == "around" else (nullcontext(), autocast)

    def loss(model, x, y):
        with inner:
            return cross_entropy(model(x), y)

    for step, (x, y) in enumerate(batches):
        before = [p.detach().clone() for p in model.parameters()]
        with outer:
            sharp(lambda: loss(model, x, y))  # noqa: B023
        scaler.unscale_(optimizer)  # torch raises if anybody has done it before
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        assert same_bits(model.parameters(), before) == sharp.last.not_finite == (step == overflow)
        assert bool(sharp.last.climbed) == (step != overflow)

    def rounded(model, x, y):
        with autocast:
            return cross_entropy(model(x), y)

    paper_loop(expected, [[each] for each in batches], walk, 0.5, rounded, skipped=[overflow])
    assert error(flat(model.parameters()), flat(expected.parameters())) < SINGLE
    assert scaler.get_scale() == (SCALE if overflow is None else SCALE / 2)


@ENTRIES
@pytest.mark.parametrize("name", TEN_WALKS)
def test_walk_is_that_of_the_mean_loss_whatever_is_differentiated(entry, name):
    """A loss scale, a share of a mean, and a sum over 12 rows, said with `gradient_scale`."""
    plain, gradient = through_backward(network(), TEN_WALKS[name])
    model, factor = network(), 65536.0 if entry is through_backward else 1 / 3
    scaled = entry(model, TEN_WALKS[name], factor)
    model, (x, y) = network(), batch()
    loss = lambda: cross_entropy(model(x), y, reduction="sum")  # noqa: E731
    summed, of_sum = entry(model, TEN_WALKS[name], loss=loss, gradient_scale=lambda: len(y))
    assert error(torch.stack(scaled[0].losses), torch.stack(plain.losses)) < EXACT
    for trace, found in (scaled, (summed, of_sum / 12)):
        assert error(torch.stack(trace.norms), torch.stack(plain.norms)) < EXACT
        assert error(found, gradient) < EXACT
