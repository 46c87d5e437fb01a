"""The walks that get faults: drawn combinations of entry point, method, schedule and kind of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import _disable_current_modes

from gasam import (
    SCALES,
    Perturbation,
    Schedule,
    SharpBackward,
    SharpnessAware,
    friendly_sam,
    gsam,
    look_sam,
    sam_on,
    wsam,
)
from gasam.perturbation import GRANULARITIES

FAMILY = {"gsam": gsam, "wsam": wsam, "friendly_sam": friendly_sam, "look_sam": look_sam, "sam_on": sam_on}
WORDS, CLASSES, ROWS = 7, 4, 6
TOTAL_STEPS = 40
SHARES = Schedule(start=0.05, warmup=0.5)  # shares of training


@dataclass(frozen=True)
class Case:
    """One combination. `weights` is one of the keys of MODELS."""

    entry: str
    method: str
    perturbation: Perturbation
    weights: str
    schedule: Any
    options: dict[str, Any]
    cut: bool  # into many portions
    seed: int

    def __str__(self) -> str:
        return (
            f"{self.entry}, {self.method}, {self.weights} weights, {self.schedule}, {self.options}, {self.perturbation}"
        )


class Tied(nn.Module):
    """Embedding and output share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 5)
        self.inner = nn.Linear(5, 5)
        self.out = nn.Linear(5, WORDS, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(self.embedding(words).mean(1))))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 4, sparse=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embedding(words).mean(1))


