"""Faults at drawn places of drawn steps: nothing is lost.

A subject has a twin that gets the same calls without faults. After a fault its weights, `.grad`, schedule and base
optimizer must be, bit by bit, as before the call or as after a complete one; and its next step must equal the twin's.
"""

import copy
import math
import signal
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
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
from problems import closure_of
from tolerances import same_bits

pytestmark = pytest.mark.filterwarnings("ignore")
SOURCE = str(Path(gasam.__file__).parent)
WORDS = 7


def model_of(weights):
    """A model whose weights have this type, or whose embedding has sparse gradients."""
    inner = [nn.Flatten(), nn.Linear(15, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, WORDS)]
    model = nn.Sequential(nn.Embedding(WORDS, 5, sparse=weights == "sparse"), *inner)
    return model if weights == "sparse" else model.to(getattr(torch, weights))


class Case(NamedTuple):
    by_closure: bool
    perturbation: Perturbation
    weights: str
    schedule: Any
    in_place: bool
    seed: int


def draw(random):
    """One of the combinations that gasam allows."""
    weights = random.choice(["float32", "float64", "bfloat16", "sparse"])
    method = "walk" if weights == "sparse" else random.choice(["walk", "walk", "walk", *PRESETS])
    size = random.choice([{"epsilon": 0.05}, {"budget": 0.1, "cap": 0.05}, {"epsilon": 0.05, "cap": 0.01}])
    size["norm"] = random.choice([1.5, 2.0, math.inf])
    if method == "walk":
        scale, granularity = random.choice(list(gasam.SCALES)), random.choice(["element", "filter", "layer", "model"])
        steps, risk = random.choice([1, 1, 2, 3]), random.choice(["mean", "final"])
        perturbation = Perturbation(**size, scale=scale, granularity=granularity, steps=steps, risk=risk)
    else:
        steps = random.choice([1, 2]) if method in ("gsam", "wsam") else 1
        perturbation = replace(PRESETS[method](**size), steps=steps)
    schedules = [None, Schedule(every=2), Schedule(start=1, warmup=3), Schedule(progress=0.2)]
    schedule = Schedule(every=2, weight=1) if method == "look_sam" else random.choice(schedules)
    in_place = random.random() < 0.2
    return Case(random.random() < 0.5, perturbation, weights, schedule, in_place, random.randrange(10**6))


class UserFault(NamedTuple):
    """The user's code raises `failure` in pass k."""

    k: int
    where: str  # loss, hook, enter, leave
    failure: BaseException


class Subject:
    """A model with its walk, whose next call may have a fault."""

    def __init__(self, case):
        torch.manual_seed(case.seed)
        self.model = model_of(case.weights)
        self.parameters = list(self.model.parameters())
        self.base, self.fault, self.passes = None, None, 0
        options = {"schedule": case.schedule, "around": self.around, "in_place": case.in_place}
        if case.by_closure:
            momentum = 0.0 if case.weights == "sparse" else 0.5
            self.base = torch.optim.SGD(self.parameters, lr=0.05, momentum=momentum)
            self.sharp = SharpnessAware(self.base, case.perturbation, model=self.model, **options)
        else:
            self.sharp = SharpBackward(self.model, case.perturbation, **options)
        self.walk = self.sharp.sharp if case.by_closure else self.sharp

    def call(self, seed, fault=None):
        """One call on the batch of this seed."""
        self.fault, self.passes = fault, 0
        generator = torch.Generator().manual_seed(seed)
        with _disable_current_modes():
            loss = partial(self.loss, *(torch.randint(WORDS, shape, generator=generator) for shape in ((6, 3), (6,))))
        self.sharp(loss) if self.base is None else self.sharp.step(closure_of(loss))

    def loss(self, words, classes):
        self.passes += 1
        outputs = self.model(words)
        outputs.register_hook(lambda gradient: self.now("hook"))
        self.now("loss")
        return cross_entropy(outputs.float(), classes)

    @contextmanager
    def around(self, k, last):
        self.now("enter", k)
        yield
        self.now("leave", k)

    def now(self, where, k=None):
        fault = self.fault
        if fault is not None and fault.where == where and fault.k == (self.passes - 1 if k is None else k):
            raise fault.failure

    def saved(self):
        """The state of the schedule, and under "method" what the method keeps."""
        return self.walk.state_dict()

    def load(self, **changes):
        self.walk.load_state_dict(self.saved() | changes)

    def kept(self):
        """What the method keeps; zeros are the same as nothing yet."""
        zeros = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self.parameters]
        lists = [zip(each, zeros, strict=True) for _, each in sorted(self.saved().get("method", {}).items())]
        return [(zero if one is None else one).clone() for pairs in lists for one, zero in pairs]

    def state(self):
        """What a failed call may not change: gradients only where they are the user's."""
        base, own = self.base, self.parameters
        gradients = [p.grad if base is None else base.state[p].get("momentum_buffer") for p in own]
        tensors = [torch.empty(0) if one is None else one.detach() for one in (*own, *gradients)]
        schedule = {name: value for name, value in self.saved().items() if name != "method"}
        return [(one.to_dense() if one.is_sparse else one).clone() for one in tensors], repr(schedule)

    def copy(self):
        made = copy.deepcopy(self)
        made.take_gradients(self)
        return made

    def take_gradients(self, other):
        for one, own in zip(other.parameters, self.parameters, strict=True):
            own.grad = None if one.grad is None else one.grad.clone()


