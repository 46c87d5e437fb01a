"""Every entry point: T and the offsets do not change with loss scale, accumulation or reduction."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, asam, ga_sam, layer_sam, multi_step_defense, sam
from problems import batch, network
from tolerances import EXACT, error, flat

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")

PERTURBATIONS = {
    "sam": sam(0.1),
    "asam": asam(0.1),
    "layer_sam": layer_sam(0.05),
    "multi_step_defense": multi_step_defense(0.02, steps=2),
    "ga_sam": ga_sam(0.1),
    "ga_sam, 3 steps": ga_sam(0.1, steps=3),
    "ga_sam, element": dataclasses.replace(ga_sam(0.01), granularity="element"),
    "ga_sam, budget": ga_sam(budget=0.1),
    "ga_sam, budget and cap": ga_sam(budget=0.1, cap=0.02, steps=2),
    "sam, budget": sam(budget=0.05),
    "asam, budget and cap": asam(budget=0.05, cap=0.02),
    "ga_sam, final": dataclasses.replace(ga_sam(0.1), risk="final"),
}


def through_backward(model, perturbation, factor: float, **options):
    """Loss scalers, accumulation and sums instead of means all multiply what is backed."""
    x, y = batch()
    backward = {"backward": lambda loss: (factor * loss).backward()}
    sharp = SharpBackward(model.parameters(), perturbation, **backward, **options)
    sharp(lambda: cross_entropy(model(x), y))
    return sharp.last, flat([p.grad for p in model.parameters()]) / factor


def through_closure(model, perturbation, factor: float, **options):
    x, y = batch()
    base = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = SharpnessAware(base, perturbation, gradient_scale=factor, **options)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        (factor * loss).backward()
        return loss

    optimizer.step(closure)
    return optimizer.last, flat([p.grad for p in model.parameters()]) / factor


@pytest.mark.parametrize("entry", [through_backward, through_closure])
@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("factor", [65536.0, 1 / 3, 12.0])
def test_walk_is_that_of_the_mean_loss(entry, name, factor):
    plain, gradient = entry(network(), PERTURBATIONS[name], 1.0)
    scaled, scaled_gradient = entry(network(), PERTURBATIONS[name], factor)
    assert error(torch.stack(scaled.norms), torch.stack(plain.norms)) < EXACT
    assert error(torch.stack(scaled.losses), torch.stack(plain.losses)) < EXACT
    assert error(scaled_gradient, gradient) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_entry_points_agree(name):
    trace, gradient = through_backward(network(), PERTURBATIONS[name], 1.0)
    closure_trace, closure_gradient = through_closure(network(), PERTURBATIONS[name], 1.0)
    assert error(torch.stack(closure_trace.losses), torch.stack(trace.losses)) < EXACT
    assert error(closure_gradient, gradient) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_sum_reduction_through_backward_walks_like_the_mean(name):
    """A sum over 12 rows, said with `gradient_scale`."""
    plain, gradient = through_backward(network(), PERTURBATIONS[name], 1.0)
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), PERTURBATIONS[name], gradient_scale=lambda: len(y))
    sharp(lambda: cross_entropy(model(x), y, reduction="sum"))
    assert error(torch.stack(sharp.last.norms), torch.stack(plain.norms)) < EXACT
    assert error(flat([p.grad for p in model.parameters()]), 12 * gradient) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_sum_reduction_through_a_closure_walks_like_the_mean(name):
    model, (x, y) = network(), batch()
    plain, _ = through_closure(network(), PERTURBATIONS[name], 1.0)
    optimizer = SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=0.0), PERTURBATIONS[name], gradient_scale=lambda: len(y)
    )

    def closure():
        loss = cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        return loss

    optimizer.step(closure)
    assert error(torch.stack(optimizer.last.norms), torch.stack(plain.norms)) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_micro_batches_add_up(name):
    """Per micro-batch: each walks for itself as if alone, and what is in `.grad` stays and is added to."""
    x, y = batch()
    parts = [(x[:5], y[:5]), (x[5:], y[5:])]
    alone, traces = [], []
    for inputs, targets in parts:
        model = network()
        sharp = SharpBackward(model.parameters(), PERTURBATIONS[name])
        sharp(lambda i=inputs, t=targets, m=model: cross_entropy(m(i), t))
        alone.append(flat([p.grad for p in model.parameters()]))
        traces.append(sharp.last)
    model = network()
    sharp = SharpBackward(model.parameters(), PERTURBATIONS[name], backward=lambda loss: (loss / 2).backward())
    for (inputs, targets), trace in zip(parts, traces, strict=True):
        sharp(lambda i=inputs, t=targets: cross_entropy(model(i), t))
        assert error(torch.stack(sharp.last.norms), torch.stack(trace.norms)) < EXACT
    assert error(flat([p.grad for p in model.parameters()]), (alone[0] + alone[1]) / 2) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_one_perturbation_for_all_micro_batches(name):
    """A closure over all micro-batches equals one over the whole batch."""
    x, y = batch()
    expected, gradient = through_closure(network(), PERTURBATIONS[name], 1.0)
    model = network()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), PERTURBATIONS[name])

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
