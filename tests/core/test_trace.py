"""What a walk reports: verdict, numbers, group names; one warning a run; and the range test."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, SharpnessAware, ga_sam, range_test, recommended, sam
from gasam.trace import UNSEEN
from problems import ENTRIES, at_home, batch, loss_of, messages_of, network, through_backward
from tolerances import EXACT, error, flat, same_bits


def said_by(sharp, function, times=60):
    return messages_of(lambda: [sharp(function) for _ in range(times)])


def sharp_after(perturbation, model=None, times=1, **options):
    """After this many calls, which give no warning."""
    model = network() if model is None else model
    sharp = SharpBackward(model, perturbation, **options)
    assert said_by(sharp, loss_of(model), times) == []
    return sharp


def network_times(factor, *places):
    """The network with some of its weights times a factor."""
    model = network()
    with torch.no_grad():
        for place in places:
            model.get_parameter(place).mul_(factor)
    return model


def test_sensible_walk_is_fine_and_its_metrics_are_plain_numbers():
    sharp = sharp_after(ga_sam(budget=0.1, cap=0.01))
    assert sharp.last.verdict() == "fine"
    metrics = sharp.metrics()
    assert metrics["largest_ratio"] == pytest.approx(0.01)
    assert metrics["capped"] == 1.0
    assert all(type(value) is float and f"{name} {value:.4g}" in str(sharp.last) for name, value in metrics.items())

    sharp = sharp_after(sam(0.1))
    metrics, size = sharp.metrics(), flat(network().parameters()).norm().item()
    assert metrics["perturbation_ratio"] == pytest.approx(0.1 / size)
    assert metrics["perturbation_norm"] == pytest.approx(0.1)
    assert metrics["sharpness"] == pytest.approx((sharp.last.losses[1] - sharp.last.losses[0]).item())
    assert metrics["predicted_rise"] == pytest.approx(metrics["sharpness"], rel=0.3)
    assert SharpBackward(network(), sam(0.1)).metrics() == {}


def test_walk_beyond_the_weights_is_too_large_and_named():
    sharp = sharp_after(sam(3.0), network_times(1e-3, "2.weight"))
    assert sharp.metrics()["largest_ratio"] > 1
    assert sharp.last.verdict().startswith("too large: 2.weight moved by ")


def test_small_biases_are_not_too_large():
    """SAM moves biases close to zero by many times their norm, and nothing happens."""
    sharp = sharp_after(sam(0.05), network_times(1e-3, "0.bias", "2.bias"), times=40)
    assert sharp.metrics()["largest_ratio"] > 1
    assert sharp.metrics()["step"] == 20
    assert sharp.last.verdict() == "fine (measured in step 20)"


def test_recommended_walk_does_not_warn_close_to_a_minimum():
    """There the gradient vanishes, and with it the prediction."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(32, 6)
    optimizer, sharp = torch.optim.Adam(model.parameters(), lr=3e-3), SharpBackward(model, recommended(2))

    def train(loss):
        optimizer.zero_grad()
        sharp(loss)
        optimizer.step()

    assert said_by(train, lambda: (model(x) - x[:, :1]).square().mean(), 800) == []
    assert sharp.metrics()["rise"] > 5 * sharp.metrics()["predicted_rise"]
    assert sharp.last.verdict().startswith("fine")


@pytest.mark.parametrize(("walk", "factor", "words"), [
    (sam(30.0), 1.0, ["too large", "20 of 20 measured walks", "recommended(2)"]),
    (ga_sam(1e-12, norm=2.0), 1.0, ["too small to matter", "larger budget or epsilon"]),
    (ga_sam(0.1), math.nan, ["not finite", "20 of 20 measured walks"]),
])  # fmt: skip
def test_what_is_wrong_in_all_walks_is_said_once_with_its_cure(walk, factor, words):
    model = network(torch.float32)
    loss = loss_of(model)
    [message] = said_by(SharpBackward(model, walk), lambda: loss() * factor)
    assert all(word in message for word in words)


def test_rises_beyond_the_predicted_one_are_warned_of():
    """A narrow valley: to first order the loss hardly rises, in truth by far more."""
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    sharp = SharpBackward([("valley", weight)], sam(0.5))
    [message] = said_by(sharp, lambda: 1e-3 * weight.sum() + 50 * (weight - 1).square().sum())
    assert "the loss rises by more than 10 times what was predicted" in message
    assert sharp.last.verdict().startswith("too large: the loss rises by more than")


NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]
FILTERS = [*(f"0.weight[{i}]" for i in range(5)), "0.bias", *(f"2.weight[{i}]" for i in range(3)), "2.bias"]


