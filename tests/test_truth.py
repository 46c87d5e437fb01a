"""What a trace says: fine, too small, too large, not finite, with the group's name; and one warning per run."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SharpBackward, SharpnessAware, ga_sam, per_worker, sam, same_noise
from problems import batch, network
from tolerances import EXACT, error, flat


def printed(perturbation, dtype=torch.float64, **options):
    model, (x, y) = network(dtype), batch(dtype)
    sharp = SharpBackward(model, perturbation, **options)
    sharp(lambda: cross_entropy(model(x), y))
    return sharp


def test_sensible_walk_is_fine():
    sharp = printed(ga_sam(budget=0.1, cap=0.01))
    text = str(sharp.last)
    assert text.startswith("fine; losses ")
    assert "|a|/|w| 0.01, largest 0.01 in " in text
    assert "100% of the groups capped" in text


def test_small_biases_are_not_too_large():
    """SAM moves biases close to zero by many times their norm, and nothing happens."""
    model, (x, y) = network(), batch()
    with torch.no_grad():
        model[0].bias.mul_(1e-3)
        model[2].bias.mul_(1e-3)
    sharp = SharpBackward(model, sam(0.05))
    assert caught_in(lambda: [sharp(lambda: cross_entropy(model(x), y)) for _ in range(40)]) == []
    assert sharp.last.groups.largest_ratio()[1] > 1
    assert sharp.last.verdict() == "fine"


def test_recommended_walk_does_not_warn_close_to_a_minimum():
    """There the gradient vanishes, and with it the prediction."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(32, 6)
    optimizer, sharp = torch.optim.Adam(model.parameters(), lr=3e-3), SharpBackward(model)

    def train():
        for _ in range(800):
            optimizer.zero_grad()
            sharp(lambda: (model(x) - x[:, :1]).square().mean())
            optimizer.step()

    assert caught_in(train) == []
    assert sharp.last.rise > 5 * sharp.last.predicted_rise
    assert sharp.last.verdict() == "fine"


def test_walk_beyond_the_weights_is_too_large_and_named():
    model = network()
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
    x, y = batch()
    sharp = SharpBackward(model, sam(3.0))
    sharp(lambda: cross_entropy(model(x), y))
    name, ratio = sharp.last.groups.largest_ratio()
    assert ratio > 1
    assert str(sharp.last).startswith(f"too large: {name} moved by ")


def test_walk_below_the_rounding_of_the_loss_is_too_small():
    assert str(printed(ga_sam(1e-12, norm=2.0), torch.float32).last).startswith("too small to matter: ")
    assert str(printed(ga_sam(1e-12, norm=2.0), torch.float64).last).startswith("fine")


def test_infinite_walk_is_not_fine():
    assert str(printed(ga_sam(1e20), torch.float32).last).startswith(("not finite", "too large"))
    model = network()
    sharp = SharpBackward(model, ga_sam(0.1))
    x, y = batch()
    passes = []

    def breaking():
        passes.append(1)
        return cross_entropy(model(x), y) * (math.nan if len(passes) == 2 else 1.0)

    sharp(breaking)
    assert str(sharp.last).startswith("not finite: a loss, gradient or scale was NaN or infinite")


def test_overall_ratio_and_metrics_are_plain_numbers():
    sharp = printed(sam(0.1))
    metrics = sharp.metrics()
    assert all(type(value) is float for value in metrics.values())
    size = flat(network().parameters()).norm().item()
    assert metrics["perturbation_ratio"] == pytest.approx(0.1 / size)
    assert metrics["perturbation_norm"] == pytest.approx(0.1)
    assert metrics["sharpness"] == pytest.approx((sharp.last.losses[1] - sharp.last.losses[0]).item())
    assert metrics["predicted_rise"] == pytest.approx(metrics["sharpness"], rel=0.3)
    assert SharpBackward(network(), sam(0.1)).metrics() == {}


