"""When to walk, how strongly and with what weight: against a few lines of plain Python, counted, and resumed."""

import copy
import dataclasses
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gasam import Schedule, SharpBackward, SharpnessAware, ga_sam, recommended, sam
from problems import ENTRIES, TEN_WALKS, closure_of, gradient_of, loss_of, network, paper_walk, through_backward
from problems import strengths_of as expected_strengths
from tolerances import EXACT, error, flat, same_bits

WEIGHTS = (0.5, 1.0, 2.0, 4.0)
pytestmark = pytest.mark.filterwarnings("ignore:the walk is without effect")  # the loss is what it is told


class Told:
    """A model of one weight whose loss is what it is told, and SharpBackward around it."""

    def __init__(self, schedule, **options) -> None:
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.sharp = SharpBackward([("w", self.weight)], sam(1e-9), schedule=schedule, **options)

    def __call__(self, loss: float) -> float:
        """A call with this loss; the strength that it had."""
        self.weight.grad = None
        self.sharp(lambda: loss + self.weight.sum() - self.weight.detach().sum())
        return self.sharp.last.strength


def strengths_of(schedule, losses, **options):
    told = Told(schedule, **options)
    return [told(loss) for loss in losses]


LOSSES = st.lists(st.floats(0.1, 3.0) | st.floats(-3.0, -0.1) | st.just(math.nan), min_size=25, max_size=60)


@given(losses=LOSSES, progress=st.sampled_from([0.05, 0.2, 1.5]))
@settings(max_examples=30)
def test_progress_equals_plain_python(losses, progress):
    losses = [2.0, *losses]  # so that the first block has a loss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sum of zero, and walks that are not finite
        found = strengths_of(Schedule(progress=progress), losses)
    assert found == pytest.approx(expected_strengths(losses, progress), abs=1e-9)