@pytest.mark.parametrize(("kind", "epsilon", "scale", "verdict"), [
    (float, 1e-6, 1.0, "fine"), (int, 1e-6, 1.0, UNSEEN), (torch.clone, 1e-9, 8.0, "fine"),
])  # fmt: skip
def test_closures_may_return_numbers_and_losses_of_an_unknown_unit(kind, epsilon, scale, verdict):
    """In an unknown unit a walk that is too small is not told apart from one that is not seen."""
    w = nn.Parameter(torch.ones(3).double())
    optimizer = SharpnessAware(torch.optim.SGD([w], lr=0.0), sam(epsilon), gradient_scale=scale)

    def closure():
        optimizer.zero_grad()
        loss = scale * w.square().sum()
        loss.backward()
        return kind(loss.detach())

    optimizer.step(closure)
    assert optimizer.last.verdict() == verdict


@ENTRIES
@pytest.mark.parametrize(("steps", "factor"), [(1, 64.0), (3, 1.0)])
def test_detail_compares_the_clean_and_the_last_gradient(entry, steps, factor):
    model, gradients = network(), []
    usual = loss_of(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # the caller's own, which must not disturb

    def loss():
        value = usual()
        gradients.append(torch.autograd.grad(value, list(model.parameters()), retain_graph=True))
        return value

    detail = entry(model, ga_sam(0.3, steps=steps), factor, loss, detailed=True)[0].groups
    for i, (clean, last) in enumerate(zip(gradients[0], gradients[-1], strict=True)):
        cosine = (clean * last).sum() / (clean.norm() * last.norm())
        assert error(detail.cosines[i], cosine) < EXACT
        assert error(detail.gradient_ratios[i], last.norm() / clean.norm()) < EXACT


@pytest.mark.parametrize(("granularity", "labels"), [
    ("element", NAMES), ("layer", NAMES), ("module", ["0", "2"]), ("model", NAMES), ("filter", FILTERS)
])  # fmt: skip
def test_detail_has_a_ratio_for_each_group(granularity, labels):
    model, places = network(), []
    usual = loss_of(model)

    def loss():
        places.append([p.detach().clone() for p in model.parameters()])
        return usual()

    walk = ga_sam(0.01, norm=2.0, granularity=granularity)
    trace, _ = through_backward(model, walk, loss=loss, detailed=True)
    ratios = dict(zip(trace.groups.labels, trace.groups.ratios().tolist(), strict=True))
    assert list(ratios) == labels
    if granularity == "layer":
        expected = [((moved - home).norm() / home.norm()).item() for home, moved in zip(*places, strict=True)]
        assert list(ratios.values()) == pytest.approx(expected, rel=1e-6)
    assert all(label in str(trace) for label in labels)


def test_a_range_test_changes_nothing():
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    model = nn.Sequential(*layers).double()
    model.register_buffer("mean", torch.zeros(3).double())
    sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.5), schedule=Schedule(progress=0.2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    gradients = [p.grad for p in model.parameters()]
    mean, random, state = model.mean.clone(), torch.get_rng_state(), sharp.state_dict()

    def loss(rows):
        logits = model(rows[0])
        model.mean = 0.9 * model.mean + 0.1 * logits.detach().mean(0)  # a buffer that is replaced
        return cross_entropy(logits, rows[1])

    with at_home([*model.parameters(), *gradients, model[1].running_mean, model[1].running_var]):
        range_test(sharp, loss, [batch(seed=1), batch(seed=2)])
    assert same_bits([model.mean], [mean])
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert sharp.state_dict() == state
    assert sharp.last is None
    assert model[1].num_batches_tracked == 0


def test_rows_of_a_range_test_are_those_of_single_walks():
    model = network()
    found = range_test(SharpBackward(model, sam(0.1)), lambda _: loss_of(model)(), [None], sizes=[0.05, 0.4])
    for row, size in zip(found.rows, (0.05, 0.4), strict=True):
        sharp = sharp_after(sam(size), detailed=True)
        assert row.measured == pytest.approx(sharp.metrics()["rise"])
        assert row.predicted == pytest.approx(sharp.metrics()["predicted_rise"])
        assert row.lowest_cosine == pytest.approx(float(sharp.last.groups.cosines.min()))


def test_a_range_test_names_the_group_that_turns():
    flat, bowl = (nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64)) for _ in range(2))
    sharp = SharpBackward([("flat", flat), ("bowl", bowl)], sam(1.0))
    # Past w = 3 the slope of the bowl turns.
    found = range_test(sharp, lambda _: flat.sum() + (6 * bowl - bowl**2).sum(), [None])
    first = next(row for row in found.rows if row.lowest_cosine < 0)
    assert first.lowest == "bowl"
    assert 1 < first.size < 8
    assert str(found).count("  bowl") == len(found.rows)
