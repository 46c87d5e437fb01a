"""Loops as people write them: after five steps the weights are those of a loop over the paper's reference."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from gasam import SharpBackward, SharpnessAware, asam, ga_sam, sam
from problems import TEN_WALKS, batch, network, paper_walk, put_gradient, through_backward, through_closure
from tolerances import EXACT, SINGLE, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")
PERTURBATIONS = {
    "ga_sam": ga_sam(0.1, steps=2),
    "sam": sam(0.1),
    "asam": asam(0.1),
    "budget": ga_sam(budget=0.1, cap=0.01),
}


def micro_batches(accumulate):
    """Five steps of `accumulate` micro-batches each."""
    return [[batch(rows=4, seed=accumulate * step + i) for i in range(accumulate)] for step in range(5)]


def joined(parts):
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def tools(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
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
    sharp = SharpBackward(model.parameters(), perturbation, backward=lambda backed: (backed / parts).backward())
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


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize(("accumulate", "clip"), [(1, 0.2), (3, None)])
def test_walk_for_each_micro_batch_with_clipping_and_a_schedule(name, accumulate, clip):
    model, expected, steps = network(), network(), micro_batches(accumulate)
    sharp_loop(model, steps, PERTURBATIONS[name], clip)
    paper_loop(expected, steps, PERTURBATIONS[name], clip)
    assert same_weights(model, expected)


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_one_walk_for_all_micro_batches_with_clipping_and_a_schedule(name, clip):
    model, expected, steps = network(), network(), micro_batches(3)
    base, schedule = tools(model)
    clipping = (lambda: nn.utils.clip_grad_norm_(model.parameters(), clip)) if clip else None
    optimizer = SharpnessAware(base, PERTURBATIONS[name], before_step=clipping)
    for micro in steps:

        def closure():
            losses = [plain_loss(model, *part) / len(micro) for part in micro]  # noqa: B023
            for loss in losses:
                loss.backward()
            return torch.stack(losses).sum().detach()

        optimizer.step(closure)
        schedule.step()
    paper_loop(expected, [[joined(micro)] for micro in steps], PERTURBATIONS[name], clip)
    assert same_weights(model, expected)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", PERTURBATIONS)
def test_activation_checkpointing_of_both_kinds(name, use_reentrant):
    def loss(model, x, y):
        hidden = checkpoint(model[:2], x.requires_grad_(), use_reentrant=use_reentrant)
        return cross_entropy(model[2](hidden), y)

    model, expected, steps = network(), network(), micro_batches(2)
    sharp_loop(model, steps, PERTURBATIONS[name], loss=loss)
    paper_loop(expected, steps, PERTURBATIONS[name])
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


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_every_pass_of_a_recurrent_net_starts_from_the_same_state(name):
    model, expected = Carrying(), Carrying()
    state = expected_state = (torch.zeros(2, 1, 5).double(),) * 2
    places = [p.data_ptr() for p in model.layers._flat_weights]
    sharp = SharpBackward(model.parameters(), PERTURBATIONS[name])
    optimizers = [tools(each)[0] for each in (model, expected)]
    for seed in range(5):
        x, y = batch(seed=seed)
        _, state = sharp(lambda: model.loss_and_state(x, y, state))  # noqa: B023
        optimizers[0].step()
        optimizers[0].zero_grad()

        def loss(each, x=x, y=y, carried=expected_state):
            return each.loss_and_state(x, y, carried)[0]

        put_gradient(expected, paper_walk(expected, loss, PERTURBATIONS[name])[-1])
        _, expected_state = expected.loss_and_state(x, y, expected_state)
        optimizers[1].step()
    assert same_weights(model, expected)
    assert error(flat(state), flat(expected_state)) < EXACT
    assert [p.data_ptr() for p in model.layers._flat_weights] == places  # flattened weights stay where they are
    assert same_bits(model.layers._flat_weights, model.layers.parameters())


SCALED = {"ga_sam": ga_sam(0.5, norm=2.0, steps=3), "sam": sam(0.5)}
SCALE = 2.0**10


class TestLossScaling:
    """Autocast and GradScaler, with powers of two, which round nothing: 2^10, and four shares of a mean."""

    @staticmethod
    def data():
        return [batch(torch.float32, seed=seed) for seed in range(5)]

    @staticmethod
    def autocast_loss(dtype):
        def loss(model, x, y):
            with torch.autocast("cpu", dtype):
                return cross_entropy(model(x), y)

        return loss

    @staticmethod
    def scaled_loop(model, batches, perturbation, dtype, scaler, where="inside", loss=cross_entropy):
        """Yields the trace of each step, and whether its bits are those from before it."""
        optimizer, schedule = tools(model)
        autocast = torch.autocast("cpu", dtype)
        sharp = SharpBackward(model.parameters(), perturbation, backward=lambda backed: scaler.scale(backed).backward())
        outer, inner = (autocast, nullcontext()) if where == "around" else (nullcontext(), autocast)

        def function():
            with inner:
                return loss(model(x), y)

        for x, y in batches:  # noqa: B007 - the loss function reads them
            before = [p.detach().clone() for p in model.parameters()]
            with outer:
                sharp(function)
            scaler.unscale_(optimizer)  # torch raises if anybody has done it before
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            yield sharp.last, same_bits(model.parameters(), before)

    @pytest.mark.parametrize("name", SCALED)
    @pytest.mark.parametrize(("where", "dtype"), [("inside", torch.bfloat16), ("around", torch.float16)])
    def test_scaled_run_equals_the_unscaled_reference(self, name, where, dtype):
        """Both round the same numbers to the same low-precision type."""
        model, expected = network(torch.float32), network(torch.float32)
        scaler, walk = torch.amp.GradScaler("cpu", init_scale=SCALE), SCALED[name]
        traces = [trace for trace, _ in self.scaled_loop(model, self.data(), walk, dtype, scaler, where)]
        paper_loop(expected, [[each] for each in self.data()], walk, 0.5, self.autocast_loss(dtype))
        assert error(flat(model.parameters()), flat(expected.parameters())) < SINGLE
        assert all(trace.losses[-1] != trace.losses[0] for trace in traces)
        assert scaler.get_scale() == SCALE

    @pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # GradScaler skipped the optimizer's
    @pytest.mark.parametrize("name", SCALED)
    def test_run_that_overflows_at_step_3_goes_on(self, name):
        """Inputs beyond the largest float16: the step is skipped, the scale is halved, and all else is as without."""
        model, expected = network(torch.float32), network(torch.float32)
        batches, walk = self.data(), SCALED[name]
        batches[2] = (batches[2][0] * 1e6, batches[2][1])
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        steps = list(self.scaled_loop(model, batches, walk, torch.float16, scaler))
        paper_loop(expected, [[e] for e in batches], walk, 0.5, self.autocast_loss(torch.float16), skipped=[2])
        assert [bool(trace.climbed) for trace, _ in steps] == [True, True, False, True, True]
        assert steps[2][0].not_finite
        assert [stayed for _, stayed in steps] == [False, False, True, False, False]
        assert scaler.get_scale() == SCALE / 2
        assert flat(model.parameters()).isfinite().all()
        assert error(flat(model.parameters()), flat(expected.parameters())) < SINGLE


@pytest.mark.parametrize("name", TEN_WALKS)
class TestUnits:
    """T and the offsets do not change with loss scale, accumulation or reduction."""

    @pytest.mark.parametrize("entry", [through_backward, through_closure])
    def test_walk_is_that_of_the_mean_loss(self, entry, name):
        plain, gradient = through_backward(network(), TEN_WALKS[name])
        scaled, scaled_gradient = entry(network(), TEN_WALKS[name], 65536.0 if entry is through_backward else 1 / 3)
        assert error(torch.stack(scaled.norms), torch.stack(plain.norms)) < EXACT
        assert error(torch.stack(scaled.losses), torch.stack(plain.losses)) < EXACT
        assert error(scaled_gradient, gradient) < EXACT

    def test_sum_walks_like_the_mean(self, name):
        """A sum over 12 rows, said with `gradient_scale`."""
        plain, gradient = through_backward(network(), TEN_WALKS[name])
        model, other, (x, y) = network(), network(), batch()
        sharp = SharpBackward(model.named_parameters(), TEN_WALKS[name], gradient_scale=lambda: len(y))
        sharp(lambda: cross_entropy(model(x), y, reduction="sum"))
        base = torch.optim.SGD(other.named_parameters(), lr=0.0)
        optimizer = SharpnessAware(base, TEN_WALKS[name], gradient_scale=lambda: len(y))
        optimizer.step(lambda: (loss := cross_entropy(other(x), y, reduction="sum")).backward() or loss)
        for each, found in ((model, sharp), (other, optimizer)):
            assert error(torch.stack(found.last.norms), torch.stack(plain.norms)) < EXACT
            assert error(flat([p.grad for p in each.parameters()]), 12 * gradient) < EXACT

    def test_micro_batches_add_up(self, name):
        """Per micro-batch: each walks for itself as if alone, and what is in `.grad` stays and is added to."""
        x, y = batch()
        parts = [(x[:5], y[:5]), (x[5:], y[5:])]
        alone, traces = [], []
        for inputs, targets in parts:
            model = network()
            sharp = SharpBackward(model.named_parameters(), TEN_WALKS[name])
            sharp(lambda i=inputs, t=targets, m=model: cross_entropy(m(i), t))
            alone.append(flat([p.grad for p in model.parameters()]))
            traces.append(sharp.last)
        model = network()
        sharp = SharpBackward(model.named_parameters(), TEN_WALKS[name], backward=lambda loss: (loss / 2).backward())
        for (inputs, targets), trace in zip(parts, traces, strict=True):
            sharp(lambda i=inputs, t=targets: cross_entropy(model(i), t))
            assert error(torch.stack(sharp.last.norms), torch.stack(trace.norms)) < EXACT
        assert error(flat([p.grad for p in model.parameters()]), (alone[0] + alone[1]) / 2) < EXACT

    def test_one_perturbation_for_all_micro_batches(self, name):
        """A closure over all micro-batches equals one over the whole batch."""
        x, y = batch()
        expected, gradient = through_closure(network(), TEN_WALKS[name])
        model = network()
        optimizer = SharpnessAware(torch.optim.SGD(model.named_parameters(), lr=0.0), TEN_WALKS[name])

        def closure():
            total = torch.zeros((), dtype=torch.float64)
            for part in (slice(0, 6), slice(6, 12)):
                loss = cross_entropy(model(x[part]), y[part]) / 2
                loss.backward()
                total += loss.detach()
            return total

        optimizer.step(closure)
        assert error(torch.stack(optimizer.last.losses), torch.stack(expected.losses)) < EXACT
        assert error(flat([p.grad for p in model.parameters()]), gradient) < EXACT
