"""When to walk and how strongly: the schedule against a few lines of plain Python, and its state."""

import dataclasses
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, SharpnessAware, ga_sam, recommended, sam
from gasam.schedule import Clock
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


def reference(losses, progress):
    """The strength at each step, from the mean loss of each step."""
    strengths, initial, smoothed = [], None, None
    for step in range(len(losses)):
        if step and step % 10 == 0:
            block = [loss for loss in losses[step - 10 : step] if math.isfinite(loss)]
            mean = sum(block) / len(block) if block else None
            if initial is None:
                initial = smoothed = mean
            elif mean is not None:
                smoothed = 0.6 * smoothed + 0.4 * mean
        fallen = 0 if initial is None else (initial - smoothed) / (progress * abs(initial))
        strengths.append(min(1.0, max(0.0, fallen)))
    return strengths


def strengths_of(clock, losses):
    found = []
    for loss in losses:
        found.append(clock.strength())
        clock.state = clock.after(torch.tensor(loss, dtype=torch.float64))
    return found


LOSSES = st.lists(st.floats(0.1, 3.0) | st.floats(-3.0, -0.1) | st.just(math.nan), min_size=25, max_size=60)


@given(losses=LOSSES, progress=st.sampled_from([0.05, 0.2, 1.5]))
@settings(deadline=None, max_examples=60)
def test_progress_equals_plain_python(losses, progress):
    losses = [2.0, *losses]  # so that the first block has a loss
    clock = Clock(Schedule(progress=progress), [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sum of zero
        assert strengths_of(clock, losses) == pytest.approx(reference(losses, progress), abs=1e-9)


def test_walk_reaches_full_strength_when_the_loss_has_fallen_and_weakens_when_it_rises():
    losses = [2.0] * 10 + [1.9] * 100 + [1.0] * 100 + [2.1] * 100
    found = strengths_of(Clock(Schedule(progress=0.2), []), losses)
    assert found[:20] == [0.0] * 20
    assert found[100] == pytest.approx(0.25, abs=0.01)
    assert found[209] == 1.0
    assert found[-1] == 0.0


@pytest.mark.parametrize(("schedule", "expected"), [
    (Schedule(), [1, 1, 1, 1, 1, 1]),
    (Schedule(start=2), [0, 0, 1, 1, 1, 1]),
    (Schedule(warmup=3), [0.25, 0.5, 0.75, 1, 1, 1]),
    (Schedule(start=2, warmup=1), [0, 0, 0.5, 1, 1, 1]),
    (Schedule(start=0.5), [0, 0, 0, 1, 1, 1]),
    (Schedule(start=0.5, warmup=1 / 6), [0, 0, 0, 0.5, 1, 1]),
    (lambda step: step / 10, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
    (lambda step: step >= 3, [0, 0, 0, 1, 1, 1]),
])  # fmt: skip
def test_start_and_warmup(schedule, expected):
    assert strengths_of(Clock(schedule, [], total_steps=6), [1.0] * 6) == pytest.approx(expected)


def test_parts_multiply():
    losses = [2.0] * 10 + [1.8] * 50
    both = strengths_of(Clock(Schedule(progress=0.2, start=15, warmup=9), []), losses)
    alone = strengths_of(Clock(Schedule(progress=0.2), []), losses)
    ramp = [min(1, max(0, (step - 14) / 10)) for step in range(60)]
    assert both == pytest.approx([a * b for a, b in zip(alone, ramp, strict=True)])


@pytest.mark.parametrize(("bad", "words"), [
    ({"progress": 0}, "progress must be a finite number > 0"),
    ({"progress": math.inf}, "progress must be a finite number > 0"),
    ({"start": -1}, "start must be a number of steps"),
    ({"start": 1.0}, "start must be a number of steps"),
    ({"warmup": True}, "warmup must be a number of steps"),
    ({"warmup": "10"}, "warmup must be a number of steps"),
])  # fmt: skip
def test_bad_options_are_named(bad, words):
    with pytest.raises(ValueError, match=words):
        Schedule(**bad)


def sharp_of(model, perturbation=None, **options):
    return SharpBackward(model, ga_sam(0.1) if perturbation is None else perturbation, **options)


def test_bad_strengths_and_missing_totals_are_named():
    model, (x, y) = network(), batch()
    with pytest.raises(ValueError, match=r"strength in \[0, 1\], got 2 for step 0"):
        sharp_of(model, schedule=lambda step: 2)(lambda: cross_entropy(model(x), y))
    with pytest.raises(ValueError, match=r"start=0.1 is a share of training: give total_steps"):
        sharp_of(model, schedule=Schedule(start=0.1))(lambda: cross_entropy(model(x), y))
    with pytest.raises(TypeError, match="schedule must be a Schedule or a function of the step, got float"):
        sharp_of(model, schedule=0.5)
    with pytest.raises(ValueError, match="accumulation must be a whole number >= 1, got 0"):
        sharp_of(model, accumulation=0)


@pytest.mark.parametrize("perturbation", [ga_sam(0.1, steps=3), ga_sam(budget=0.1, cap=10, steps=3), sam(0.2)])
def test_strength_shrinks_ball_and_step_together(perturbation):
    x, y = batch()
    gradients = []
    size = "epsilon" if perturbation.budget is None else "budget"
    half = dataclasses.replace(perturbation, **{size: getattr(perturbation, size) / 2})
    for options in ((perturbation, lambda step: 0.5), (half, None)):
        model = network()
        sharp_of(model, options[0], schedule=options[1])(lambda m=model: cross_entropy(m(x), y))
        gradients.append(flat([p.grad for p in model.parameters()]))
    assert error(*gradients) < EXACT


def test_strength_zero_is_one_plain_pass():
    model, (x, y) = network(), batch()
    calls = []
    sharp = sharp_of(model, schedule=Schedule(start=1))

    def loss():
        calls.append(1)
        return cross_entropy(model(x), y)

    sharp(loss)
    assert len(calls) == 1
    assert str(sharp.last).startswith("waiting: one plain pass, because the schedule's strength is 0; losses ")
    sharp(loss)
    assert len(calls) == 3


def test_disabled_walk_is_off_and_not_waiting():
    model, (x, y) = network(), batch()
    sharp = sharp_of(model, schedule=Schedule(start=5))
    sharp.enabled = False
    sharp(lambda: cross_entropy(model(x), y))
    assert str(sharp.last).startswith("off: one plain pass")


def test_function_of_the_step_is_called_once_a_call():
    model, (x, y) = network(), batch()
    asked = []
    sharp = sharp_of(model, schedule=lambda step: float(asked.append(step) is None))
    for _ in range(3):
        sharp(lambda: cross_entropy(model(x), y))
    assert asked == [0, 1, 2]


def test_micro_batches_share_a_strength_and_are_averaged():
    losses = torch.rand(45, 2, dtype=torch.float64).add(0.5).cumsum(0).flip(0)
    counted = Clock(Schedule(progress=0.2), [], accumulation=2)
    begun = Clock(Schedule(progress=0.2), [])
    found = []
    for step, micro in enumerate(losses):
        for loss in micro:
            begun.begin_step(step)
            found.append((step, counted.strength(), begun.strength()))
            counted.state = counted.after(loss)
            begun.state = begun.after(loss)
    expected = reference(losses.mean(1).tolist(), 0.2)
    for step, by_count, by_begin in found:
        assert by_count == pytest.approx(expected[step])
        assert by_begin == pytest.approx(expected[step])


def test_failed_calls_do_not_count():
    model, (x, y) = network(), batch()
    sharp = sharp_of(model, schedule=Schedule(progress=0.2))
    sharp(lambda: cross_entropy(model(x), y))
    before = sharp.state_dict()
    with pytest.raises(ZeroDivisionError):
        sharp(lambda: 1 / 0)
    assert sharp.state_dict() == before


def test_plain_passes_and_sums_count_as_mean_losses():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model, ga_sam(0.1), schedule=Schedule(progress=0.2), gradient_scale=12)
    sharp.enabled = False
    loss = sharp(lambda: cross_entropy(model(x), y, reduction="sum"))
    assert sharp.state_dict()["losses"] == pytest.approx([loss.item() / 12, 1.0])


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_an_initial_loss_without_a_meaning_is_said_once(value):
    clock = Clock(Schedule(progress=0.2, start=15), [])
    with pytest.warns(UserWarning, match=r"can't follow the progress .* is (0|nan)") as caught:
        found = strengths_of(clock, [value] * 40)
    assert len(caught) == 1
    assert found == [0.0] * 15 + [1.0] * 25


def test_waiting_for_long_is_said_once():
    clock = Clock(Schedule(progress=0.2), [])
    with pytest.warns(UserWarning, match=r"has not begun after 10\d\d steps.*schedule=Schedule\(\)") as caught:
        strengths_of(clock, [2.0] * 1200)
    assert len(caught) == 1


def train(steps, model, optimizer, sharp, start=0):
    strengths = []
    for step in range(start, steps):
        x, y = batch(seed=step)
        sharp(lambda x=x, y=y: cross_entropy(model(x), y))
        strengths.append(sharp.last.strength)
        optimizer.step()
        optimizer.zero_grad()
    return strengths


@pytest.mark.parametrize("stop", [7, 10, 33])
def test_resumed_training_has_the_same_bits(stop, tmp_path):
    def made():
        model = network()
        return model, torch.optim.Adam(model.parameters(), lr=0.05), SharpBackward(model)

    whole, optimizer, sharp = made()
    strengths = train(60, whole, optimizer, sharp)
    assert max(strengths) > 0
    first, optimizer, sharp = made()
    train(stop, first, optimizer, sharp)
    state = {"model": first.state_dict(), "optimizer": optimizer.state_dict(), "sharp": sharp.state_dict()}
    torch.save(state, tmp_path / "state.pt")
    resumed, optimizer, sharp = made()
    state = torch.load(tmp_path / "state.pt")
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sharp.load_state_dict(state["sharp"])
    assert train(60, resumed, optimizer, sharp, start=stop) == strengths[stop:]
    assert same_bits(resumed.parameters(), whole.parameters())


def closure_of(model, seed):
    x, y = batch(seed=seed)

    def closure():
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("way", ["state dict", "pickle"])
def test_optimizer_keeps_the_schedule(way):
    model = network()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    for step in range(25):
        optimizer.step(closure_of(model, step))
    if way == "pickle":
        again = pickle.loads(pickle.dumps(optimizer))
    else:
        again = SharpnessAware(torch.optim.SGD(network().parameters(), lr=0.1))
        again.load_state_dict(optimizer.state_dict())
    assert again.clock.state_dict() == optimizer.clock.state_dict()
    assert again.clock.state_dict()["step"] == 25


def test_state_has_the_schedule_only_if_there_is_one():
    base = torch.optim.SGD(network().parameters(), lr=0.1)
    assert SharpnessAware(base, ga_sam(0.1)).state_dict().keys() == base.state_dict().keys()
    scheduled = SharpnessAware(base, ga_sam(0.1), schedule=Schedule(start=3))
    assert scheduled.state_dict().keys() - base.state_dict().keys() == {"walk_schedule"}
    with pytest.warns(UserWarning, match="the schedule begins again at step 0"):
        scheduled.load_state_dict(base.state_dict())


def test_bad_state_is_named():
    with pytest.raises(KeyError, match=r"give a SharpBackward.state_dict\(\)"):
        SharpBackward(network()).load_state_dict({"step": 3})


def test_nothing_given_is_the_recommended_setting():
    model = network()
    perturbation, schedule = recommended()
    for made in (SharpBackward(model), SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), model=model)):
        assert made.perturbation == perturbation
        assert made.clock.schedule == schedule
    assert SharpBackward(model, schedule=Schedule()).clock.schedule == Schedule()
    assert SharpBackward(model, ga_sam(1e-4)).clock.schedule is None


def test_compiled_model_with_batch_norm_and_a_changing_number_of_passes():
    """Plain passes, then walks, then plain passes again; the statistics and weights are those of the plain model."""
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
        quick = torch.compile(model, backend="aot_eager") if compiled else model
        sharp = SharpBackward(quick, ga_sam(budget=0.1, cap=0.1), schedule=lambda step: float(step in (2, 3, 5)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(7):
            x, y = batch(seed=step)
            sharp(lambda quick=quick, x=x, y=y: cross_entropy(quick(x), y))
            optimizer.step()
            optimizer.zero_grad()
        assert model[1].num_batches_tracked == 7
        assert sharp.weights.names[0] == "0.weight"
        results.append(flat([*model.parameters(), model[1].running_mean, model[1].running_var]))
    assert error(*results) < EXACT
