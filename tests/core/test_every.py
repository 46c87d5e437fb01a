"""A walk on every n-th step, with a weight: against the float64 reference, and counted."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_conformance import PERTURBATIONS, through_backward, through_closure
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Schedule, SharpBackward, SharpnessAware, asam, ga_sam, sam
from problems import batch, network, paper_walk
from tolerances import EXACT, error, flat

pytestmark = pytest.mark.filterwarnings("ignore:a budget without a cap")
WEIGHTS = (0.5, 1.0, 2.0, 4.0)
WALKS = [
    dataclasses.replace(walk, risk=risk)
    for walk in (ga_sam(0.1), ga_sam(0.1, steps=3), ga_sam(budget=0.1, cap=0.02, steps=2), asam(0.1))
    for risk in ("mean", "final")
]


def expected(perturbation, weight):
    """g_0 + v (fold - g_0) by the reference."""
    model, (x, y) = network(), batch()
    folded = torch.from_numpy(paper_walk(model, lambda m: cross_entropy(m(x), y), perturbation)[3])
    clean = flat(torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters())))
    return clean + weight * (folded - clean)


@pytest.mark.parametrize("entry", [through_backward, through_closure])
@pytest.mark.parametrize("perturbation", WALKS, ids=str)
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("factor", [1.0, 1024.0, 1 / 3])
def test_gradient_is_that_of_the_reference_whatever_the_loss_scale(entry, perturbation, weight, factor):
    schedule = Schedule(every=3, weight=weight)
    _, gradient = entry(network(), perturbation, factor, schedule=schedule)
    assert error(gradient, expected(perturbation, weight)) < EXACT


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("entry", [through_backward, through_closure])
def test_weight_one_changes_no_bit(entry, name):
    _, plain = entry(network(), PERTURBATIONS[name], 1.0)
    _, weighted = entry(network(), PERTURBATIONS[name], 1.0, schedule=Schedule(every=5, weight=1.0))
    assert torch.equal(plain, weighted)


@given(every=st.integers(1, 7), weight=st.one_of(st.none(), st.floats(0.1, 10)), steps=st.integers(1, 3))
def test_the_default_weight_makes_up_for_the_plain_steps(every, weight, steps):
    """Over n steps at the same point, the gradients add up to n times the fold with v = n."""
    model, (x, y) = network(), batch()
    perturbation = ga_sam(0.1, steps=steps)
    sharp = SharpBackward(model, perturbation, schedule=Schedule(every=every, weight=weight))
    total = torch.zeros_like(flat(model.parameters()))
    passes = []
    for _ in range(every):
        model.zero_grad()
        sharp(lambda: cross_entropy(model(x), y))
        total += flat([p.grad for p in model.parameters()])
        passes.append(len(sharp.last.losses))
    assert passes == [steps + 1] + [1] * (every - 1)
    clean = expected(perturbation, 0.0)
    folded = expected(perturbation, 1.0)
    assert error(total, every * clean + (weight or every) * (folded - clean)) < EXACT


@pytest.mark.parametrize("perturbation", WALKS, ids=str)
@pytest.mark.parametrize("weight", [2.0, 4.0])
def test_what_the_caller_had_in_grad_is_added_to_and_not_rescaled(perturbation, weight):
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model, perturbation, schedule=Schedule(weight=weight), accumulation=2)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 3.0)
    held = [parameter.grad for parameter in parameters]
    sharp(lambda: cross_entropy(model(x), y))
    assert error(flat([p.grad for p in parameters]) - 3.0, expected(perturbation, weight)) < EXACT
    assert all(parameter.grad is own for parameter, own in zip(parameters, held, strict=True))


@pytest.mark.parametrize("risk", ["mean", "final"])
def test_expanded_and_sparse_gradients_are_rescaled(risk):
    """Autograd gives an expanded gradient for a sum, and a sparse one for an embedding."""
    torch.manual_seed(0)
    words, scale = nn.Embedding(10, 4, sparse=True, dtype=torch.float64), nn.Parameter(torch.ones(4).double())
    tokens = torch.tensor([1, 3, 3, 7])
    walk = dataclasses.replace(sam(0.1), risk=risk)

    def gradients(schedule):
        words.weight.grad = scale.grad = None
        sharp = SharpBackward([words.weight, scale], walk, schedule=schedule)
        sharp(lambda: words(tokens).square().sum() + scale.sum())
        return flat([words.weight.grad.to_dense(), scale.grad])

    words.weight.grad = scale.grad = None
    (words(tokens).square().sum() + scale.sum()).backward()
    clean, folded = flat([words.weight.grad.to_dense(), scale.grad]), gradients(None)
    assert error(gradients(Schedule(weight=4.0)), clean + 4 * (folded - clean)) < EXACT


@pytest.mark.parametrize("risk", ["mean", "final"])
@pytest.mark.parametrize("weight", [2.0, 4.0])
def test_an_overflow_of_the_displaced_pass_leaves_the_clean_gradient(risk, weight):
    model, (x, y) = network(), batch()
    calls = []

    def loss():
        calls.append(0)
        value = cross_entropy(model(x), y)
        return value if len(calls) == 1 else value * torch.inf

    walk = dataclasses.replace(ga_sam(0.1), risk=risk)
    sharp = SharpBackward(model, walk, schedule=Schedule(weight=weight), on_overflow="clean")
    sharp(loss)
    assert error(flat([p.grad for p in model.parameters()]), expected(ga_sam(0.1), 0.0)) < EXACT


def test_steps_between_walks_are_plain_and_say_so():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model, ga_sam(1e-3), schedule=Schedule(every=2))
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.verdict() == "fine"
    model.zero_grad()
    assert not sharp.walks()
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.verdict() == "between walks: one plain pass"
    assert torch.equal(flat([p.grad for p in model.parameters()]), expected(ga_sam(0.1), 0.0))


def test_micro_batches_of_a_step_walk_together():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model, ga_sam(0.1), schedule=Schedule(every=2), accumulation=3)
    passes = []
    for _ in range(12):
        sharp(lambda: cross_entropy(model(x), y))
        passes.append(len(sharp.last.losses))
    assert passes == [2, 2, 2, 1, 1, 1, 2, 2, 2, 1, 1, 1]


def test_a_resumed_run_walks_on_the_same_steps():
    model, (x, y) = network(), batch()

    def made():
        return SharpBackward(model, ga_sam(0.1), schedule=Schedule(every=3))

    first, passes = made(), []
    for _ in range(4):
        first(lambda: cross_entropy(model(x), y))
    resumed = made()
    resumed.load_state_dict(first.state_dict())
    for _ in range(4):
        resumed(lambda: cross_entropy(model(x), y))
        passes.append(len(resumed.last.losses))
    assert passes == [1, 1, 2, 1]  # steps 4 to 7


def test_parts_of_a_schedule_combine():
    """Of every second step, those from the third on, in proportion to the warm-up."""
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model, ga_sam(0.1), schedule=Schedule(every=2, start=3, warmup=3))
    strengths = []
    for _ in range(8):
        strengths.append(sharp.clock.strength())
        sharp(lambda: cross_entropy(model(x), y))
    assert strengths == [0, 0, 0, 0, 0.5, 0, 1, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every must be a whole number of steps >= 1, got 0"),
        ({"every": 2.0}, "every must be a whole number"),
        ({"every": True}, "every must be a whole number"),
        ({"weight": 0}, "weight must be a number from 0.001 to 1000 or None, got 0"),
        ({"weight": float("inf")}, "weight must be a number from 0.001 to 1000"),
    ],
)
def test_bad_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        Schedule(**options)


def test_optimizer_counts_its_passes():
    model, (x, y) = network(), batch()
    calls = []
    optimizer = SharpnessAware(
        torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1, steps=2), model=model, schedule=Schedule(every=4)
    )

    def closure():
        calls.append(optimizer.clock.state.step)
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(9):
        optimizer.step(closure)
    assert [calls.count(step) for step in range(9)] == [3, 1, 1, 1, 3, 1, 1, 1, 3]


@pytest.mark.parametrize("weight", [1.9, 2.0, 2.1])
def test_a_gradient_of_the_clean_pass_alone_is_never_lost(weight):
    """With K = 1 and v = 2 its share is zero: the gradient is zero, not None."""
    w, once, calls = nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.ones(3).double()), []

    def loss():
        calls.append(0)
        return w.square().sum() + (once.square().sum() if len(calls) == 1 else 0.0)

    walk = dataclasses.replace(sam(0.1), risk="mean")
    SharpBackward([w, once], walk, schedule=Schedule(weight=weight))(loss)
    expected = torch.full((3,), 2 * (1 - weight / 2), dtype=torch.float64)
    assert torch.allclose(once.grad, expected, rtol=EXACT, atol=EXACT)


def test_a_step_must_be_a_whole_number():
    sharp = SharpBackward(network(), ga_sam(0.1), schedule=Schedule(every=4))
    with pytest.raises(TypeError, match=r"step must be a whole number, got 2\.5"):
        sharp.begin_step(2.5)