@pytest.mark.parametrize("entry", ["backward", "optimizer"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("factor", [1.0, 64.0])
def test_detail_compares_the_clean_and_the_last_gradient(entry, steps, factor):
    model, (x, y) = network(), batch()
    gradients = []

    def loss():
        value = cross_entropy(model(x), y)
        gradients.append(torch.autograd.grad(value, list(model.parameters()), retain_graph=True))
        return value

    def closure():
        value = loss()
        (value * factor).backward()
        return value

    if entry == "backward":
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)  # the caller's own, which must not disturb
        sharp = SharpBackward(
            model, ga_sam(0.3, steps=steps), detailed=True, backward=lambda backed: (backed * factor).backward()
        )
        sharp(loss)
        detail = sharp.last.detail
    else:
        optimizer = SharpnessAware(
            torch.optim.SGD(model.parameters(), lr=0.0),
            ga_sam(0.3, steps=steps),
            model=model,
            detailed=True,
            gradient_scale=factor,
        )
        optimizer.step(closure)
        detail = optimizer.last.detail
    for i, (clean, last) in enumerate(zip(gradients[0], gradients[-1], strict=True)):
        cosine = (clean * last).sum() / (clean.norm() * last.norm())
        assert error(detail.cosines[i], cosine) < EXACT
        assert error(detail.gradient_ratios[i], last.norm() / clean.norm()) < EXACT
    assert "0.weight" in str(detail)


def test_detailed_walk_folds_the_same_gradient():
    folded = [flat([p.grad for p in weights_after(detailed)]) for detailed in (False, True)]
    assert error(*folded) < EXACT


def weights_after(detailed):
    model, (x, y) = network(), batch()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    SharpBackward(model, ga_sam(0.3, steps=2), detailed=detailed)(lambda: cross_entropy(model(x), y))
    return list(model.parameters())


def zeros_in(model):
    with torch.no_grad():
        model[0].bias.zero_()
    return model


def test_zero_weights_show_the_offset_not_a_ratio():
    model, (x, y) = zeros_in(network()), batch()
    sharp = SharpBackward(model, ga_sam(budget=0.1, cap=0.01), detailed=True)
    sharp(lambda: cross_entropy(model(x), y))
    line = next(line for line in str(sharp.last.detail).splitlines() if line.endswith("0.bias"))
    offset = sharp.last.groups.offsets[1].item()
    assert line.split()[:2] == [f"{offset:.3e}", "zero"]


def caught_in(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught]


def walks(sharp, function, times=60):
    return caught_in(lambda: [sharp(function) for _ in range(times)])


def test_too_large_walks_are_warned_of_once():
    model, (x, y) = network(), batch()
    messages = walks(SharpBackward(model, sam(30.0)), lambda: cross_entropy(model(x), y))
    assert len(messages) == 1
    assert "too large: in 20 of the last 20 walks a group moved by more than its norm" in messages[0]
    assert "recommended()" in messages[0]


def test_too_small_walks_are_warned_of_once():
    model, (x, y) = network(torch.float32), batch(torch.float32)
    messages = walks(SharpBackward(model, ga_sam(1e-12, norm=2.0)), lambda: cross_entropy(model(x), y))
    assert len(messages) == 1
    assert "too small to matter" in messages[0]


def test_rises_beyond_the_predicted_one_are_warned_of():
    """A narrow valley: to first order the loss hardly rises, in truth by far more."""
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    sharp = SharpBackward([("valley", weight)], sam(0.5))
    messages = walks(sharp, lambda: 1e-3 * weight.sum() + 50 * (weight - 1).square().sum())
    assert len(messages) == 1
    assert "the loss rises by 13 on average, but 0.001 was predicted" in messages[0]
    assert str(sharp.last).startswith("too large: the loss rises by 13 on average")
    with torch.no_grad():
        weight.add_(100.0)  # on a slope, where the prediction holds
    assert walks(sharp, lambda: weight.sum(), times=21) == []
    assert str(sharp.last).startswith("fine")


def test_noise_of_dropout_is_not_taken_for_a_rise():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    x, y = batch()
    assert walks(SharpBackward(model, ga_sam(1e-6)), lambda: cross_entropy(model(x), y), times=100) == []


def test_walks_that_are_never_finite_are_warned_of():
    model, (x, y) = network(), batch()
    messages = walks(SharpBackward(model, ga_sam(0.1)), lambda: cross_entropy(model(x), y) * math.nan)
    assert len(messages) == 1
    assert "not finite: 20 of the last 20 walks" in messages[0]


def broken(model, k_broken, clean=False):
    """A loss whose displaced passes from k on, or whose clean one too, are not finite."""
    x, y = batch()
    passes = []

    def loss():
        passes.append(1)
        bad = len(passes) - 1 >= k_broken or clean
        return cross_entropy(model(x), y) * (math.inf if bad else 1.0)

    return loss


@pytest.mark.parametrize("entry", ["backward", "optimizer"])
@pytest.mark.parametrize("risk", ["mean", "final"])
@pytest.mark.parametrize(("steps", "k_broken"), [(1, 1), (3, 1), (3, 3)])
def test_overflow_falls_back_to_the_clean_gradient(entry, risk, steps, k_broken):
    perturbation = ga_sam(0.3, steps=steps)
    object.__setattr__(perturbation, "risk", risk)
    expected = network()
    x, y = batch()
    cross_entropy(expected(x), y).backward()
    model = network()
    loss = broken(model, k_broken)
    if entry == "backward":
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        SharpBackward(model, perturbation, on_overflow="clean")(loss)
        found = [p.grad - 1 for p in model.parameters()]
    else:
        optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), perturbation, on_overflow="clean")

        def closure():
            value = loss()
            value.backward()
            return value

        optimizer.step(closure)
        found = [p.grad for p in model.parameters()]
    assert error(flat(found), flat([p.grad for p in expected.parameters()])) < EXACT


