"""Faults at drawn places of drawn steps: nothing is lost, and what bugs would leave behind is noticed.

A subject has a twin that gets the same calls without faults. After a fault its weights, `.grad`, schedule and base
optimizer must be, bit by bit, as before the call or as after a complete one; and its next step must equal the twin's.
"""

import copy
import math
import signal
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import gasam
from family_reference import PRESETS
from gasam import Perturbation, Schedule, SharpBackward, SharpnessAware
from tolerances import same_bits

pytestmark = pytest.mark.filterwarnings("ignore")
SOURCE = str(Path(gasam.__file__).parent)
WORDS = 7


class Case(NamedTuple):
    entry: str
    perturbation: Perturbation
    weights: str
    schedule: Any
    options: dict
    seed: int


def draw(random):
    """One of the combinations that gasam allows."""
    method, weights = random.choice(["walk", "walk", "walk", *PRESETS]), random.choice(list(MODELS))
    if weights == "sparse":
        method = "walk"  # methods refuse sparse gradients
    size = random.choice([{"epsilon": 0.05}, {"budget": 0.1, "cap": 0.05}, {"epsilon": 0.05, "cap": 0.01}])
    norm = random.choice([1.5, 2.0, math.inf])
    if method == "walk":
        scale, granularity = random.choice(list(gasam.SCALES)), random.choice(["element", "filter", "layer", "model"])
        perturbation = Perturbation(
            **size, norm=norm, scale=scale, granularity=granularity,
            steps=random.choice([1, 1, 2, 3]), risk=random.choice(["mean", "final"]),
        )  # fmt: skip
    else:
        perturbation = PRESETS[method](norm=norm, **size)
        if method in ("gsam", "wsam"):
            perturbation = replace(perturbation, steps=random.choice([1, 2]))
    schedules = [None, Schedule(every=2), Schedule(start=1, warmup=3), Schedule(progress=0.2)]
    schedule = Schedule(every=2, weight=1) if method == "look_sam" else random.choice(schedules)
    entry = random.choice(["SharpBackward", "SharpnessAware"])
    options = {"in_place": random.random() < 0.2}
    return Case(entry, perturbation, weights, schedule, options, random.randrange(10**6))


class Tied(nn.Module):
    """Embedding and output share their weights."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.out = nn.Embedding(WORDS, 5), nn.LayerNorm(5), nn.Linear(5, WORDS, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words):
        return self.out(self.norm(self.embedding(words).mean(1)))


def dense(sparse=False):
    inner = [nn.Flatten(), nn.Linear(15, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, WORDS)]
    return nn.Sequential(nn.Embedding(WORDS, 5, sparse=sparse), *inner)


MODELS = {
    "float32": dense,
    "float64": lambda: dense().double(),
    "bfloat16": lambda: dense().bfloat16(),
    "sparse": lambda: dense(sparse=True),
    "tied": Tied,
}


class UserFault(NamedTuple):
    """In pass k the user's code raises `failure`, or multiplies a number by `value`."""

    k: int
    where: str  # loss, hook, enter, leave; with a value: loss, gradient
    failure: Any = None
    value: float = 1.0


class SkippingSGD(torch.optim.SGD):
    """Skips the step if asked to, as a loop that drops the steps whose gradient is not finite."""

    skip = False

    def step(self, closure=None):
        with _disable_current_modes():  # what a fault does in the middle of the base's step is not gasam's
            return None if self.skip else super().step(closure)


