"""Autocast and GradScaler: the loop's weights are those of an unscaled one over the paper's reference."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, ga_sam, sam
from gasam.trace import CLIMBED, NOT_FINITE
from problems import batch, network, paper_walk, put_gradient
from tolerances import SINGLE, error, flat, same_bits

# Powers of two round nothing in low precision: a scale of 2^10, and the four shares of a mean over three steps.
PERTURBATIONS = {"ga_sam": ga_sam(0.5, norm=2.0, steps=3), "sam": sam(0.5)}
SCALE = 2.0**10


def data():
    return [batch(torch.float32, seed=seed) for seed in range(5)]


def tools(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def paper_loop(model, batches, perturbation, dtype, skipped=()):
    """Without a scaler; a step that is skipped leaves weights and momentum alone."""
    optimizer = tools(model)

    def loss(each, x, y):
        with torch.autocast("cpu", dtype):
            return cross_entropy(each(x), y)

    for step, (x, y) in enumerate(batches):
        if step not in skipped:
            put_gradient(model, paper_walk(model, lambda m, x=x, y=y: loss(m, x, y), perturbation)[-1])
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def scaled_loop(model, batches, perturbation, dtype, scaler, where="inside", loss=cross_entropy):
    """Yields the trace of each step, and whether its bits are those from before it."""
    optimizer = tools(model)
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
        yield sharp.last, same_bits(model.parameters(), before)


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scaled_run_equals_the_unscaled_reference(name, where, dtype):
    """Both round the same numbers to the same low-precision type."""
    model, expected = network(torch.float32), network(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    traces = [trace for trace, _ in scaled_loop(model, data(), PERTURBATIONS[name], dtype, scaler, where)]
    paper_loop(expected, data(), PERTURBATIONS[name], dtype)
    assert error(flat(model.parameters()), flat(expected.parameters())) < SINGLE
    assert all(trace.losses[-1] != trace.losses[0] for trace in traces)
    assert scaler.get_scale() == SCALE


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_run_that_overflows_at_step_3_goes_on(name):
    """Inputs beyond the largest float16: the step is skipped, the scale is halved once, and all else is as without."""
    model, expected = network(torch.float32), network(torch.float32)
    batches = data()
    batches[2] = (batches[2][0] * 1e6, batches[2][1])
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    steps = list(scaled_loop(model, batches, PERTURBATIONS[name], torch.float16, scaler))
    paper_loop(expected, batches, PERTURBATIONS[name], torch.float16, skipped=[2])
    assert [trace.active.item() for trace, _ in steps] == [CLIMBED, CLIMBED, NOT_FINITE, CLIMBED, CLIMBED]
    assert [stayed for _, stayed in steps] == [False, False, True, False, False]
    assert scaler.get_scale() == SCALE / 2
    assert flat(model.parameters()).isfinite().all()
    assert error(flat(model.parameters()), flat(expected.parameters())) < SINGLE


def test_overflow_in_a_later_pass_alone_skips_the_step_too():
    """The clean gradient is finite, and in the fold with it is one that is not."""
    model, calls = network(torch.float32), itertools.count()
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)

    def loss(logits, y):  # two calls a step: the sixth is pass 1 of step 3
        return cross_entropy(logits * (1e38 if next(calls) == 5 else 1.0) ** 2, y)

    steps = list(scaled_loop(model, data(), ga_sam(0.1), torch.float16, scaler, loss=loss))
    assert [stayed for _, stayed in steps] == [False, False, True, False, False]
    assert not steps[2][0].losses[1].isfinite()
    assert scaler.get_scale() == SCALE / 2
    assert flat(model.parameters()).isfinite().all()


def test_scale_that_is_too_large_is_halved_until_it_fits():
    """Loss and weights are fine; the scaled gradients are beyond float16."""
    model = network(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    steps = list(scaled_loop(model, data() * 2, ga_sam(0.1), torch.float16, scaler))
    stayed = [stayed for _, stayed in steps]
    assert stayed[0]
    assert not stayed[-1]
    assert steps[-1][0].climbed
    assert scaler.get_scale() == 2.0 ** (20 - sum(stayed))
