"""Mistakes that would go unnoticed, and bad arguments: each is named in one sentence with its value and its cure."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import (
    FreeLB,
    Method,
    Perturbation,
    Schedule,
    SharpBackward,
    SharpnessAware,
    asam,
    friendly_sam,
    frozen_batchnorm,
    ga_sam,
    gsam,
    look_sam,
    per_worker,
    range_test,
    sam,
    sam_on,
    same_noise,
    wsam,
)
from problems import at_home, batch, messages_of, network


@pytest.fixture
def parts():
    model = network()
    return model, SharpBackward(model, ga_sam(0.1)), *batch()


WALK = ga_sam(0.1)


class TestLossFunctions:
    @pytest.mark.parametrize("enabled", [True, False])
    def test_what_was_computed_before_is_refused_also_while_the_walk_waits(self, parts, enabled):
        model, sharp, x, y = parts
        sharp.enabled = enabled
        features, loss = model[0](x), cross_entropy(model(x), y)
        for _ in range(2):  # also in the second attempt
            with pytest.raises(RuntimeError, match="computed before it was called"):
                sharp(lambda: cross_entropy(model[2](features.tanh()), y))
        with pytest.raises(RuntimeError, match=r"sharp\(lambda: loss_function\(model\(x\), y\)\)"):
            sharp(lambda: loss)

    def test_later_calls_and_closures_explain_torchs_message(self, parts):
        model, sharp, x, y = parts
        sharp(lambda: cross_entropy(model(x), y))
        loss = cross_entropy(model(x), y)
        with pytest.raises(RuntimeError, match="compute everything from the inputs inside the function"):
            sharp(lambda: loss)
        loss = cross_entropy(model(x), y)
        optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), ga_sam(0.1))
        with pytest.raises(RuntimeError, match="compute everything from the inputs inside the function"):
            optimizer.step(lambda: loss.backward() or loss)

    def test_what_would_go_unnoticed_is_named(self, parts):
        model, sharp, x, y = parts
        cell, head, hidden = nn.RNNCell(6, 5).double(), nn.Linear(5, 3).double(), torch.zeros(12, 5).double()
        batches, scaler = iter([batch(seed=i) for i in range(4)]), torch.amp.GradScaler("cpu")

        def consuming():
            x, y = next(batches)
            return cross_entropy(model(x), y)

        def overwriting():
            nonlocal hidden
            hidden = cell(x, hidden.detach())
            return cross_entropy(head(hidden), y)

        [message] = messages_of(lambda: sharp(consuming))
        assert "'batches'" in message
        assert "next()" in message
        sharp = SharpBackward(nn.ModuleList([cell, head]), WALK)
        [message] = messages_of(lambda: sharp(overwriting))
        assert "overwrites 'hidden'" in message
        assert "(loss, hidden)" in message
        sharp = SharpBackward(model, WALK)
        [message] = messages_of(lambda: sharp(lambda: scaler.scale(cross_entropy(model(x), y))))
        assert "65536" in message
        assert "GradScaler.scale" in message


bias = iter([1])


class TestWhatIsFine:
    """No word about what looks like a mistake and is none."""

    def silent(self, model, loss) -> bool:
        return messages_of(lambda: SharpBackward(model, WALK)(loss)) == []

    def test_threads_and_detached_results(self, parts):
        """Autograd counts its nodes for each thread, so their age can't be told from a number."""
        model, _, x, y = parts
        model(x).sum().backward()
        model.zero_grad()
        teacher, rows = model(x), [x[:6], x[6:]]
        with ThreadPoolExecutor(2) as pool:
            assert self.silent(
                model, lambda: cross_entropy(torch.cat(list(pool.map(model, rows))), y) + teacher.detach().sum()
            )

    def test_autocast_around_an_earlier_forward(self):
        model, (x, y) = network(torch.float32), batch(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
            assert self.silent(model, lambda: cross_entropy(model(x), y))

    def test_data_attributes_and_iterables_from_outside(self, parts):
        model, _, x, y = parts
        x, batches = x * 2, [batch(seed=i) for i in range(4)]
        weights = torch.ones(3, dtype=x.dtype, requires_grad=True)  # a leaf of the caller's own
        assert self.silent(model, lambda: cross_entropy(model(x), y, weight=weights.detach()))
        assert self.silent(model, lambda: sum(cross_entropy(model(x), y) for x, y in batches))
        assert self.silent(model, lambda: cross_entropy(model(x), y) + model[0].bias.sum())  # not the global `bias`

    @pytest.mark.parametrize("factor", [0.5, 1024, 1024.0])
    def test_ordinary_factors(self, parts, factor):
        model, _, x, y = parts
        assert self.silent(model, lambda: factor * cross_entropy(model(x), y))


BAD_OPTIONS = {
    "epsilon": ([-0.1, math.nan, math.inf, "0.1", True], "epsilon must be a finite number >= 0, got"),
    "norm": ([1.0, -2, math.nan, "2", None], "norm must be a number > 1 or math.inf, got"),
    "steps": ([0, 1.5, True, "1", None], "steps must be a whole number >= 1, got"),
    "step_size": ([0.0, math.nan, math.inf, "1"], "step_size must be a finite number > 0, or None"),
    "scale": (["fisher", None, ["one"]], "scale must be one of 'one', .* or a function of a Group, got"),
    "granularity": (["tensor", None], "granularity must be one of 'element', .* 'model', got"),
    "risk": (["max", None], "risk must be one of 'mean', 'final'"),
    "floor": ([-1.0, math.nan], "floor must be a finite number >= 0, got"),
    "cap": ([0.0, math.inf], "cap must be a finite number > 0, or None, got"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_option_is_named_with_its_value(name):
    values, words = BAD_OPTIONS[name]
    for value in values:
        with pytest.raises(ValueError, match=words) as caught:
            Perturbation(**{"epsilon": 0.1} | {name: value})
        assert repr(value) in str(caught.value)
        assert "\n" not in str(caught.value)


def sgd(parameters=None, **options):
    return torch.optim.SGD(network().parameters() if parameters is None else parameters, lr=0.1, **options)


def group(**keys):
    return [{"params": network().parameters()} | keys]


def scheduled(schedule, walk=None, **options):
    return SharpBackward(network(), walk or WALK, schedule=schedule, **options)


BY_MODULE = Perturbation(epsilon=0.1, granularity="module")
BAD_ARGUMENTS = [
    (lambda: Perturbation(), ValueError, "either an epsilon or a budget, got epsilon=None and budget=None"),
    (lambda: Perturbation(epsilon=0.1, budget=0.1), ValueError, "either an epsilon or a budget, got epsilon=0.1"),
    (lambda: Perturbation(budget=-1.0), ValueError, "budget must be a finite number >= 0, got -1.0"),
    (lambda: asam(0.1, eta=-1), ValueError, "eta must be a finite number >= 0, got -1"),
    (lambda: SharpBackward([], WALK), ValueError, "parameters is empty"),
    (lambda: SharpBackward(iter(()), WALK), ValueError, "only once"),
    (lambda: SharpBackward(nn.Sequential(), WALK), ValueError, "give a model with weights"),
    (lambda: SharpBackward(nn.Sequential(nn.LazyLinear(3))), ValueError, "lazy modules .* run one forward pass first"),
    (lambda: SharpBackward(torch.zeros(3), WALK), TypeError, "got Tensor"),
    (lambda: SharpBackward(None, WALK), TypeError, "got NoneType"),
    (lambda: SharpBackward([1.0], WALK), TypeError, "parameter 0 must be a tensor, got float"),
    (lambda: SharpBackward([{"lr": 0.1}], WALK), ValueError, "key 'params', got"),
    (lambda: SharpBackward([("fft", torch.zeros(2).cfloat())], WALK), TypeError, "'fft' has type .*complex64"),
    (lambda: SharpBackward([torch.zeros(2), torch.zeros(2).char()], WALK), TypeError, "parameter 1 has type"),
    (lambda: SharpBackward([("w", torch.zeros(4).to(torch.float8_e5m2))], WALK), TypeError, "'w' .* 16 bits or more"),
    (lambda: SharpBackward(network().parameters(), BY_MODULE), ValueError, r"give model\.named_parameters"),
    (lambda: SharpBackward(network(), 0.05), TypeError, r"a Perturbation such as ga_sam\(1e-4\), got"),
    (lambda: SharpnessAware(sgd(), ga_sam), TypeError, r"a Perturbation such as ga_sam\(1e-4\), got"),
    (lambda: SharpBackward(network(), WALK, around=same_noise), TypeError, r"around must be a function of \(k, last\)"),
    (lambda: SharpnessAware(sgd(), WALK, around=1), TypeError, r"around must be a function of \(k, last\), got"),
    (lambda: SharpBackward(network(), WALK, batchnorm=None), ValueError, "'clean pass' or 'every pass', got None"),
    (lambda: SharpBackward(group(rho=0.1), WALK), ValueError, "'rho', .* perturbation"),
    (lambda: SharpnessAware(sgd(group(epsilon=1)), WALK), ValueError, "key 'epsilon'"),
    (lambda: SharpBackward(group(cap=1), WALK), ValueError, "'cap', .*'perturb': False"),
    (lambda: SharpBackward(group(perturb=0.5), WALK), ValueError, "True or False"),
    (lambda: SharpnessAware(sgd(maximize=True), WALK), ValueError, "maximize=True.*minimise the negative"),
    (lambda: SharpBackward(sgd(maximize=True).param_groups, WALK), ValueError, "maximize=True.*minimise the negative"),
    (lambda: SharpnessAware(torch.optim.SGD, WALK), TypeError, "a torch optimizer, built as usual, got type"),
    (lambda: SharpnessAware(sgd(), model=[1]), TypeError, r"model must be an nn\.Module, got list"),
    (lambda: SharpnessAware(sgd(), WALK).step(), RuntimeError, "needs a closure .* use SharpBackward"),
    (lambda: frozen_batchnorm([1]), TypeError, "frozen_batchnorm needs the model, got list"),
    (lambda: per_worker(network()), TypeError, "DistributedDataParallel model, got Sequential"),
    (lambda: FreeLB(nn.Linear(2, 2), 0.1), TypeError, "nn.Embedding modules, got Linear"),
    (lambda: FreeLB([], 0.1), TypeError, "got none"),
    (lambda: FreeLB(nn.Embedding(4, 2), -1.0), ValueError, "epsilon must be a finite number >= 0"),
    (lambda: FreeLB(nn.Embedding(4, 2), 0.1, norm=1.0), ValueError, "norm must be"),
    (lambda: FreeLB(nn.Embedding(4, 2), 0.1, steps=0), ValueError, "steps must be"),
    (lambda: SharpBackward([("b", nn.Parameter(torch.ones(1).expand(5)))], WALK), TypeError, "'b' is an expanded view"),
    (lambda: range_test(SharpBackward(network()), print, []), ValueError, "one batch and sizes > 0"),
    (lambda: range_test(SharpBackward(network()), print, [1], sizes=[0.0]), ValueError, "one batch and sizes > 0"),
    # When to walk
    (lambda: Schedule(progress=0), ValueError, "progress must be a finite number > 0"),
    (lambda: Schedule(start=-1), ValueError, "start must be a number of steps"),
    (lambda: Schedule(start=1.0), ValueError, "start must be a number of steps"),
    (lambda: Schedule(warmup=True), ValueError, "warmup must be a number of steps"),
    (lambda: Schedule(every=2.0), ValueError, "every must be a whole number of steps >= 1, got 2.0"),
    (lambda: Schedule(weight=0), ValueError, "weight must be a number from 0.001 to 1000 or None, got 0"),
    (lambda: scheduled(lambda step: 2).walks(), ValueError, r"strength in \[0, 1\], got 2 for step 0"),
    (lambda: scheduled(Schedule(start=0.1)).walks(), ValueError, "start=0.1 is a share of training: give total_steps"),
    (lambda: scheduled(0.5), TypeError, "schedule must be a Schedule or a function of the step, got float"),
    (lambda: scheduled(None, accumulation=0), ValueError, "accumulation must be a whole number >= 1, got 0"),
    (lambda: scheduled(Schedule(every=4)).begin_step(2.5), TypeError, r"a whole number, got 2\.5"),
    (lambda: scheduled(None).load_state_dict({"step": 3}), KeyError, "give a SharpBackward.state_dict"),
    # The family
    (lambda: look_sam(0.1, alpha=-1), ValueError, "alpha must be a finite number >= 0, got -1"),
    (lambda: wsam(0.1, gamma=1.0), ValueError, r"gamma must be a number in \[0, 1\), got 1.0"),
    (lambda: friendly_sam(0.1, decay=1), ValueError, r"decay must be a number in \[0, 1\), got 1"),
    (lambda: gsam(rho=0.1), TypeError, r"rho is called epsilon here: write sam\(epsilon=0.1"),
    (lambda: replace(look_sam(0.1), steps=2), ValueError, "LookSAM is defined for 1 ascent step, got steps=2"),
    (lambda: replace(friendly_sam(0.1), steps=2), ValueError, "FriendlySAM is defined for 1 ascent step"),
    (lambda: replace(WALK, method="up"), TypeError, "method must be a gasam.Method or None, got 'up'"),
    (lambda: scheduled(Schedule(), look_sam(0.1)), ValueError, r"Schedule\(every=5, weight=1\)"),
    (lambda: scheduled(Schedule(every=4), look_sam(0.1)), ValueError, "every >= 2 and weight=1"),
    (lambda: scheduled(lambda step: 1.0, look_sam(0.1)), ValueError, "every >= 2 and weight=1"),
    (lambda: SharpBackward(network(), sam_on(0.1)), ValueError, "no parameter of Sequential moves"),
    (lambda: SharpBackward(network().parameters(), sam_on(0.1)), ValueError, r"the model, as in SharpBackward\(model"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "words"), BAD_ARGUMENTS)
def test_bad_argument_is_named_in_one_line(make, kind, words):
    with pytest.raises(kind, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def mean_of(model):
    return model(batch()[0]).mean()


def cleared(model):
    model.zero_grad()
    return mean_of(model)


def backed(model):
    value = mean_of(model)
    value.backward(retain_graph=True)
    return value


def unrecorded(model):
    with torch.no_grad():
        SharpBackward(model, WALK)(lambda: mean_of(model))


class NoList(Method):
    def fold(self, gradients, kept, strength):
        return gradients[0][0]


class Broken(Method):
    def fold(self, gradients, kept, strength):
        raise ZeroDivisionError("division")


def of(loss, walk=WALK, **options):
    """A call with this function of the model."""
    return lambda model: SharpBackward(model, walk, **options)(lambda: loss(model))


def step(closure):
    """A step of an optimizer with this closure, which gets the model."""
    return lambda model: SharpnessAware(sgd(model.parameters()), WALK).step(lambda: closure(model))


BAD_CALLS = [
    (of(lambda model: None), TypeError, "got NoneType: is a `return` missing"),
    (of(lambda model: 1.0), TypeError, "or an output with a loss, got float"),
    (of(lambda model: ()), TypeError, "got tuple"),
    (of(lambda model: {"logits": torch.zeros(3)}), TypeError, "output with a loss, got dict"),
    (of(lambda model: model(batch()[0])), ValueError, "single number, got the shape .12, 3."),
    (of(lambda model: mean_of(model).detach()), RuntimeError, "no graph"),
    (of(lambda model: mean_of(network())), RuntimeError, "no parameter got a gradient"),
    (of(backed), RuntimeError, "loss function called backward"),
    (of(cleared), RuntimeError, "cleared the gradients"),
    (of(lambda model: 1 / 0), ZeroDivisionError, "division"),
    (of(mean_of, backward=lambda value: None), RuntimeError, "backward did not differentiate the loss"),
    (of(mean_of, replace(sam(0.1), method=NoList())), TypeError, "NoList.fold must return a list .* got Tensor"),
    (of(mean_of, replace(sam(0.1), method=Broken())), ZeroDivisionError, "division"),
    (unrecorded, RuntimeError, r"torch\.no_grad"),
    (lambda model: SharpBackward(model, WALK)(mean_of(model)), TypeError, "put `lambda:` before the loss"),
    (step(lambda model: mean_of(model).backward()), TypeError, "must return the loss"),
    (step(lambda model: (mean_of(model).backward(), 1)), TypeError, "a single number, got tuple"),
    (step(mean_of), RuntimeError, "call loss.backward"),
]


@pytest.mark.parametrize(("call", "kind", "words"), BAD_CALLS)
def test_bad_call_is_named_and_leaves_weights_and_gradients_alone(call, kind, words):
    model = network()
    gradients = [torch.full_like(p, 3.0) for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    with at_home([*model.parameters(), *gradients]), pytest.raises(kind, match=words):
        call(model)


def labels_of(given, model, walk=WALK):
    x, y = batch()
    sharp = SharpBackward(given, walk, detailed=True)
    sharp(lambda: cross_entropy(model(x), y))
    return sharp.last.groups.labels


def test_parameters_may_be_given_in_many_forms():
    model = network()
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    other = [torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.cfloat)]  # these may stand still
    assert labels_of(model, model) == names
    assert labels_of(dict(model.named_parameters()), model) == names
    assert labels_of(dict(model.named_parameters()), model, BY_MODULE) == ["0", "2"]
    assert len(labels_of({"params": model.parameters()}, model)) == 4
    assert len(labels_of([{"params": model.parameters()}, {"params": other, "perturb": False}], model)) == 4
    two = nn.ModuleList([model, network(seed=1)])
    pairs = [pair for each in two for pair in each.named_parameters()]
    assert labels_of(pairs, lambda x: two[0](x) + two[1](x), BY_MODULE) == ["0", "2"] * 2