class Subject:
    """A model with its walk, whose next call may have a fault. A `bug` does its harm after every call."""

    def __init__(self, case, bug=None):
        torch.manual_seed(case.seed)
        self.model, self.bug = MODELS[case.weights](), bug
        self.parameters = list(self.model.parameters())
        self.base, self.fault, self.passes = None, None, 0
        options = {"schedule": case.schedule, "around": self.around, **case.options}
        if case.entry == "SharpBackward":
            self.sharp = SharpBackward(self.model, case.perturbation, **options)
        else:
            self.base = SkippingSGD(self.parameters, lr=0.05, momentum=0.0 if case.weights == "sparse" else 0.5)
            self.sharp = SharpnessAware(self.base, case.perturbation, model=self.model, **options)

    def call(self, seed, fault=None):
        """One call on the batch of this seed."""
        self.fault, self.passes = fault, 0
        generator = torch.Generator().manual_seed(seed)
        with _disable_current_modes():
            words, classes = (torch.randint(WORDS, shape, generator=generator) for shape in ((6, 3), (6,)))
        loss = lambda: self.loss(words, classes)  # noqa: E731

        def closure():
            value = loss()
            value.backward()
            return value

        failure = None
        try:
            self.sharp(loss) if self.base is None else self.sharp.step(closure)
        except BaseException as raised:
            failure = raised
            raise
        finally:
            if self.bug is not None:
                with _disable_current_modes(), torch.no_grad():
                    self.bug(self, failure)

    def loss(self, words, classes):
        self.passes += 1
        outputs = self.model(words)
        outputs.register_hook(self.hook)
        return cross_entropy(outputs.float(), classes) * self.now("loss")

    @contextmanager
    def around(self, k, last):
        self.now("enter", k)
        yield
        self.now("leave", k)

    def hook(self, gradient):
        self.now("hook")
        return gradient * self.now("gradient")

    def now(self, where, k=None):
        fault = self.fault
        if fault is None or fault.where != where or fault.k != (self.passes - 1 if k is None else k):
            return 1.0
        if fault.failure is not None:
            raise fault.failure
        return fault.value

    @property
    def walk(self):
        """Its state dict has the schedule, and what the method keeps."""
        return self.sharp if self.base is None else self.sharp.sharp

    def schedule(self):
        return repr({name: value for name, value in self.walk.state_dict().items() if name != "method"})

    def kept(self):
        """What the method keeps; zeros are the same as nothing yet."""
        known = self.walk.state_dict().get("method", {})
        shapes = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self.parameters]
        return [
            (zero if one is None else one).detach().clone()
            for name in sorted(known) for one, zero in zip(known[name], shapes, strict=True)
        ]  # fmt: skip

    def take_kept(self, other):
        kept = copy.deepcopy(other.walk.state_dict()).get("method", {})
        self.walk.load_state_dict(self.walk.state_dict() | {"method": kept})

    def gradients(self):
        """What a failed call may not change: gradients only where they are the user's."""
        if self.base is None:
            return [p.grad for p in self.parameters]
        return [self.base.state[p].get("momentum_buffer") for p in self.parameters]

    def state(self):
        tensors = [torch.empty(0) if one is None else one for one in (*self.parameters, *self.gradients())]
        return [
            (one.detach().to_dense() if one.is_sparse else one.detach()).clone() for one in tensors
        ], self.schedule()

    @property
    def walked(self):
        return len(self.sharp.last.losses) > 1

    def copy(self):
        made = copy.deepcopy(self)
        made.bug = None
        for one, other in zip(self.parameters, made.parameters, strict=True):
            other.grad = None if one.grad is None else one.grad.clone()
        return made


def alike(one, other):
    return same_bits(one[0], other[0]) and one[1] == other[1]


class AtOperation(TorchDispatchMode):
    """Counts those of torch's operations that need memory, and strikes at number `at`."""

    def __init__(self, at=None, strike=None):
        super().__init__()
        self.at, self.strike, self.places = at, strike, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        new = [each for each in func._schema.returns if each.alias_info is None and "Tensor" in str(each.type)]
        if new and not str(func).startswith("profiler."):
            self.places.append(str(func))
            if len(self.places) - 1 == self.at:
                self.strike()
        return func(*args, **(kwargs or {}))


