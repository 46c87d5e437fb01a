"""Whatever happens in a call, the weights are restored bit for bit, and nothing of the caller's is lost."""

import contextlib
import dataclasses
import math
import random
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import gasam
from gasam import Schedule, SharpBackward, SharpnessAware, displaced, friendly_sam, ga_sam, sam
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits

STEPS = 3
SOURCE = str(Path(gasam.__file__).parent)


def large():
    """A model whose tensors are cut into several pieces, beside small ones."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30_000), nn.Tanh(), nn.Linear(30_000, 3)).double()


class FailsAt:
    """A loss function that fails in pass k."""

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
@pytest.mark.parametrize(("norm", "make"), [(2.0, network), (math.inf, network), (2.0, large)])
def test_failure_in_any_pass_leaves_weights_and_gradients(failure, k, norm, make):
    model = make()
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
    assert sharp.last.climbed


@pytest.mark.parametrize("k", range(STEPS + 1))
def test_failure_in_backward_leaves_weights_and_gradients(k):
    model = network()
    weights, calls = [p.detach().clone() for p in model.parameters()], []

    def backward(loss):
        loss.backward()
        calls.append(loss)
        if len(calls) == k + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SharpBackward(model.parameters(), ga_sam(0.1, steps=STEPS), backward=backward)(FailsAt(model, -1, ValueError))
    assert same_bits(model.parameters(), weights)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("k", range(3))
def test_closure_that_fails_leaves_weights_and_the_base_as_they_were(k):
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    base = torch.optim.Adam(model.parameters())
    failing = FailsAt(model, k, KeyboardInterrupt)

    def closure():
        loss = failing()
        loss.backward()
        return loss

    with pytest.raises(KeyboardInterrupt):
        SharpnessAware(base, ga_sam(0.1, steps=2)).step(closure)
    assert same_bits(model.parameters(), before)
    assert not base.state


class Step:
    """A step, and everything that it changes."""

    def __init__(self, entry: str, make=network) -> None:
        self.model, loss = make(), FailsAt(None, -1, ValueError)
        loss.model = self.model
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if entry == "backward":
            self.sharp = SharpBackward(self.model, friendly_sam(0.1), schedule=Schedule(warmup=3))
            self.run = lambda: self.sharp(loss)
        else:
            base = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.sharp = SharpnessAware(base, friendly_sam(0.1), model=self.model, schedule=Schedule(warmup=3))
            self.run = lambda: self.sharp.step(lambda: (value := loss()).backward() or value)

    def weights(self):
        return [p.detach().clone() for p in self.model.parameters()]

    def gradients(self):
        return [torch.zeros(0) if p.grad is None else p.grad.clone() for p in self.model.parameters()]


@pytest.fixture
def interruptible():
    """SIGINT raises KeyboardInterrupt, also in a worker of xdist."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_at(number, run) -> int:
    """Send a real SIGINT before the line of gasam with this number; the number of lines that were run."""
    lines = 0

    def trace(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        if event == "line":
            lines += 1
            if lines == number:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("entry", ["backward", "closure"])
def test_an_interrupt_at_any_line_leaves_no_half_step(entry):
    """Each is a signal of its own. Afterwards, the step is undone or complete."""
    expected = Step(entry)
    before, gradients_before = expected.weights(), expected.gradients()
    count = interrupted_at(-1, expected.run)
    after, gradients_after = expected.weights(), expected.gradients()
    assert count > 100
    for number in range(1, count, max(1, count // 150)):
        step = Step(entry)
        with contextlib.suppress(KeyboardInterrupt):
            interrupted_at(number, step.run)
        stepped = same_bits(step.weights(), after)
        assert stepped or same_bits(step.weights(), before), number
        if entry == "backward":
            found = step.gradients()
            assert same_bits(found, gradients_before) or same_bits(found, gradients_after), number


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("make", [network, large])
def test_interrupts_from_another_thread_leave_the_weights(make):
    draw, step = random.Random(0), Step("backward", make)
    home = step.weights()
    for _ in range(40):
        timer = threading.Timer(draw.uniform(0, 0.004), signal.raise_signal, [signal.SIGINT])
        with contextlib.suppress(KeyboardInterrupt):
            timer.start()
            step.run()
            timer.join()
            sum(range(10))  # the handler runs between two instructions of this thread
        timer.join()
        assert same_bits(step.weights(), home)
        assert all(gradient.numel() for gradient in step.gradients())


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


def test_walk_within_a_walk_is_refused_and_keeps_the_gradients():
    model, (x, y) = network(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    sharp = SharpBackward(model.parameters(), ga_sam(0.1))
    sharp(lambda: cross_entropy(model(x), y))
    gradients = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="on a walk already"):
        sharp(lambda: sharp(lambda: cross_entropy(model(x), y)))
    assert same_bits(model.parameters(), before)
    assert same_bits([p.grad for p in model.parameters()], gradients)


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


@pytest.mark.parametrize("make", [network, large])
def test_after_a_call_the_weights_are_in_the_same_memory(make):
    """Views, flattened weights of recurrent nets and graphs captured on a device go on seeing them."""
    model, (x, y) = make(), batch()
    places = [p.data_ptr() for p in model.parameters()]
    views = [p.detach() for p in model.parameters()]
    before = [p.clone() for p in views]
    SharpBackward(model.parameters(), ga_sam(0.1, steps=2))(lambda: cross_entropy(model(x), y))
    assert [p.data_ptr() for p in model.parameters()] == places
    assert same_bits(views, before)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("rows", [3, 20_000])
def test_parameters_that_share_their_storage_come_home(steps, rows):
    """Weights tied by their data."""
    words, out = nn.Embedding(rows, 4), nn.Linear(4, rows, bias=False)
    out.weight.data = words.weight.data
    before = words.weight.detach().clone()
    sharp = SharpBackward([*words.parameters(), *out.parameters()], ga_sam(0.05, steps=steps))
    for _ in range(3):
        sharp(lambda: cross_entropy(out(words(torch.tensor([0, 1, 2]))), torch.tensor([1, 2, 0])))
    assert sharp.last.climbed
    assert same_bits([words.weight], [before])


@pytest.mark.parametrize("rows", [3, 40_000])
def test_offsets_of_parameters_that_share_their_storage_add_up(rows):
    words, out = nn.Embedding(rows, 4, dtype=torch.float64), nn.Linear(4, rows, bias=False, dtype=torch.float64)
    out.weight.data = words.weight.data
    seen, gradients = [], []

    def loss():
        seen.append([words.weight.detach().clone(), out.weight.detach().clone()])
        return cross_entropy(out(words(torch.tensor([0, 1, 2]))), torch.tensor([1, 2, 0]))

    def backward(value):
        value.backward()
        gradients.append([words.weight.grad.clone(), out.weight.grad.clone()])

    SharpBackward([words.weight, out.weight], sam(0.05), backward=backward)(loss)
    offset = 0.05 * sum(gradients[0]) / flat(gradients[0]).norm()
    assert same_bits(*[[each] for each in seen[1]])
    assert error(seen[1][0] - seen[0][0], offset) < EXACT


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

        def closure():
            value = loss()
            value.backward()
            return value

        if entry == "backward":
            SharpBackward([first, second], perturbation)(loss)
        else:
            SharpnessAware(torch.optim.SGD([first, second], lr=0.0), perturbation).step(closure)
        return flat([first.grad, second.grad])

    assert error(gradients(copies=False), gradients(copies=True)) < EXACT


@pytest.mark.parametrize("steps", [1, 2])
def test_gradients_that_overlap_in_part_are_folded_one_by_one(steps):
    """The backward of cat gives views of one tensor, which do not begin at one place."""
    head, tail = nn.Parameter(torch.linspace(-1, 1, 3).double()), nn.Parameter(torch.linspace(0, 2, 4).double())
    whole, zero = torch.linspace(1, 2, 5).double(), torch.zeros(2).double()

    def loss(copies: bool):
        parts = torch.cat([head, zero]), torch.cat([zero[:1], tail])
        if copies:
            parts = parts[0] * 1.0, parts[1] * 1.0
        return ((parts[0] + parts[1] - whole) ** 2).sum()

    gradients = []
    for copies in (False, True):
        SharpBackward([head, tail], ga_sam(0.1, steps=steps))(lambda c=copies: loss(c))
        gradients.append(flat([head.grad, tail.grad]))
        head.grad = tail.grad = None
    assert error(*gradients) < EXACT


class TestMemoryGivenAwayInAPass:
    """A displaced pass may rebind p.data: afterwards, each parameter has its own values again."""

    @pytest.mark.parametrize("how", ["vector", "copy", "to"])
    @pytest.mark.parametrize(("size", "sparse"), [(10, False), (10, True), (300, False)])
    def test_both_are_restored(self, size, how, sparse):
        model = nn.ModuleDict({"words": nn.Embedding(20, 4, sparse=sparse), "out": nn.Linear(size, size)})
        before = [p.detach().clone() for p in model.parameters()]
        old = [p.detach() for p in model.parameters()]
        calls = []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                if how == "vector":
                    vector_to_parameters(parameters_to_vector(model.parameters()), model.parameters())
                elif how == "copy":
                    for parameter in model.parameters():
                        parameter.data = parameter.data.clone()
                else:
                    model.double()
                    model.float()
            words = model["words"](torch.tensor([1, 3]))
            return model["out"](torch.ones(2, size)).square().mean() + words.square().mean()

        sharp = SharpBackward(model.parameters(), ga_sam(0.5))
        sharp(loss)
        assert same_bits(model.parameters(), before)
        assert same_bits(old, before)
        model.zero_grad()
        sharp(loss)  # and the next step works
        assert same_bits(model.parameters(), before)

    def test_another_type_is_refused_and_the_old_memory_restored(self):
        model, (x, y) = network(torch.float32), batch(torch.float32)
        before, old = [p.detach().clone() for p in model.parameters()], [p.detach() for p in model.parameters()]
        calls = []

        def loss():
            calls.append(1)
            if len(calls) == 2:
                model[0].double()
            return cross_entropy(model[2](model[1](model[0](x.to(model[0].weight.dtype))).float()), y)

        named = SharpBackward(model.named_parameters(), ga_sam(0.5))
        with pytest.raises(RuntimeError, match=r"0\.weight .*float32.*float64"):
            named(loss)
        assert same_bits(old, before)
        assert all(p.grad is None for p in model.parameters())

    @pytest.mark.parametrize("how", ["swapped", "both one", "turned"])
    def test_memory_of_other_weights_is_given_back(self, how):
        a, b = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        before, calls = [a.detach().clone(), b.detach().clone()], []

        def loss():
            calls.append(1)
            if len(calls) == 2 and how == "swapped":
                a.data, b.data = b.data, a.data
            elif len(calls) == 2 and how == "both one":
                a.data = b.data
            elif len(calls) == 2:
                a.data = a.data.t()
            return (a**2).sum() + (b**2).sum()

        sharp = SharpBackward([a, b], sam(0.1))
        sharp(loss)
        assert same_bits([a, b], before)
        with torch.no_grad():
            b.fill_(7.0)
        a.grad = b.grad = None
        sharp(loss)
        assert (b == 7).all()

    def test_between_two_steps_of_a_walk(self):
        """It is refused, or the next step goes on from the parameter's own memory."""
        a, calls = nn.Parameter(torch.randn(4)), []
        before = a.detach().clone()

        def loss():
            calls.append(1)
            if len(calls) == 2:
                a.data = a.data.clone()
            return (a**2).sum()

        with contextlib.suppress(RuntimeError):
            SharpBackward([a], ga_sam(0.1, steps=2))(loss)
        assert same_bits([a], [before])

    def test_expanded_weights_are_refused(self):
        with pytest.raises(TypeError, match="'b' is an expanded view"):
            SharpBackward([("b", nn.Parameter(torch.ones(1).expand(5)))], sam(0.1))
