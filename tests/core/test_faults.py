"""Faults at drawn places of drawn steps: nothing is lost, and bugs that are planted on purpose are noticed.

A subject has a twin that gets the same calls without faults. After a fault its weights, `.grad`, schedule and base
optimizer must be, bit by bit, as before the call or as after a complete one; and its next step must equal the twin's.
"""

import copy
import math
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import gasam
from gasam import Perturbation, Schedule, SharpBackward, SharpnessAware, friendly_sam, gsam, look_sam, sam_on, wsam
from gasam.family import Kept
from gasam.fold import Fold
from gasam.passes import uninterrupted
from gasam.weights import Weights

SOURCE = str(Path(gasam.__file__).parent)
FAMILY = {"gsam": gsam, "wsam": wsam, "friendly_sam": friendly_sam, "look_sam": look_sam, "sam_on": sam_on}
SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
WORDS = 7


class Case(NamedTuple):
    entry: str
    method: str
    perturbation: Perturbation
    weights: str
    schedule: Any
    options: dict
    seed: int


def draw(random):
    """One of the combinations that gasam allows."""
    method, weights = random.choice(["walk", "walk", "walk", *FAMILY]), random.choice(list(MODELS))
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
        perturbation = FAMILY[method](norm=norm, **size)
        if method in ("gsam", "wsam"):
            perturbation = replace(perturbation, steps=random.choice([1, 2]))
    schedules = [None, Schedule(every=2), Schedule(start=1, warmup=3), Schedule(progress=0.2)]
    schedule = Schedule(every=2, weight=1) if method == "look_sam" else random.choice(schedules)
    entry = random.choice(["SharpBackward", "SharpnessAware"])
    options = {"on_overflow": random.choice(["keep", "clean"]), "in_place": random.random() < 0.2}
    return Case(entry, method, perturbation, weights, schedule, options, random.randrange(10**6))


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
    """A model with its walk, whose next call may have a fault."""

    def __init__(self, case):
        torch.manual_seed(case.seed)
        self.model = MODELS[case.weights]()
        self.parameters = list(self.model.parameters())
        self.base, self.fault, self.passes = None, None, 0
        options = {"schedule": case.schedule, "around": self.around, **case.options}
        if case.entry == "SharpBackward":
            self.sharp = SharpBackward(self.model, case.perturbation, **options)
        else:
            self.base = SkippingSGD(self.parameters, lr=0.05, momentum=0.0 if case.weights == "sparse" else 0.5)
            self.sharp = SharpnessAware(self.base, case.perturbation, model=self.model, **options)
        if isinstance(case.schedule, Schedule) and case.schedule.progress:
            self.sharp.clock.load_state_dict(self.sharp.clock.state_dict() | {"initial": 3.0, "smoothed": 1.5})

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

        self.sharp(loss) if self.base is None else self.sharp.step(closure)

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

    def state(self):
        """What a failed call may not change; gradients only where they are the user's."""
        found = [bits(p) for p in self.parameters]
        if self.base is None:
            found += [bits(p.grad) for p in self.parameters]
        else:
            found += [bits(self.base.state[p].get("momentum_buffer")) for p in self.parameters]
        return [*found, repr(self.sharp.clock.state_dict())]

    @property
    def walked(self):
        return len(self.sharp.last.losses) > 1

    def copy(self):
        made = copy.deepcopy(self)
        for one, other in zip(self.parameters, made.parameters, strict=True):
            other.grad = None if one.grad is None else one.grad.clone()
        return made

    @property
    def walk(self):
        return self.sharp if self.base is None else self.sharp.sharp

    def take_kept(self, other):
        kept = copy.deepcopy(other.walk.state_dict()).get("method", {})
        self.walk.load_state_dict(self.walk.state_dict() | {"method": kept})

    def kept(self):
        """What the method keeps; zeros are the same as nothing yet."""
        known = self.walk.state_dict().get("method", {})
        shapes = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in self.parameters]
        return [
            (zero if one is None else one).detach().clone()
            for name in sorted(known) for one, zero in zip(known[name], shapes, strict=True)
        ]  # fmt: skip


def bits(tensor):
    """A copy that can be compared bit by bit."""
    if tensor is None:
        return None
    values = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach().clone()
    return values.contiguous().view(SAME_SIZE[values.itemsize])


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b or a == b
        for a, b in zip(one, other, strict=True)
    )


class AtOperation(TorchDispatchMode):
    """Counts torch's operations, and strikes at number `at`. Those of the restore allocate nothing and do not fail."""

    def __init__(self, at=None, strike=None):
        super().__init__()
        self.at, self.strike, self.places = at, strike, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not str(func).startswith("profiler.") and not _restoring(sys._getframe(1)):
            self.places.append(str(func))
            if len(self.places) - 1 == self.at:
                self.strike()
        return func(*args, **(kwargs or {}))