def alike(one, other):
    return same_bits(one[0], other[0]) and one[1] == other[1]


class AtOperation(TorchDispatchMode):
    """Counts those of torch's operations that need memory; it is out at number `at`."""

    def __init__(self, at=None):
        super().__init__()
        self.at, self.places = at, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        new = [each for each in func._schema.returns if each.alias_info is None and "Tensor" in str(each.type)]
        if new and not str(func).startswith("profiler."):
            self.places.append(str(func))
            if len(self.places) - 1 == self.at:
                raise torch.OutOfMemoryError("injected")
        return func(*args, **(kwargs or {}))


class AtLine:
    """Counts the lines of gasam that run; the user presses Ctrl-C before number `at`."""

    def __init__(self, at=None):
        self.at, self.places = at, []

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
                signal.raise_signal(signal.SIGINT)
        return self.line


class Pair:
    """A subject, and a twin that gets the same calls without faults."""

    def __init__(self, case, random):
        self.case, self.random = case, random
        self.subject, self.twin = Subject(case), Subject(case)
        for _ in range(2):  # then a walk is next, also with `every`
            self.next_step()
        self.places = {kind: self.count(kind) for kind in (AtOperation, AtLine)}

    def count(self, kind):
        counted, subject = kind(), self.twin.copy()
        with counted:
            subject.call(0)
        return counted.places

    def check(self, holds, what):
        assert holds, f"{what}: {self.case}"

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
        kind = self.random.choice([AtOperation, AtLine, UserFault])
        if kind is UserFault:
            k = self.random.randrange(self.case.perturbation.steps + 1)
            where = self.random.choice(["loss", "hook", "enter", "leave"])
            self.failure(nullcontext(), UserFault(k, where, self.random.choice([ValueError(), KeyboardInterrupt()])))
        else:  # each kind of operation, and each function of gasam, is equally likely
            chosen = self.random.choice(list(dict.fromkeys(self.places[kind])))
            self.failure(kind(self.random.choice([i for i, each in enumerate(self.places[kind]) if each == chosen])))
        self.next_step()

    def failure(self, striking, fault=None):
        """The call is undone or complete."""
        subject, seed = self.subject, self.random.randrange(10**6)
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
            same = all(p.grad is g for p, g in zip(subject.parameters, gradients, strict=True))
            self.check(same or subject.base is not None, "the tensors in .grad")
        elif alike(subject.state(), ahead.state()):
            self.twin = ahead
        elif raised and len(ahead.sharp.last.losses) == 1 and subject.base is None:  # as after a plain backward
            self.twin.take_gradients(subject)
            self.check(alike(subject.state(), self.twin.state()), f"the state after a plain pass, {fault}")
        else:
            self.check(False, f"the state after {type(striking).__name__} {vars(striking).get('at')} {fault}")
        old = kept or [torch.zeros_like(one) for one in ahead.kept()]
        entries = zip(subject.kept(), old, ahead.kept(), strict=False)
        self.check(all(torch.equal(x, a) or torch.equal(x, b) for x, a, b in entries), "what the method keeps")
        self.twin.load(method=copy.deepcopy(subject.saved().get("method", {})))


@pytest.fixture(autouse=True)
def interruptible():
    """SIGINT raises KeyboardInterrupt, also in a worker of xdist."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_no_fault_loses_anything():
    """`python -m benchmarks.mutants` plants bugs in the core; this notices them."""
    random = Random(11)
    for _ in range(20):
        pair = Pair(draw(random), random)
        for _ in range(6):
            pair.inject()


@pytest.mark.parametrize("by_closure", [False, True])
def test_an_interrupt_at_any_line_leaves_no_half_step(by_closure):
    pair = Pair(Case(by_closure, PRESETS["friendly_sam"](0.1), "float64", Schedule(warmup=3), False, 0), Random(0))
    count = len(pair.places[AtLine])
    assert count > 100
    for place in range(0, count, max(1, count // 100)):
        pair.failure(AtLine(place))