@pytest.mark.parametrize(("schedule", "expected"), [
    (Schedule(), [1, 1, 1, 1, 1, 1]),
    (Schedule(start=2), [0, 0, 1, 1, 1, 1]),
    (Schedule(warmup=3), [0.25, 0.5, 0.75, 1, 1, 1]),
    (Schedule(start=2, warmup=1), [0, 0, 0.5, 1, 1, 1]),
    (Schedule(start=0.5), [0, 0, 0, 1, 1, 1]),
    (Schedule(start=0.5, warmup=1 / 6), [0, 0, 0, 0.5, 1, 1]),
    (Schedule(every=2, start=3, warmup=3), [0, 0, 0, 0, 0.5, 0]),
    (lambda step: step / 10, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
    (lambda step: step >= 3, [0, 0, 0, 1, 1, 1]),
])  # fmt: skip
def test_start_warmup_and_functions_of_the_step(schedule, expected):
    assert strengths_of(schedule, [1.0] * 6, total_steps=6) == pytest.approx(expected)


@pytest.mark.parametrize("perturbation", [ga_sam(0.1, steps=3), ga_sam(budget=0.1, cap=10, steps=3), sam(0.2)])
def test_strength_shrinks_ball_and_step_together(perturbation):
    size = "epsilon" if perturbation.budget is None else "budget"
    half = dataclasses.replace(perturbation, **{size: getattr(perturbation, size) / 2})
    _, found = through_backward(network(), perturbation, schedule=lambda step: 0.5)
    _, expected = through_backward(network(), half)
    assert error(found, expected) < EXACT


def test_a_function_is_asked_once_a_call():
    """So one answer decides the whole step, also if the next would be another."""
    asked, model, found = [], network(), []
    sharp = SharpBackward(model, ga_sam(0.1), schedule=lambda step: asked.append(step) or float(len(asked) % 2))
    for _ in range(4):
        sharp(loss_of(model))
        found.append((sharp.last.strength, sharp.last.passes))
    assert asked == [0, 1, 2, 3]
    assert found == [(1.0, 2), (0.0, 1)] * 2


def test_a_plain_pass_says_why():
    model, said = network(), []
    sharp = SharpBackward(model, ga_sam(1e-3), schedule=Schedule(every=2, start=2))
    for enabled in (True, False, True, True):
        sharp.enabled = enabled
        walks = sharp.walks()
        model.zero_grad()
        sharp(loss_of(model))
        assert len(sharp.last.losses) == 1 + walks
        said.append(sharp.last.verdict().partition(":")[0])
    assert said == ["waiting", "off", "fine", "between walks"]
    assert torch.equal(gradient_of(model), expected(ga_sam(0.1), 0.0))


def test_micro_batches_share_a_strength_and_are_averaged():
    losses = torch.rand(45, 2, dtype=torch.float64).add(0.5).cumsum(0).flip(0).tolist()
    counted, begun = Told(Schedule(progress=0.2), accumulation=2), Told(Schedule(progress=0.2))
    expected = expected_strengths([sum(micro) / 2 for micro in losses], 0.2)
    for step, micro in enumerate(losses):
        for loss in micro:
            begun.sharp.begin_step(step)
            assert counted(loss) == pytest.approx(expected[step])
            assert begun(loss) == pytest.approx(expected[step])


def test_failed_calls_do_not_count():
    told = Told(Schedule(progress=0.2))
    told(1.0)
    before = told.sharp.state_dict()
    with pytest.raises(ZeroDivisionError):
        told.sharp(lambda: 1 / 0)
    assert told.sharp.state_dict() == before


@pytest.mark.parametrize("scale", [12, lambda: 12])
def test_sums_count_as_mean_losses(scale):
    """Also those of plain passes."""
    means, sums = Told(Schedule(progress=0.2)), Told(Schedule(progress=0.2), gradient_scale=scale)
    for step in range(40):
        means.sharp.enabled = sums.sharp.enabled = step % 3 > 0
        assert sums(12 * (2.0 - step / 40)) == pytest.approx(means(2.0 - step / 40))


@pytest.mark.filterwarnings("ignore:the walk is not finite")
@pytest.mark.parametrize("value", [0.0, math.nan])
def test_an_initial_loss_without_a_meaning_is_said_once(value):
    with pytest.warns(UserWarning, match=r"can't follow the progress .* is (0|nan)") as caught:
        found = strengths_of(Schedule(progress=0.2, start=15), [value] * 30)
    assert len([each for each in caught if "can't follow" in str(each.message)]) == 1
    assert found == [0.0] * 15 + [1.0] * 15


def test_waiting_for_long_is_said_once():
    with pytest.warns(UserWarning, match=r"has not begun after 10\d\d steps.*schedule=Schedule\(\)") as caught:
        strengths_of(Schedule(progress=0.2), [2.0] * 1200)
    assert len(caught) == 1


@pytest.mark.parametrize("stop", [7, 10, 33])
def test_resumed_training_has_the_same_bits(stop, tmp_path):
    def made():
        model = network()
        return model, torch.optim.Adam(model.parameters(), lr=0.05), SharpBackward(model)

    def train(steps, model, optimizer, sharp):
        strengths = []
        for step in steps:
            sharp(loss_of(model, seed=step))
            strengths.append(sharp.last.strength)
            optimizer.step()
            optimizer.zero_grad()
        return strengths

    whole, first, resumed = made(), made(), made()
    strengths = train(range(60), *whole)
    assert max(strengths) > 0
    train(range(stop), *first)
    torch.save([part.state_dict() for part in first], tmp_path / "state.pt")
    for part, state in zip(resumed, torch.load(tmp_path / "state.pt"), strict=True):
        part.load_state_dict(state)
    assert train(range(stop, 60), *resumed) == strengths[stop:]
    assert same_bits(resumed[0].parameters(), whole[0].parameters())


def passes_of(sharp, model, calls):
    """How many passes each of these calls takes."""
    loss, found = loss_of(model), []
    for _ in range(calls):
        sharp(loss) if isinstance(sharp, SharpBackward) else sharp.step(closure_of(loss))
        found.append(len(sharp.last.losses))
    return found


def test_optimizer_counts_its_passes_and_keeps_the_schedule():
    model, every = network(), Schedule(every=4)
    base, walk = torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1, steps=2)
    first, again, plain = (SharpnessAware(base, walk, model=model, schedule=each) for each in (every, every, None))
    assert passes_of(first, model, 7) == [3, 1, 1, 1, 3, 1, 1]
    again.load_state_dict(first.state_dict())
    assert passes_of(again, model, 3) == [1, 3, 1]
    assert plain.state_dict().keys() == base.state_dict().keys()
    with pytest.warns(UserWarning, match="the schedule begins again at step 0"):
        again.load_state_dict(base.state_dict())


def test_nothing_given_is_the_recommended_setting():
    model = network()
    perturbation, schedule = recommended()
    sharp, base = SharpBackward(model), torch.optim.SGD(model.parameters(), lr=0.1)
    assert sharp.perturbation == SharpnessAware(base, model=model).perturbation == perturbation
    assert str(schedule) in repr(sharp)
    assert str(schedule) not in repr(SharpBackward(model, ga_sam(1e-4)))
    assert "walk" in SharpnessAware(base, model=model).state_dict()
    assert "walk" not in SharpnessAware(base, ga_sam(1e-4), model=model).state_dict()