def test_without_overflow_the_fold_is_the_same():
    x, y = batch()
    folded = []
    for choice in ("keep", "clean"):
        model = network()
        SharpBackward(model, ga_sam(0.3, steps=2), on_overflow=choice)(lambda m=model: cross_entropy(m(x), y))
        folded.append(flat([p.grad for p in model.parameters()]))
    assert error(*folded) < EXACT


def test_overflow_keeps_sparse_gradients_sparse():
    words = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(words.parameters()))
    sharp = SharpBackward(words, ga_sam(budget=0.1, cap=0.01), on_overflow="clean")
    sharp(lambda: words(torch.tensor([1, 2])).square().mean())
    assert words.weight.grad.is_sparse
    optimizer.step()
    plain = nn.Embedding(10, 4, sparse=True)
    plain.load_state_dict(words.state_dict())
    plain(torch.tensor([1, 2])).square().mean().backward()
    words.weight.grad = None
    passes = []

    def breaking():
        passes.append(1)
        return words(torch.tensor([1, 2])).square().mean() * (math.inf if len(passes) == 2 else 1.0)

    sharp(breaking)
    assert error(words.weight.grad.to_dense(), plain.weight.grad.to_dense()) < 1e-6


def test_overflow_gives_the_clean_gradient_to_weights_that_only_the_clean_pass_used():
    first, second = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()
    x, _ = batch()
    passes = []

    def loss():
        passes.append(1)
        if len(passes) == 1:
            return (first(x) + second(x)).square().mean()
        return first(x).square().mean() * math.inf

    SharpBackward(nn.ModuleList([first, second]), sam(0.05), on_overflow="clean")(loss)
    expected = torch.autograd.grad((first(x) + second(x)).square().mean(), second.weight)[0]
    assert error(second.weight.grad, expected) < EXACT


def test_bad_choices_are_named():
    with pytest.raises(ValueError, match="on_overflow must be 'keep' or 'clean', got 'skip'"):
        SharpBackward(network(), ga_sam(0.1), on_overflow="skip")
    with pytest.raises(ValueError, match="batchnorm must be 'clean pass' or 'every pass', got None"):
        SharpBackward(network(), ga_sam(0.1), batchnorm=None)
    worker = object.__new__(per_worker)
    with pytest.raises(ValueError, match="can't be used with per_worker"):
        SharpBackward(network(), ga_sam(0.1), around=worker, on_overflow="clean")
    SharpBackward(network(), ga_sam(0.1), around=None, on_overflow="clean")
    SharpBackward(network(), ga_sam(0.1), around=same_noise(), on_overflow="clean")
