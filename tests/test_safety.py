"""Whatever happens in a pass: the weights come home bit for bit, and nothing of the caller's is lost."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Pass, Perturbation, SharpBackward, SharpnessAware, climb, displaced, ga_sam, sam
from gasam.trace import CLIMBED, NO_GRADIENT, NOT_FINITE
from problems import Wavy, batch, network
from tolerances import EXACT, error, flat, same_bits

STEPS = 3


class FailsAt:
    """A loss function that fails in pass k, before or after its backward."""

    def __init__(self, model, k: int, failure: type[BaseException]) -> None:
        self.model, self.k, self.failure, self.calls = model, k, failure, 0

    def __call__(self):
        x, y = batch()
        self.calls += 1
        if self.calls == self.k + 1:
            raise self.failure
        return cross_entropy(self.model(x), y)


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("k", range(STEPS + 1))
@pytest.mark.parametrize("norm", [2.0, math.inf])
def test_failure_in_any_pass_leaves_weights_and_gradients(failure, k, norm, small_stretches):
    model = network()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    weights = [p.detach().clone() for p in model.parameters()]
    gradients = [p.grad.clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, norm=norm, steps=STEPS))
    with pytest.raises(failure):
        sharp(FailsAt(model, k, failure))
    assert same_bits(model.parameters(), weights)
    assert same_bits([p.grad for p in model.parameters()], gradients)
    sharp(FailsAt(model, -1, failure))  # and the next call works
    assert same_bits(model.parameters(), weights)


@pytest.mark.parametrize("k", range(STEPS + 1))
def test_failure_in_backward_leaves_weights_and_gradients(k):
    model = network()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=STEPS))
    weights = [p.detach().clone() for p in model.parameters()]
    calls = []

    def backward(loss):
        loss.backward()
        calls.append(loss)
        if len(calls) == k + 1:
            raise KeyboardInterrupt

    sharp.backward = backward
    with pytest.raises(KeyboardInterrupt):
        sharp(FailsAt(model, -1, ValueError))
    assert same_bits(model.parameters(), weights)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("moment", ["save", "displace", "restore"])
@pytest.mark.parametrize("occurrence", [0, 1, 3])
def test_interrupt_while_weights_are_written(moment, occurrence, small_stretches, monkeypatch):
    """The interrupt comes between two stretches, where some are moved and some are not, or some are home again."""
    from gasam.tensors import Slice

    model = network()
    weights = [p.detach().clone() for p in model.parameters()]
    original, seen = getattr(Slice, moment), []

    def interrupted(self, *args):
        original(self, *args)
        seen.append(self)
        if len(seen) == occurrence + 1:
            raise KeyboardInterrupt

    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(FailsAt(model, -1, ValueError))  # the buffers now hold an older home
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    weights = [p.detach().clone() for p in model.parameters()]
    monkeypatch.setattr(Slice, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        sharp(FailsAt(model, -1, ValueError))
    assert len(seen) > occurrence
    assert same_bits(model.parameters(), weights)


def test_abandoned_walk_goes_home():
    problem = Wavy()
    parameters = problem.parameters()
    before = [p.detach().clone() for p in parameters.values()]

    def evaluate(k: int) -> Pass:
        loss = problem.loss(parameters)
        loss.backward()
        return Pass(loss.detach())

    visits = climb(list(parameters.values()), evaluate, ga_sam(0.1, steps=5))
    next(visits), next(visits)
    assert not same_bits(parameters.values(), before)
    del visits
    assert same_bits(parameters.values(), before)


def test_displaced_holds_the_offset_and_restores_on_failure():
    weights = [torch.randn(3, 2, requires_grad=True), torch.randn(2, requires_grad=True)]
    before = [w.detach().clone() for w in weights]
    offset = [torch.randn_like(w) for w in before]

    def interrupted() -> None:
        with displaced(weights, offset):
            assert error(flat(weights), flat(before) + flat(offset)) < 1e-6
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert same_bits(weights, before)


class Dropped(nn.Module):
    """Two layers; the second takes part in the passes that are named."""

    def __init__(self, passes) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3).double(), nn.Linear(6, 3).double()
        self.passes, self.calls = passes, 0

    def forward(self, x):
        self.calls += 1
        return self.first(x) + (self.second(x) if self.calls - 1 in self.passes else 0)


@pytest.mark.parametrize("passes", [(0,), (1,), (2,), (0, 2), (1, 2), ()])
@pytest.mark.parametrize("scale", ["gradient_strength", "one", "weight"])
@pytest.mark.parametrize("granularity", ["layer", "model", "element"])
def test_gradient_in_some_passes_only(passes, scale, granularity):
    """What moved is moved back; the fold counts a missing gradient as zero; what has none at first takes no part."""
    model, (x, y) = Dropped(passes), batch()
    before = [p.detach().clone() for p in model.parameters()]
    perturbation = Perturbation(epsilon=0.05, scale=scale, granularity=granularity, steps=2)
    sharp = SharpBackward(model.parameters(), perturbation)
    sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), before)
    assert (model.second.weight.grad is not None) == bool(passes)

    # The same walk on the layers that have a gradient in the clean pass, the other one standing still.
    again = Dropped(passes)
    again.load_state_dict(model.state_dict())
    groups = [{"params": again.first.parameters()}, {"params": again.second.parameters(), "perturb": 0 in passes}]
    expected = SharpBackward(groups, perturbation)
    expected(lambda: cross_entropy(again(x), y))
    for found, other in zip(model.parameters(), again.parameters(), strict=True):
        assert (found.grad is None) == (other.grad is None)
        assert found.grad is None or torch.equal(found.grad, other.grad)


def test_n_counts_the_weights_that_take_part():
    """An unused layer of a million weights must not shrink the walk."""
    model, (x, y) = network(), batch()
    alone = SharpBackward(model.parameters(), ga_sam(0.1))
    alone(lambda: cross_entropy(model(x), y))
    unused = nn.Linear(100, 100).double()
    sharp = SharpBackward([*model.parameters(), *unused.parameters()], ga_sam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    assert torch.equal(torch.stack(sharp.last.norms), torch.stack(alone.last.norms))
    assert all(p.grad is None for p in unused.parameters())


def test_frozen_weights_stay_and_may_thaw():
    model, (x, y) = network(), batch()
    model[0].requires_grad_(False)
    model[0].weight.grad = torch.ones_like(model[0].weight)  # left over from before
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    seen = []

    def loss():
        seen.append(model[0].weight.detach().clone())
        return cross_entropy(model(x), y)

    sharp(loss)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    model[0].requires_grad_(True)
    model.zero_grad()
    sharp(loss)
    assert not torch.equal(seen[2], seen[3])


def test_tied_weights_move_once():
    torch.manual_seed(0)
    tied = nn.Linear(6, 6).double()
    x, _ = batch()

    def loss():
        return (tied(tied(x)) ** 2).mean()

    once = SharpBackward([tied.weight, tied.bias], sam(0.1))
    once(loss)
    expected = [p.grad.clone() for p in tied.parameters()]
    tied.zero_grad()
    twice = SharpBackward([tied.weight, tied.weight, tied.bias], sam(0.1))
    twice(loss)
    assert same_bits([p.grad for p in tied.parameters()], expected)


def test_groups_may_stand_still():
    model, (x, y) = network(), batch()
    still = [p.detach().clone() for p in model[0].parameters()]
    sharp = SharpBackward(
        [{"params": model[0].parameters(), "perturb": False}, {"params": model[2].parameters()}], sam(0.5)
    )
    moved = []

    def loss():
        assert same_bits(model[0].parameters(), still)
        moved.append(model[2].weight.detach().clone())
        return cross_entropy(model(x), y)

    sharp(loss)
    assert not torch.equal(*moved)
    assert all(p.grad is not None for p in model.parameters())


POISONS = {"gradient nan": math.nan, "gradient inf": math.inf, "gradient -inf": -math.inf}


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("granularity", ["element", "filter", "layer", "model"])
@pytest.mark.parametrize("steps", [1, 2])
def test_non_finite_gradient_stays_home_and_reaches_the_caller(poison, norm, granularity, steps):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    model[2].bias.register_hook(lambda g: g.index_fill(0, torch.tensor([1]), POISONS[poison]))
    sharp = SharpBackward(model.parameters(), dataclasses.replace(ga_sam(0.1, norm, steps), granularity=granularity))

    def loss():
        assert same_bits(model.parameters(), before)
        return cross_entropy(model(x), y)

    sharp(loss)
    assert sharp.last.active == NOT_FINITE
    assert "not finite" in str(sharp.last)
    assert [norm.item() for norm in sharp.last.norms] == [0.0] * (steps + 1)
    assert not model[2].bias.grad.isfinite().all()
    assert model[0].weight.grad.isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_loss_stays_home(value):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))

    def loss():
        assert same_bits(model.parameters(), before)
        return cross_entropy(model(x), y) + value

    sharp(loss)
    assert sharp.last.active == NOT_FINITE


@pytest.mark.parametrize("granularity", ["element", "layer"])
def test_non_finite_scale_stays_home(granularity):
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    perturbation = Perturbation(epsilon=0.1, scale=lambda group: group.gradient * math.inf, granularity=granularity)
    sharp = SharpBackward(model.parameters(), perturbation)

    def loss():
        assert same_bits(model.parameters(), before)
        return cross_entropy(model(x), y)

    sharp(loss)
    assert sharp.last.active == NOT_FINITE


def test_gradient_that_overflows_in_a_later_pass_brings_the_walk_home():
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    places = []

    def loss():
        places.append(same_bits(model.parameters(), before))
        return cross_entropy(model(x), y) * (math.inf if len(places) == 2 else 1.0)

    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2))
    sharp(loss)
    assert places == [True, False, True]
    assert sharp.last.active == NOT_FINITE


@pytest.mark.parametrize("norm", [1.5, 2.0, math.inf])
@pytest.mark.parametrize("steps", [1, 2])
def test_zero_gradient_stays_home(norm, steps):
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, norm, steps))
    sharp(lambda: cross_entropy(model(x), y) * 0)
    assert sharp.last.active == NO_GRADIENT
    assert "no gradient" in str(sharp.last)
    assert all((p.grad == 0).all() for p in model.parameters())
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.active == CLIMBED


def test_walk_within_a_walk_is_refused():
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    with pytest.raises(RuntimeError, match="on a walk already"):
        sharp(lambda: sharp(lambda: cross_entropy(model(x), y)))
    assert same_bits(model.parameters(), before)


def test_closure_that_fails_leaves_weights_and_the_base_as_they_were():
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    base = torch.optim.Adam(model.parameters())
    optimizer = SharpnessAware(base, ga_sam(0.1, steps=2))
    failing = FailsAt(model, 2, KeyboardInterrupt)

    def closure():
        loss = failing()
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert same_bits(model.parameters(), before)
    assert not base.state


def test_moved_and_converted_models_are_walked_where_they_are():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    model.float()
    model.zero_grad()
    before = [p.detach().clone() for p in model.parameters()]
    sharp(lambda: cross_entropy(model(x.float()), y))
    assert sharp.last.active == CLIMBED
    assert same_bits(model.parameters(), before)


def test_non_contiguous_weights_walk_like_contiguous_ones():
    x, y = batch()
    plain, turned = network(), network()
    turned[0].weight = nn.Parameter(turned[0].weight.detach().t().contiguous().t())
    gradients = []
    for model in (plain, turned):
        SharpBackward(model.parameters(), ga_sam(0.1, steps=2))(lambda m=model: cross_entropy(m(x), y))
        gradients.append(flat([p.grad for p in model.parameters()]))
    assert not turned[0].weight.is_contiguous()
    assert error(*gradients) < EXACT


def test_all_weights_may_stand_still():
    model, (x, y) = network(), batch()
    sharp = SharpBackward([{"params": model.parameters(), "perturb": False}], ga_sam(0.1, steps=2))
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.active == NO_GRADIENT
    folded = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    assert error(flat(folded), flat([p.grad for p in model.parameters()])) < EXACT


def test_empty_and_single_number_parameters_walk_along():
    model, (x, y) = network(), batch()
    gain, nothing = nn.Parameter(torch.ones((), dtype=torch.float64)), nn.Parameter(torch.zeros(0, 3).double())
    sharp = SharpBackward([*model.parameters(), gain, nothing], ga_sam(0.1, steps=2))
    sharp(lambda: gain * cross_entropy(model(x), y) + nothing.sum())
    assert sharp.last.active == CLIMBED
    assert nothing.grad.shape == (0, 3)


def test_two_models_with_the_same_names_keep_their_tensors_apart():
    models, (x, y) = [network(seed=0), network(seed=1)], batch()
    groups = [{"params": list(model.named_parameters())} for model in models]
    sharp = SharpBackward(groups, ga_sam(0.1), detailed=True)
    sharp(lambda: cross_entropy(models[0](x) + models[1](x), y))
    assert len(sharp.last.detail.labels) == 8


def test_the_perturbation_may_change_between_steps():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), sam(0.1))
    for perturbation in (ga_sam(0.1, steps=3), dataclasses.replace(sam(0.2), granularity="filter", steps=2), sam(0.1)):
        fresh = SharpBackward(model.parameters(), perturbation)
        fresh(lambda: cross_entropy(model(x), y))
        model.zero_grad()
        sharp.perturbation = perturbation
        sharp(lambda: cross_entropy(model(x), y))
        model.zero_grad()
        assert torch.equal(torch.stack(sharp.last.losses), torch.stack(fresh.last.losses))


def test_mixed_types_share_one_walk():
    model, (x, y) = network(), batch(torch.float32)
    model[0].float()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, norm=2.0, steps=2))
    before = [p.detach().clone() for p in model.parameters()]
    sharp(lambda: cross_entropy(model[2](model[1](model[0](x)).double()), y))
    assert sharp.last.active == CLIMBED
    assert same_bits(model.parameters(), before)
    double, (x, y) = network(), batch()
    expected = SharpBackward(double.parameters(), ga_sam(0.1, norm=2.0, steps=2))
    expected(lambda: cross_entropy(double(x), y))
    assert error(torch.stack(sharp.last.losses), torch.stack(expected.last.losses)) < 1e-5


def test_last_keeps_no_graph_and_no_large_tensor():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1, steps=2))
    sharp(lambda: cross_entropy(model(x), y))
    kept = [*sharp.last.losses, *sharp.last.norms, sharp.last.active]
    assert all(value.grad_fn is None and value.numel() == 1 and value.untyped_storage().nbytes() <= 8 for value in kept)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("rows", [3, 20_000])
def test_parameters_that_share_their_storage_come_home(steps, rows):
    """Weights tied by their data: the second is saved after the first has moved."""
    words, out = nn.Embedding(rows, 4), nn.Linear(4, rows, bias=False)
    out.weight.data = words.weight.data
    before = words.weight.detach().clone()
    sharp = SharpBackward([*words.parameters(), *out.parameters()], ga_sam(0.05, steps=steps))
    for _ in range(3):
        sharp(lambda: cross_entropy(out(words(torch.tensor([0, 1, 2]))), torch.tensor([1, 2, 0])))
    assert sharp.last.active == CLIMBED
    assert same_bits([words.weight], [before])


@pytest.mark.parametrize("risk", ["mean", "final"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("entry", ["backward", "closure"])
def test_gradients_that_share_their_storage_are_folded_one_by_one(risk, steps, entry):
    """Autograd may leave one tensor as the gradient of two parameters, each a view of it."""
    perturbation = dataclasses.replace(sam(0.1), risk=risk, steps=steps)

    def gradients(copies: bool):
        first = nn.Parameter(torch.linspace(-1, 1, 4).double().reshape(2, 2))
        second = nn.Parameter(torch.linspace(0, 2, 4).double().reshape(4, 1))

        def loss():
            parts = first.view(-1), second.view(-1)
            if copies:
                parts = parts[0] * 1.0, parts[1] * 1.0
            return ((parts[0] + parts[1]) ** 2).sum()

        if entry == "backward":
            SharpBackward([first, second], perturbation)(loss)
        else:
            optimizer = SharpnessAware(torch.optim.SGD([first, second], lr=0.0), perturbation)

            def closure():
                value = loss()
                value.backward()
                return value

            optimizer.step(closure)
        return flat([first.grad, second.grad])

    assert error(gradients(copies=False), gradients(copies=True)) < EXACT


def test_gradients_survive_a_failure_to_set_them_aside():
    """Memory may run out while the caller's gradients are copied: none of them is lost."""
    model, (x, y) = network(), batch()

    class Unwilling(torch.Tensor):
        def clone(self, *args, **kwargs):
            raise MemoryError

    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].bias.grad = torch.ones_like(model[0].bias).as_subclass(Unwilling)
    with pytest.raises(MemoryError):
        SharpBackward(model.parameters(), ga_sam(0.1))(lambda: cross_entropy(model(x), y))
    assert all(p.grad is not None and (p.grad == 1).all() for p in model.parameters())


@pytest.mark.parametrize("where", ["first", "second"])
def test_interrupt_on_the_way_home(where, monkeypatch):
    """Ctrl-C as the walk turns home, before anything was put back; and another walk afterwards."""
    from gasam.layout import Weights

    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    original, calls = Weights.go_home, []

    def interrupted(self):
        calls.append(self)
        if len(calls) <= (1 if where == "first" else 2):
            raise KeyboardInterrupt
        original(self)

    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    monkeypatch.setattr(Weights, "go_home", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), before)
    monkeypatch.undo()
    sharp(lambda: cross_entropy(model(x), y))
    assert sharp.last.active == CLIMBED


def test_refused_walk_keeps_the_gradients():
    model, (x, y) = network(), batch()
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    before = [p.grad.clone() for p in model.parameters()]
    sharp.weights.walking = True
    with pytest.raises(RuntimeError, match="on a walk already"):
        sharp(lambda: cross_entropy(model(x), y))
    assert same_bits([p.grad for p in model.parameters()], before)