def _restoring(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE) and frame.f_code.co_name in ("home", "restore", "undo"):
            return True
        frame = frame.f_back
    return False


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

    def __init__(self, case, random):
        self.case, self.random, self.lost = case, random, []
        self.subject, self.twin = Subject(case), Subject(case)
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
        self.check(equal(self.subject.state(), self.twin.state()), "the next step")
        self.check(equal(self.subject.kept(), self.twin.kept()), "what the method keeps after the next step")

    def inject(self):
        """One fault and what follows from it."""
        self.clear()
        seed, k = self.random.randrange(10**6), self.random.randrange(self.case.perturbation.steps + 1)
        if self.random.random() < 0.25:
            self.bad_number(seed, UserFault(k, self.random.choice(["loss", "gradient"]), value=math.nan))
        else:
            self.failure(seed, k)
        self.next_step()

    def failure(self, seed, k):
        """Strike at an operation, at a line, or in the user's code."""
        subject, kind = self.subject, self.random.choice([AtOperation, AtLine, None])
        strike = self.random.choice([interrupt, fail]) if kind is AtOperation else interrupt
        place = self.place(kind) if kind else 0
        error = self.random.choice([ValueError("injected"), KeyboardInterrupt(), MemoryError("injected")])
        fault = None if kind else UserFault(k, self.random.choice(["loss", "hook", "enter", "leave"]), error)
        before, kept, gradients = subject.state(), subject.kept(), [p.grad for p in subject.parameters]
        ahead = self.twin.copy()
        ahead.call(seed)
        raised = False
        try:
            with kind(place, strike) if kind else contextmanager(lambda: iter([None]))():
                subject.call(seed, fault)
        except (Exception, KeyboardInterrupt):
            raised = True
        if raised and equal(subject.state(), before):
            if self.case.entry == "SharpBackward":
                same = all(p.grad is g for p, g in zip(subject.parameters, gradients, strict=True))
                self.check(same, "the tensors in .grad")
        elif equal(subject.state(), ahead.state()):
            self.twin = ahead
        elif raised and not ahead.walked and self.case.entry == "SharpBackward":
            for one, other in zip(subject.parameters, self.twin.parameters, strict=True):  # as after a plain backward
                other.grad = None if one.grad is None else one.grad.clone()
            self.check(equal(subject.state(), self.twin.state()), f"the state after a plain pass, {fault}")
        else:
            self.check(False, f"the state after {kind} {place} {strike} {fault}")
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
        subject, before = self.subject, self.subject.state()
        if subject.base is not None:
            subject.base.skip = True
        subject.call(seed, fault)
        n = len(subject.parameters)
        self.check(equal(subject.state()[:n], before[:n]), f"the weights after {fault}")
        self.check(all(bool(one.isfinite().all()) for one in subject.kept()), f"what the method keeps after {fault}")
        self.check("nan" not in repr(subject.sharp.clock.state_dict()), f"the schedule after {fault}")
        if subject.base is not None:
            subject.base.skip = False
        for parameter in (*subject.parameters, *self.twin.parameters):
            parameter.grad = None
        self.twin = subject.copy()


def campaign(seed, faults):
    """What was lost by this many faults; the first loss ends it."""
    random = Random(seed)
    for _ in range(faults // 6):
        pair = Pair(draw(random), random)
        for _ in range(6):
            pair.inject()
            if pair.lost:
                return pair.lost
    return []


@pytest.mark.filterwarnings("ignore")
def test_no_fault_loses_anything():
    assert campaign(seed=11, faults=120) == []


def home_then(change):
    """`Weights.home`, and then `change` of the weights that moved and of where they were."""
    original = Weights.home

    @torch.no_grad()
    def home(self):
        moved = self._moved
        away = [p.detach().clone() for p in self.tensors]
        original(self)
        if moved:
            change(self.tensors, away)

    return patch.object(Weights, "home", home)


def one_stays(tensors, away):
    tensors[0].copy_(away[0])


def by_subtraction(tensors, away):
    """w + a - a is not w in floating point."""
    for tensor, there in zip(tensors, away, strict=True):
        tensor.copy_(there - (there - tensor))


@contextmanager
def only_after_exceptions(self):
    """KeyboardInterrupt is not an Exception."""
    self.walking, self._moved = True, False
    try:
        yield
    except Exception:
        self.home()
        raise
    finally:
        self.walking = False
    self.home()


def old_copies(self, *args, original=Weights.taking_part):
    """Weights that are written in place come back to where they were in an earlier step."""
    copies = [copy.clone() for copy in getattr(self, "_copies", [])]
    found = original(self, *args)
    for own, old in zip(self._copies, copies, strict=False):
        own.copy_(old)
    return found


def not_copied_back(self):
    for parameter, own in zip(self._parameters, self._callers, strict=True):
        parameter.grad = own


def after_failure(change):
    def step(self, run, original=SharpBackward.step, **options):
        try:
            original(self, run, **options)
        except BaseException:
            change(self.clock)
            raise

    return patch.object(SharpBackward, "step", step)


def next_step(clock):
    clock.state = replace(clock.state, step=clock.state.step + 1)


def counts(clock):
    clock.state = clock.after(torch.ones(()))


def holds_nothing(self):
    self._before = self._pending = None
    return self


def keeps_nan(self, name, value, original=Kept.put):
    self._is_finite = lambda: True
    return original(self, name, value)


BUGS = {
    "the restore skips one tensor": lambda: home_then(one_stays),
    "the restore subtracts the offset": lambda: home_then(by_subtraction),
    "the restore ignores interrupts": lambda: patch.object(Weights, "walk", only_after_exceptions),
    "interrupts are not held back": lambda: patch.object(uninterrupted, "__enter__", holds_nothing),
    "the weights of an earlier step come back": lambda: patch.object(Weights, "taking_part", old_copies),
    "a half-finished pass leaves its gradients": lambda: patch.object(Fold, "undo", lambda self: None),
    "the caller's gradients are not copied back": lambda: patch.object(Fold, "undo", not_copied_back),
    "a failed step advances the schedule": lambda: after_failure(next_step),
    "the loss of a failed step is counted": lambda: after_failure(counts),
    "the method keeps NaN": lambda: patch.object(Kept, "put", keeps_nan),
}


RARE = ("interrupts are not held back", "the method keeps NaN")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bug", [pytest.param(bug, marks=pytest.mark.slow if bug in RARE else []) for bug in BUGS])
def test_a_planted_bug_is_noticed(bug):
    with BUGS[bug]():
        assert campaign(seed=3, faults=1_500) != []