class AtLine:
    """Counts the lines of gasam that run, and strikes before number `at`."""

    def __init__(self, at=None, strike=None):
        self.at, self.strike, self.places = at, strike, []

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(lambda frame, event, _: self.line if frame.f_code.co_filename.startswith(SOURCE) else None)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def line(self, frame, event, _):
        if event == "line":
            self.places.append(frame.f_code)
            if len(self.places) - 1 == self.at:
                self.strike()
        return self.line


def interrupt():
    signal.raise_signal(signal.SIGINT)


def fail():
    raise torch.OutOfMemoryError("injected")


class Pair:
    """A subject, and a twin that gets the same calls without faults."""

    def __init__(self, case, random, bug=None):
        self.case, self.random, self.lost = case, random, []
        self.subject, self.twin = Subject(case, bug), Subject(case)
        for _ in range(2):
            self.next_step()
        self.places = {AtOperation: [], AtLine: []}
        for kind in self.places:
            for _ in range(2):  # with `every`, one of them walks
                with kind() as counted:
                    self.next_step()
                found = counted.places[: len(counted.places) // 2]  # the subject's, without the twin's
                self.places[kind] = max(found, self.places[kind], key=len)

    def check(self, holds, what):
        if not holds:
            self.lost.append(f"{what}: {self.case}")

    def clear(self):
        """Sometimes a call adds to gradients, as in a loop that accumulates."""
        if self.random.random() < 0.6:
            for parameter in (*self.subject.parameters, *self.twin.parameters):
                parameter.grad = None

    def next_step(self):
        seed = self.random.randrange(10**6)
        self.clear()
        self.subject.call(seed)
        self.twin.call(seed)
        self.check(alike(self.subject.state(), self.twin.state()), "the next step")
        self.check(same_bits(self.subject.kept(), self.twin.kept()), "what the method keeps after the next step")

    def inject(self):
        """One fault and what follows from it."""
        self.clear()
        seed, k = self.random.randrange(10**6), self.random.randrange(self.case.perturbation.steps + 1)
        if self.random.random() < 0.25:
            self.bad_number(seed, UserFault(k, self.random.choice(["loss", "gradient"]), value=math.nan))
        else:
            self.draw_failure(seed, k)
        self.next_step()

    def draw_failure(self, seed, k):
        """At an operation, at a line, or in the user's code."""
        kind = self.random.choice([AtOperation, AtLine, None])
        if kind is None:
            error = self.random.choice([ValueError("injected"), KeyboardInterrupt(), MemoryError("injected")])
            place = UserFault(k, self.random.choice(["loss", "hook", "enter", "leave"]), error)
            self.failure(seed, nullcontext(), place)
        else:
            strike = self.random.choice([interrupt, fail]) if kind is AtOperation else interrupt
            self.failure(seed, kind(self.place(kind), strike))

    def failure(self, seed, striking, fault=None):
        """The call is undone or complete."""
        subject = self.subject
        before, kept, gradients = subject.state(), subject.kept(), [p.grad for p in subject.parameters]
        ahead = self.twin.copy()
        ahead.call(seed)
        raised = False
        try:
            with striking:
                subject.call(seed, fault)
        except (Exception, KeyboardInterrupt):
            raised = True
        if raised and alike(subject.state(), before):
            if subject.base is None:
                same = all(p.grad is g for p, g in zip(subject.parameters, gradients, strict=True))
                self.check(same, "the tensors in .grad")
        elif alike(subject.state(), ahead.state()):
            self.twin = ahead
        elif raised and not ahead.walked and subject.base is None:
            for one, other in zip(subject.parameters, self.twin.parameters, strict=True):  # as after a plain backward
                other.grad = None if one.grad is None else one.grad.clone()
            self.check(alike(subject.state(), self.twin.state()), f"the state after a plain pass, {fault}")
        else:
            self.check(False, f"the state after {type(striking).__name__} {vars(striking).get('at')} {fault}")
        old = kept or [torch.zeros_like(one) for one in ahead.kept()]
        entries = zip(subject.kept(), old, ahead.kept(), strict=False)
        self.check(all(torch.equal(x, a) or torch.equal(x, b) for x, a, b in entries), "what the method keeps")
        self.twin.take_kept(subject)

    def place(self, kind):
        """A number of an operation or line. Each kind of operation, and each function of gasam, is equally likely."""
        chosen = self.random.choice(list(dict.fromkeys(self.places[kind])))
        return self.random.choice([i for i, each in enumerate(self.places[kind]) if each == chosen])

    def bad_number(self, seed, fault):
        """NaN: the call does not raise, it counts as a step, and the number reaches `.grad` alone."""
        subject = self.subject
        before = [p.detach().clone() for p in subject.parameters]
        if subject.base is not None:
            subject.base.skip = True
        subject.call(seed, fault)
        self.check(same_bits(subject.parameters, before), f"the weights after {fault}")
        self.check(all(bool(one.isfinite().all()) for one in subject.kept()), f"what the method keeps after {fault}")
        self.check("nan" not in subject.schedule(), f"the schedule after {fault}")
        if subject.base is not None:
            subject.base.skip = False
        for parameter in (*subject.parameters, *self.twin.parameters):
            parameter.grad = None
        self.twin = subject.copy()


def campaign(seed, faults, bug=None):
    """What was lost by this many faults; the first loss ends it."""
    random = Random(seed)
    for _ in range(faults // 6):
        pair = Pair(draw(random), random, bug)
        for _ in range(6):
            pair.inject()
            if pair.lost:
                return pair.lost
    return []


@pytest.fixture(autouse=True)
def interruptible():
    """SIGINT raises KeyboardInterrupt, also in a worker of xdist."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_no_fault_loses_anything():
    assert campaign(seed=11, faults=120) == []


@pytest.mark.parametrize("entry", ["SharpBackward", "SharpnessAware"])
def test_an_interrupt_at_any_line_leaves_no_half_step(entry):
    pair = Pair(Case(entry, PRESETS["friendly_sam"](0.1), "float64", Schedule(warmup=3), {}, 0), Random(0))
    count = len(pair.places[AtLine])
    assert count > 100
    for place in range(0, count, max(1, count // 100)):
        pair.failure(place, AtLine(place, interrupt))
        assert pair.lost == []


def one_weight_stays(subject, failure):
    if failure is not None:
        subject.parameters[0].mul_(1.5)


def weights_stay_after_interrupts(subject, failure):
    if isinstance(failure, KeyboardInterrupt):
        subject.parameters[-1].mul_(1.5)


def offset_is_subtracted(subject, failure):
    """w + a - a is not w in floating point."""
    for parameter in subject.parameters:
        parameter.add_(0.1).sub_(0.1)


def gradients_of_a_failed_pass_stay(subject, failure):
    if failure is not None:
        subject.parameters[0].grad = torch.ones_like(subject.parameters[0])


def gradients_are_replaced_by_copies(subject, failure):
    if failure is not None:
        for parameter in subject.parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()


def a_failed_step_counts(subject, failure):
    state = subject.walk.state_dict()
    if failure is not None:
        subject.walk.load_state_dict(state | {"step": state["step"] + 1})


def nan_is_kept(subject, failure):
    state = subject.walk.state_dict()
    if subject.fault is not None and math.isnan(subject.fault.value) and "method" in state:
        kept = {name: [tensor * math.nan for tensor in tensors] for name, tensors in state["method"].items()}
        subject.walk.load_state_dict(state | {"method": kept})


BUGS = (
    one_weight_stays,
    weights_stay_after_interrupts,
    offset_is_subtracted,
    gradients_of_a_failed_pass_stay,
    gradients_are_replaced_by_copies,
    a_failed_step_counts,
    nan_is_kept,
)


@pytest.mark.parametrize("bug", BUGS)
def test_what_a_bug_leaves_behind_is_noticed(bug):
    """`python -m benchmarks.mutants` plants bugs in the core itself."""
    assert campaign(seed=3, faults=1_500, bug=bug) != []
