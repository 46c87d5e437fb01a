"""Cheaper walks against the reference: a part of the batch finds the direction, or a step has one pass."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import (
    MovingAverage,
    Schedule,
    SharpBackward,
    SharpnessAware,
    asam,
    ga_sam,
    gsam,
    momentum_sam,
    random_offsets,
    range_test,
    recommended,
    sam,
)
from gasam.family import Method, Noise
from problems import TEN_WALKS, Wavy, at_home, closure_of, gradient_of, loss_of, network, reference_walk, shapes_of
from tolerances import EXACT, error, flat, same_bits

ONE_PASS = {
    "ga_sam": ga_sam(0.5),
    "ga_sam, budget and cap": ga_sam(budget=0.3, cap=0.05),
    "sam, budget": sam(budget=0.1, cap=1.0),
    "ga_sam, three steps": ga_sam(0.5, steps=3),
    "asam, two steps": asam(0.1, steps=2),
    "layer_sam by norm 3": TEN_WALKS["ga_sam by module"],
}


def averaging(walk, decay=0.9):
    return dataclasses.replace(walk, method=MovingAverage(decay))


@pytest.mark.parametrize("name", TEN_WALKS)
def test_ascent_equals_the_reference(name):
    """The direction is that of another loss; the gradient is that of the loss function in the passes that count."""
    walk, problem, other = TEN_WALKS[name], Wavy(), Wavy(seed=1)
    parameters = problem.parameters()
    offsets, losses, _, folded = reference_walk(
        problem.start, problem.loss_and_gradient, problem.shapes, walk, ascent=other.loss_and_gradient
    )
    own, of_ascent = [], []

    def noted(losses, value):
        losses.append(value.item())
        return value

    sharp = SharpBackward(parameters.items(), walk, backward=lambda loss: (256.0 * loss).backward())
    with at_home(parameters.values()):
        returned = sharp(
            lambda: noted(own, problem.loss(parameters)), ascent=lambda: noted(of_ascent, other.loss(parameters))
        )
    trace = sharp.last
    assert error(flat([p.grad for p in parameters.values()]) / 256, folded) < EXACT
    assert error(of_ascent + own, losses) < EXACT
    assert error(torch.stack(trace.losses), own) < EXACT
    assert (returned, trace.ascent_loss, trace.passes) == (own[0], of_ascent[0], walk.steps + 1)
    assert trace.first == len(of_ascent)
    lengths = [float((a @ a) ** 0.5) for a in offsets[trace.first :]]
    assert error(torch.stack(trace.norms), lengths) < EXACT
    assert not {"rise", "sharpness"} & trace.metrics().keys()


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("name", ONE_PASS)
def test_one_pass_along_the_average_equals_the_reference(name, micro_batches):
    """Seven steps of SGD, with another loss scale in each, and micro-batches that add up to the batch."""
    walk, decay, rate = averaging(ONE_PASS[name], 0.7), 0.7, 0.05
    model, w, average = network(), None, None
    shapes, w = shapes_of(model), flat(network().parameters()).numpy()
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randint(3, (12,))
    twin, optimizer, scale = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=rate), 1.0
    sharp = SharpBackward(
        model, walk, backward=lambda loss: (loss * scale / micro_batches).backward(), accumulation=micro_batches
    )

    def loss_and_gradient(rows):
        def at(w):
            nn.utils.vector_to_parameters(torch.from_numpy(w), twin.parameters())
            loss = cross_entropy(twin(x[rows]), y[rows])
            return loss.item(), flat(torch.autograd.grad(loss, list(twin.parameters()))).numpy()

        return at

    for step in range(7):
        scale = 2.0 ** (step % 3)
        optimizer.zero_grad()
        gradients = []
        for rows in torch.arange(12).chunk(micro_batches):
            sharp(lambda rows=rows: cross_entropy(model(x[rows]), y[rows]))
            assert sharp.last.passes == (walk.steps if step else 1)
            f = loss_and_gradient(rows)
            gradients.append(f(w)[1] if average is None else reference_walk(w, f, shapes, walk, direction=average)[3])
        g = np.mean(gradients, axis=0)
        assert error(gradient_of(model) / scale, g) < EXACT
        average = g if average is None else decay * average + (1 - decay) * g
        for parameter in model.parameters():
            parameter.grad /= scale
        optimizer.step()
        w = w - rate * g
    assert error(flat(model.parameters()), w) < EXACT


def test_random_offsets_move_each_tensor_by_a_share_of_its_norm_once_a_step():
    model, moved = network(torch.float32), []
    home = [p.detach().clone() for p in model.parameters()]
    model.register_forward_pre_hook(lambda *_: moved.append([p.detach().clone() for p in model.parameters()]))
    sharp = SharpBackward(model, random_offsets(0.03), accumulation=2)
    with at_home(model.parameters()):
        for _ in range(6):
            sharp(loss_of(model))
    for visit in moved:
        for own, there in zip(home, visit, strict=True):
            assert error((there - own).abs(), 0.03 * own.square().mean().sqrt().expand_as(own)) < 1e-4
    lengths = torch.stack([(there - own).norm() for own, there in zip(home, moved[-1], strict=True)])
    assert error(sharp.last.offsets[-1], lengths) < 1e-4
    signs = [flat([there - own for own, there in zip(home, visit, strict=True)]).sign() for visit in moved]
    assert signs[0].abs().min() == 1
    assert same_bits(signs[::2], signs[1::2]), "the micro-batches of a step share an offset"
    assert len({tuple(each.tolist()) for each in signs}) == 3, "each step draws another one"
    assert (sharp.last.passes, sharp.last.verdict()) == (1, "fine")


def train(sharp, model, steps, optimizer):
    for _ in range(steps):
        optimizer.zero_grad()
        sharp(loss_of(model))
        optimizer.step()


@pytest.mark.parametrize(
    "walk", [averaging(ga_sam(budget=0.3, cap=0.05)), random_offsets(0.1)], ids=["average", "random"]
)
def test_a_resumed_run_has_the_same_bits(walk):
    def new():
        model = network()
        return SharpBackward(model, walk), model, torch.optim.SGD(model.parameters(), lr=0.1)

    (whole, whole_model, whole_optimizer), (first, model, optimizer) = new(), new()
    train(whole, whole_model, 6, whole_optimizer)
    train(first, model, 3, optimizer)
    again, again_model, again_optimizer = new()
    again_model.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    train(again, again_model, 3, again_optimizer)
    assert same_bits(again_model.parameters(), whole_model.parameters())


@pytest.mark.parametrize("walk", [averaging(sam(0.1)), averaging(ga_sam(0.5, steps=2)), random_offsets(0.1)])
def test_a_closure_trains_alike(walk):
    model, twin = network(), network()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), walk)
    for _ in range(4):
        optimizer.step(closure_of(loss_of(model)))
    train(SharpBackward(twin, walk), twin, 4, torch.optim.SGD(twin.parameters(), lr=0.1))
    assert error(flat(model.parameters()), flat(twin.parameters())) < EXACT


def test_a_step_that_is_not_finite_teaches_nothing():
    model = network()
    sharp = SharpBackward(model, averaging(ga_sam(0.1)))
    loss = loss_of(model)
    sharp(loss)
    before = copy.deepcopy(sharp.state_dict()["method"]["average"])
    for bad in (math.nan, math.inf):
        model.zero_grad()
        sharp(lambda bad=bad: loss() * bad)
        assert same_bits(sharp.state_dict()["method"]["average"], before)
    model.zero_grad()
    sharp(loss)
    assert not same_bits(sharp.state_dict()["method"]["average"], before)


def test_steps_are_plain_until_there_is_a_gradient():
    model = network()
    sharp = SharpBackward(model, averaging(sam(0.1)), schedule=Schedule(start=2))
    seen = []
    for _ in range(4):
        model.zero_grad()
        sharp(loss_of(model))
        seen.append((sharp.last.plain is None, sharp.last.passes))
    assert seen == [(False, 1), (False, 1), (True, 1), (True, 1)]
    fresh = SharpBackward(network(), averaging(sam(0.1)))
    fresh(loss_of(fresh.model))
    assert "no gradient has been seen" in fresh.last.verdict()


@pytest.mark.parametrize("kind", ["ascent", "average", "random"])
def test_running_statistics_count_one_pass_of_the_loss_function(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randint(3, (12,))
    seen = []
    model[1].register_forward_pre_hook(lambda _, given: seen.append((given[0].detach().mean(0), len(given[0]))))
    walk = {"ascent": sam(0.1), "average": averaging(sam(0.1)), "random": random_offsets(0.1)}[kind]
    sharp = SharpBackward(model, walk)
    ascent = {"ascent": lambda: cross_entropy(model(x[:4]), y[:4])} if kind == "ascent" else {}
    expected = torch.zeros(5, dtype=torch.float64)
    for _ in range(3):
        seen.clear()
        model.zero_grad()
        sharp(lambda: cross_entropy(model(x), y), **ascent)
        expected = 0.9 * expected + 0.1 * next(mean for mean, rows in seen if rows == 12)
        assert error(model[1].running_mean, expected) < EXACT
    assert int(model[1].num_batches_tracked) == 3


def called(walk, schedule=None, ascent=False, **options):
    """A step of a walk, with an ascent of its own or without."""
    model = network()
    loss = loss_of(model)
    SharpBackward(model, walk, schedule=schedule, **options)(loss, ascent=loss if ascent else None)


def range_tested(walk):
    model = network()
    return range_test(SharpBackward(model, walk), lambda batch: loss_of(model)(), [0])


EVERY_OTHER = Schedule(every=2)
REFUSED = [
    (lambda: called(sam(0.1), EVERY_OTHER, ascent=True), "weight=1"),
    (lambda: called(averaging(sam(0.1)), EVERY_OTHER), "weight=1"),
    (lambda: called(gsam(0.1), ascent=True), "GSAM needs the clean gradient"),
    (lambda: called(recommended(1.25)[0]), "needs_ascent"),
    (lambda: called(recommended(1.1), ascent=True), "total_steps"),
    (lambda: recommended(3), r"2, 1\.25, 1\.1, 1, 'rounding', got 3"),
    (lambda: range_tested(averaging(ga_sam(budget=0.3, cap=0.05))), "computes no clean one"),
    (lambda: range_tested(random_offsets(0.1)), "computes no clean one"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_a_cheaper_walk_can_not_do_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_what_would_compare_with_a_clean_gradient_is_left_out():
    assert range_tested(recommended(1.25)[0]).rows
    for walk in (sam(0.1), averaging(sam(0.1))):
        model = network()
        sharp, loss = SharpBackward(model, walk, detailed=True), loss_of(model)
        for _ in range(2):
            model.zero_grad()
            sharp(loss, ascent=None if walk.method else loss)
        assert sharp.last.groups.cosines is None


@pytest.mark.filterwarnings("ignore:a moving average learns")  # the gradients that wait must be left as they are
@pytest.mark.parametrize("where", ["ascent", "first", "last"])
def test_a_failure_leaves_weights_gradients_and_the_average(where):
    model = network()
    walk = ga_sam(0.1, steps=2) if where == "ascent" else averaging(ga_sam(0.1, steps=2))
    sharp, loss, calls = SharpBackward(model, walk), loss_of(model), []
    sharp(loss)
    state, before = copy.deepcopy(sharp.state_dict()), [p.grad.clone() for p in model.parameters()]

    def fails(at):
        def function():
            calls.append(0)
            if len(calls) == at:
                raise ArithmeticError("planted")
            return loss()

        return function

    function = loss if where == "ascent" else fails(1 if where == "first" else 2)
    with at_home(model.parameters()), pytest.raises(ArithmeticError):
        sharp(function, ascent=fails(1) if where == "ascent" else None)
    assert same_bits([p.grad for p in model.parameters()], before)
    assert str(sharp.state_dict()) == str(state)


def test_a_recommended_walk_costs_what_its_name_says():
    """Passes of 20 steps, where a pass on a quarter of the batch counts as a quarter."""
    passes, model = {}, network()
    for cost in (2, 1.25, 1.1, 1, "rounding"):
        walk, schedule = recommended(cost)
        always = dataclasses.replace(schedule, progress=None)
        sharp, seen = SharpBackward(model, (walk, always), total_steps=20), 0.0
        ascent = {"ascent": loss_of(model, rows=3)} if walk.needs_ascent else {}
        for _ in range(20):
            model.zero_grad()
            sharp(loss_of(model), **ascent)
            seen += len(sharp.last.losses) + (0.25 if sharp.last.ascent_loss is not None else 0)
        passes[cost] = seen / 20
    assert passes == {2: 2.0, 1.25: 1.25, 1.1: 1.1, 1: 1.0, "rounding": 1.0}


def test_the_average_begins_with_the_first_finite_gradient():
    """As with a loss scaler, whose first steps overflow."""
    offsets = []
    for factors in ((1.0, 1.0), (math.inf, 1.0, 1.0)):
        model = network()
        sharp, loss = SharpBackward(model, momentum_sam(budget=0.1, cap=1.0)), loss_of(model)
        for factor in factors:
            model.zero_grad()
            sharp(lambda factor=factor, loss=loss: loss() * factor)
        offsets.append(sharp.last.norms[-1])
    assert error(*offsets) < EXACT


def test_another_method_begins_anew():
    """What one method has kept is not the direction of the next; random offsets move weights that thaw."""
    model = network()
    model[0].weight.requires_grad_(False)
    sharp = SharpBackward(model, averaging(sam(0.1)))
    train(sharp, model, 3, torch.optim.SGD(model.parameters(), lr=0.1))
    model[0].weight.requires_grad_(True)
    sharp.perturbation = random_offsets(0.1)
    train(sharp, model, 1, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(sharp.last.offsets[-1]) == 4
    sharp.perturbation = averaging(sam(0.1))
    model.zero_grad()
    sharp(loss_of(model))
    assert "no gradient has been seen" in sharp.last.verdict()


def test_gradients_that_wait_for_an_untold_accumulation_are_noticed():
    model = network()
    sharp = SharpBackward(model, averaging(sam(0.1)))
    sharp(loss_of(model))
    with pytest.warns(UserWarning, match="give `accumulation`"):
        sharp(loss_of(model))


def test_noise_does_not_hide_a_gradient_that_is_not_finite():
    model, calls = network(), []

    def loss():
        calls.append(0)
        nan_gradient = (model[0].weight * 0).sum().sqrt()
        return loss_of(model)() + (nan_gradient if len(calls) == 1 else 0.0)

    sharp = SharpBackward(model, dataclasses.replace(random_offsets(0.1), steps=2))
    with at_home(model.parameters()):
        sharp(loss)
    assert "not finite" in sharp.last.verdict()


def test_an_abandoned_step_does_not_count_in_the_next():
    """A moving average learns from one micro-batch, whatever was begun before."""
    w = nn.Parameter(torch.ones(2).double())
    sharp = SharpBackward([w], momentum_sam(0.1, decay=0.0))
    for step in range(2):
        sharp.begin_step(step, last=step == 1)
        w.grad = None
        sharp(lambda: w.square().sum())
    assert error(sharp.state_dict()["method"]["average"][0], torch.full((2,), 2.0).double()) < EXACT


def test_a_loss_scale_does_not_change_the_budget_of_noise():
    class Randomly(Method):
        def direction(self, g, kept):
            return Noise(0)

    lengths = []
    for scale in (1.0, 1024.0):
        w = nn.Parameter(torch.ones(100).double())
        walk = ga_sam(budget=0.01, method=Randomly(), cap=10.0)
        sharp = SharpBackward([w], walk, backward=lambda loss, scale=scale: (loss * scale).backward())
        sharp(lambda w=w: w.square().sum())
        lengths.append(sharp.last.norms[-1])
    assert error(*lengths) < EXACT