def dense() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, 5), nn.Flatten(), nn.Linear(15, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def normalised() -> nn.Module:
    inner = nn.Sequential(nn.Flatten(), nn.Linear(15, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.LayerNorm(6))
    return nn.Sequential(nn.Embedding(WORDS, 5), inner, nn.Linear(6, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "float32": dense,
    "float64": lambda: dense().double(),
    "bfloat16": lambda: dense().bfloat16(),
    "float16": lambda: dense().half(),
    "sparse": Sparse,
    "tied": Tied,
    "normalised": normalised,
}


def draw(random: Random) -> Case:
    """Draw one of the combinations that gasam allows."""
    entry = random.choice(["SharpBackward", "SharpBackward", "SharpnessAware"])
    weights = random.choice(list(MODELS))
    method = random.choice(["walk", "walk", "walk", *FAMILY])
    if method in ("friendly_sam", "look_sam", "sam_on") and weights == "sparse":
        weights = "tied"
    if method == "sam_on":
        weights = "normalised"
    size: dict[str, float] = random.choice(
        [{"epsilon": 0.05}, {"budget": 0.1, "cap": 0.05}, {"epsilon": 0.05, "cap": 0.01}]
    )
    norm = random.choice([1.5, 2.0, 2.0, math.inf, math.inf])
    if method == "walk":
        scale = random.choice(list(SCALES))
        perturbation = Perturbation(
            **size, norm=norm, scale=Adjustable(scale), granularity=random.choice(GRANULARITIES),
            steps=random.choice([1, 1, 2, 3]), risk=random.choice(["mean", "final"]),
        )  # fmt: skip
    else:
        perturbation = FAMILY[method](norm=norm, **size)
        if method in ("gsam", "wsam"):
            perturbation = replace(perturbation, steps=random.choice([1, 2]))
    schedule: Any = random.choice(
        [None, None, Schedule(every=2), Schedule(start=1, warmup=3), SHARES, Schedule(progress=0.2), _half]
    )
    if method == "look_sam":
        schedule = random.choice([None, Schedule(every=2, weight=1)])
    options: dict[str, Any] = {
        "on_overflow": random.choice(["keep", "keep", "clean"]),
        "detailed": random.random() < 0.2,
        "total_steps": TOTAL_STEPS if schedule is SHARES else None,
    }
    return Case(entry, method, perturbation, weights, schedule, options, random.random() < 0.4, random.randrange(10**6))


def _half(step: int) -> float:
    return 0.5


class Adjustable:
    """A scale of the table, times a factor that a fault may set."""

    def __init__(self, name: str) -> None:
        self.name, self.factor = name, 1.0

    def __call__(self, group: Any) -> Tensor:
        return SCALES[self.name](group) * self.factor

    def __repr__(self) -> str:
        return self.name


@dataclass
class PassFault:
    """A fault of the user's own code in pass k, or of its numbers."""

    k: int
    where: str  # loss, gradient, scale, hook, enter, leave
    value: float = 1.0
    failure: type[BaseException] | None = None


class WatchedSGD(torch.optim.SGD):
    """Does nothing if `skip` is set, as a loop that drops the steps whose gradient is not finite."""

    skip = False

    def step(self, closure: Any = None) -> Any:
        with _disable_current_modes():  # no faults: what they would do to the weights is not gasam's
            return None if self.skip else super().step(closure)


class Subject:
    """A model with its walk, whose next call may have a fault."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(case.seed)
        self.case = case
        self.model = self.wrapped(MODELS[case.weights]())
        self.parameters = list(self.model.parameters())
        self.fault: PassFault | None = None
        self.passes = 0
        self.failed = False  # a fault of the user's code was raised in this call
        self.words = torch.zeros(ROWS, 3, dtype=torch.int64)
        self.classes = torch.zeros(ROWS, dtype=torch.int64)
        chosen = Random(case.seed).choice(self.parameters)
        chosen.register_hook(self._hook)
        self.base: Any = None
        self.sharp: Any = self.start()
        if isinstance(case.schedule, Schedule) and case.schedule.progress is not None:
            state = self.sharp.strength.state_dict()
            self.sharp.strength.load_state_dict(state | {"initial": 3.0, "smoothed": 1.5})

    def start(self) -> Any:
        """Make the entry point, with its base optimizer if it has one."""
        case = self.case
        options = dict(case.options, schedule=case.schedule, around=self.around)
        perturbation = copy.deepcopy(case.perturbation)
        self.scale = perturbation.scale
        if case.entry == "SharpBackward":
            return SharpBackward(self.model, perturbation, **options)
        self.base = WatchedSGD(self.model.parameters(), lr=0.05, momentum=0.0 if case.weights == "sparse" else 0.5)
        return SharpnessAware(self.base, perturbation, model=self.model, **options)

    def wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def recover(self) -> None:
        """Do what a wrapper of the model needs after a failure."""

    def draw_batch(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(WORDS, (ROWS, 3), generator=generator)
        self.classes = torch.randint(CLASSES, (ROWS,), generator=generator)

    def call(self, fault: PassFault | None = None) -> None:
        self.fault, self.passes, self.failed = fault, 0, False
        if fault is not None and fault.where == "scale":
            self.scale.factor = fault.value
        try:
            self.sharp.step(self.closure) if self.base is not None else self.sharp(self.loss)
        finally:
            self.fault = None
            if isinstance(self.scale, Adjustable):
                self.scale.factor = 1.0

    def loss(self) -> Tensor:
        k, self.passes = self.passes, self.passes + 1
        loss = cross_entropy(self.model(self.words).float(), self.classes)
        if self._now("loss", k):
            self._fail()
            loss = loss * self.fault.value  # type: ignore[union-attr]
        return loss

    def closure(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        return loss

    @contextmanager
    def around(self, k: int, last: bool) -> Iterator[None]:
        if self._now("enter", k):
            self._fail()
        yield
        if self._now("leave", k):
            self._fail()

    def _hook(self, gradient: Tensor) -> Tensor | None:
        k = self.passes - 1
        if self._now("hook", k):
            self._fail()
        return gradient * self.fault.value if self._now("gradient", k) else None  # type: ignore[union-attr]

    def _now(self, where: str, k: int) -> bool:
        return self.fault is not None and self.fault.where == where and self.fault.k == k

    def _fail(self) -> None:
        failure = self.fault.failure if self.fault else None
        if failure is not None:
            self.failed = True
            raise failure("injected")