def test_compiled_model_with_batch_norm_and_a_changing_number_of_passes():
    """Plain passes, then walks, then plain passes again; the statistics and weights are those of the plain model."""
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()
        quick = torch.compile(model, backend="aot_eager") if compiled else model
        schedule = lambda step: float(step in (2, 3, 5))  # noqa: E731
        sharp = SharpBackward(quick, ga_sam(budget=0.1, cap=0.1), schedule=schedule)
        optimizer, walks = torch.optim.SGD(model.parameters(), lr=0.1), 0
        for step in range(7):
            sharp(loss_of(quick, seed=step))
            walks += sharp.last.climbed
            optimizer.step()
            optimizer.zero_grad()
        assert model[1].num_batches_tracked == 7
        assert walks == 3
        results.append(flat([*model.parameters(), model[1].running_mean, model[1].running_var]))
    assert error(*results) < EXACT


def expected(perturbation, weight):
    """g_0 + v (fold - g_0) by the reference."""
    model = network()
    folded = torch.from_numpy(paper_walk(model, lambda m: loss_of(m)(), perturbation)[3])
    clean = gradient_of(model, loss_of(model)())
    return clean + weight * (folded - clean)


class TestEvery:
    """A walk on every n-th step, with a weight."""

    @ENTRIES
    @pytest.mark.parametrize("name", TEN_WALKS)
    def test_gradient_is_that_of_the_reference_whatever_the_loss_scale(self, entry, name):
        turn = list(TEN_WALKS).index(name)
        weight, factor = WEIGHTS[turn % 4], (1.0, 1024.0, 1 / 3)[turn % 3]
        _, gradient = entry(network(), TEN_WALKS[name], factor, schedule=Schedule(every=3, weight=weight))
        assert error(gradient, expected(TEN_WALKS[name], weight)) < EXACT
        _, plain = entry(network(), TEN_WALKS[name])
        _, weighted = entry(network(), TEN_WALKS[name], schedule=Schedule(every=5, weight=1.0))
        assert torch.equal(plain, weighted), "weight one changes no bit"

    @given(every=st.integers(1, 7), weight=st.one_of(st.none(), st.floats(0.1, 10)), steps=st.integers(1, 3))
    def test_the_default_weight_makes_up_for_the_plain_steps(self, every, weight, steps):
        """Over n steps at the same point, the gradients add up to n times the fold with v = n."""
        model, perturbation = network(), ga_sam(0.1, steps=steps)
        sharp = SharpBackward(model, perturbation, schedule=Schedule(every=every, weight=weight))
        assert passes_of(sharp, model, every) == [steps + 1] + [1] * (every - 1)
        clean, folded = expected(perturbation, 0.0), expected(perturbation, 1.0)
        assert error(gradient_of(model), every * clean + (weight or every) * (folded - clean)) < EXACT

    @pytest.mark.parametrize("risk", ["mean", "final"])
    def test_expanded_and_sparse_gradients_are_rescaled(self, risk):
        """Autograd gives an expanded gradient for a sum, and a sparse one for an embedding."""
        torch.manual_seed(0)
        words, scale = nn.Embedding(10, 4, sparse=True, dtype=torch.float64), nn.Parameter(torch.ones(4).double())
        tokens, walk = torch.tensor([1, 3, 3, 7]), sam(0.1, risk=risk)

        def gradients(call):
            words.weight.grad = scale.grad = None
            call(lambda: words(tokens).square().sum() + scale.sum())
            return flat([words.weight.grad.to_dense(), scale.grad])

        clean = gradients(lambda loss: loss().backward())
        folded = gradients(SharpBackward([words.weight, scale], walk))
        found = gradients(SharpBackward([words.weight, scale], walk, schedule=Schedule(weight=4.0)))
        assert error(found, clean + 4 * (folded - clean)) < EXACT

    def test_micro_batches_of_a_step_walk_together_also_after_a_resume(self):
        model, options = network(), {"schedule": Schedule(every=2), "accumulation": 3}
        first, resumed = (SharpBackward(model, ga_sam(0.1), **options) for _ in range(2))
        assert passes_of(first, model, 7) == [2, 2, 2, 1, 1, 1, 2]
        resumed.load_state_dict(copy.deepcopy(first.state_dict()))
        assert passes_of(resumed, model, 5) == passes_of(first, model, 5)

    @pytest.mark.parametrize("weight", [1.9, 2.0, 2.1])
    def test_a_gradient_of_the_clean_pass_alone_is_never_lost(self, weight):
        """With K = 1 and v = 2 its share is zero: the gradient is zero, not None."""
        w, once, calls = nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.ones(3).double()), []

        def loss():
            calls.append(0)
            return w.square().sum() + (once.square().sum() if len(calls) == 1 else 0.0)

        SharpBackward([w, once], sam(0.1, risk="mean"), schedule=Schedule(weight=weight))(loss)
        share = torch.full((3,), 2 * (1 - weight / 2), dtype=torch.float64)
        assert torch.allclose(once.grad, share, rtol=EXACT, atol=EXACT)
