"""The methods that are compared, and for each task how far and in which norm each of them walks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import nn

from gasam import FreeLB, Perturbation, Schedule, SharpBackward, recommended, same_noise
from gasam.lab.errors import InputError
from gasam.lab.families import Family
from gasam.lab.radii import CHOSEN, KIN, PAPER, START_EPOCH, Radius
from gasam.lab.records import EpsilonSource
from gasam.lab.tasks.sizes import uses_recommended_walk
from gasam.passes import plainly

Moved = Literal["nothing", "weights", "embeddings"]
Backward = Callable[..., None]


@dataclass(frozen=True)
class Method:
    """`moved` says what a walk moves; `steps` None stands for the paper's K of the task."""

    name: str
    title: str
    about: str
    moved: Moved = "weights"
    scale: str = "one"
    granularity: str = "model"
    risk: str = "final"
    steps: int | None = 1


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A method with every number it needs for one run; `start_epoch` counts from 1.

    With a budget, epsilon is 0 and not used. The `walk_...` options are those of `gasam.Schedule`.
    """

    method: str
    moved: Moved
    epsilon: float
    norm: float
    scale: str
    granularity: str
    risk: str
    steps: int
    start_epoch: int = 1
    same_noise: bool = False
    budget: float | None = None
    cap: float | None = None
    walk_progress: float | None = None
    walk_start: float = 0
    walk_warmup: float = 0
    walk_every: int = 1
    walk_weight: float | None = None
    epsilon_source: EpsilonSource

    def backward(self, family: Family[Any], model: nn.Module, backward: Backward) -> SharpBackward | FreeLB:
        """What stands in for loss.backward(); with epsilon 0 that is a plain pass."""
        around = same_noise() if self.same_noise else plainly
        if self.moved == "embeddings":
            words = family.embeddings(model)
            dim = family.example_dim
            return FreeLB(
                words, self.epsilon, norm=self.norm, steps=self.steps, example_dim=dim, backward=backward, around=around
            )
        return SharpBackward(model, self.perturbation(), schedule=self.schedule(), backward=backward, around=around)

    def perturbation(self) -> Perturbation:
        names = {field.name for field in fields(Perturbation)}
        options = {name: value for name, value in self._options().items() if name in names}
        return Perturbation(**options | {"epsilon": self.epsilon if self.budget is None else None})

    def schedule(self) -> Schedule | None:
        made = Schedule(
            progress=self.walk_progress,
            start=self.walk_start,
            warmup=self.walk_warmup,
            every=self.walk_every,
            weight=self.walk_weight,
        )
        return None if made == Schedule() else made

    def passes(self, epoch: int) -> float:
        """Mean gradient evaluations a step in that epoch, counted from 1, at a strength above 0."""
        walks = (self.epsilon or self.budget) and epoch >= self.start_epoch
        return 1 + self.steps / self.walk_every if walks else 1

    def _options(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "epsilon_source"}

    def identity(self) -> dict[str, Any]:
        """Every number as JSON can hold it; where epsilon comes from does not change a run.

        Newer options are left out at their defaults, so that older records keep their identity.
        """
        options = {name: value for name, value in self._options().items() if name not in LATER or value != LATER[name]}
        return options | {"norm": "inf" if math.isinf(self.norm) else self.norm}


LATER = {
    "budget": None,
    "cap": None,
    "walk_progress": None,
    "walk_start": 0,
    "walk_warmup": 0,
    "walk_every": 1,
    "walk_weight": None,
}
"""Options that came after the first records, with their defaults."""


WALK = {option.name for option in fields(Choice)} - {"method", "moved", "epsilon_source"}
"""What may be overridden."""


def choose(
    method: str, task: str, epochs: int, overrides: Mapping[str, Any] | None = None, size: str = "paper"
) -> Choice:
    """The paper's settings of a method for a task, or the nearest there are, with what the user overrides.

    On the user's own data and in the newer sizes it is the recommended walk, unless an epsilon is given.
    """
    found = _find(method)
    given = _given(found, overrides or {})
    complete = "norm" in given and bool(given.keys() & {"epsilon", "budget"})
    radius, origin = _radius(found, task, complete)
    choice = Choice(
        method=method,
        moved=found.moved,
        epsilon=radius.epsilon,
        norm=radius.norm,
        scale=found.scale,
        granularity=found.granularity,
        risk=found.risk,
        steps=radius.steps if found.steps is None else found.steps,
        start_epoch=_start(task, epochs) if found.moved != "nothing" else 1,
        epsilon_source=origin,
    )
    if found.moved == "nothing":
        return choice
    if uses_recommended_walk(task, size) and found.moved == "weights" and "epsilon" not in given:
        choice = _recommended(choice)
    if given.keys() & {"epsilon", "norm", "budget"}:
        given["epsilon_source"] = EpsilonSource(kind="given")
    if "budget" in given:
        if "epsilon" in given:
            raise InputError("give either --epsilon or --budget: both are the size of the walk")
        given["epsilon"] = 0.0
    choice = replace(choice, **given)
    if choice.walk_weight == choice.walk_every:
        choice = replace(choice, walk_weight=None)  # the default: not another run
    try:
        choice.perturbation()
        choice.schedule()
    except ValueError as error:
        raise InputError(str(error)) from None
    if choice.start_epoch not in range(1, epochs + 1):
        raise InputError(f"start_epoch must be a whole number from 1 to {epochs}, got {choice.start_epoch!r}")
    return choice


def _recommended(choice: Choice) -> Choice:
    """The setting for everybody, for data of which nothing is known; the norm is that of the method's preset."""
    perturbation, schedule = recommended()
    return replace(
        choice,
        epsilon=0.0,
        budget=perturbation.budget,
        cap=perturbation.cap,
        norm=recommended_norm(METHODS[choice.method]),
        steps=perturbation.steps,
        walk_progress=schedule.progress,
        start_epoch=1,
        epsilon_source=EpsilonSource(kind="recommended"),
    )


def recommended_norm(method: Method) -> float:
    """That of the method's preset."""
    return math.inf if method.risk == "mean" or method.scale == "gradient_strength" else 2.0


def _given(method: Method, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What is not None, once the method has it; numbers as floats, since 2 and 2.0 must not make two runs of one."""
    given = {name: value for name, value in overrides.items() if value is not None}
    if unknown := given.keys() - WALK:
        raise InputError(f"a walk has no {min(unknown)!r}: it has {', '.join(sorted(WALK))}")
    if method.moved == "nothing" and (left := given.keys() - {"same_noise"}):
        raise InputError(f"the baseline does not walk: leave out {_option(left)}, or name a method")
    if method.moved == "embeddings" and (left := given.keys() & {"scale", "granularity", "risk", *LATER}):
        raise InputError(f"{method.name} moves embeddings, not weights: leave out {_option(left)}")
    if not isinstance(given.get("same_noise", False), bool):
        raise InputError(f"same_noise must be true or false, got {given['same_noise']!r}")
    sizes = ("epsilon", "norm", "budget", "cap", "walk_progress", "walk_weight")
    numbers = {name: float(given[name]) for name in sizes if type(given.get(name)) is int}
    return given | numbers


def _option(names: Collection[str]) -> str:
    """As the command line names it."""
    name = min(names)
    return f"--{name.removeprefix('walk_') if name in ('walk_every', 'walk_weight') else name.replace('_', '-')}"


def _find(method: str) -> Method:
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    return METHODS[method]


def _radius(method: Method, task: str, complete: bool) -> tuple[Radius, EpsilonSource]:
    """The first that there is: the paper's, one chosen on validation, one of a task of the same kind."""
    if method.moved == "nothing":
        return Radius(math.inf, 0.0), EpsilonSource(kind="none")
    for place in (task, *KIN.get(task, ())):
        borrowed = None if place == task else place
        if place in PAPER.get(method.name, {}):
            radius = PAPER[method.name][place]
            return radius, EpsilonSource(kind="paper", borrowed_from=borrowed, remark=radius.remark)
        if place in CHOSEN.get(method.name, {}):
            return CHOSEN[method.name][place], EpsilonSource(kind="chosen", borrowed_from=borrowed)
    if complete:
        return Radius(math.inf, 0.0), EpsilonSource(kind="given")
    raise InputError(f"no epsilon is known for {method.name} on {task}: give an epsilon and a norm")


def _start(task: str, epochs: int) -> int:
    """The paper's start epoch, as a share of the epochs."""
    start, of = START_EPOCH.get(task, (0, 1))
    return max(1, round(start * epochs / of))


ABLATION = {"granularity": "layer", "risk": "mean", "steps": None}

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("baseline", "Baseline", "plain training", "nothing"),
        Method("sam", "SAM", "the loss at the worst point of a plain ball"),
        Method("asam", "ASAM", "SAM with T = |w| for each weight", scale="weight", granularity="element"),
        Method(
            "asam-filter", "ASAM (filter)", "SAM with T = |w| for each filter", scale="weight", granularity="filter"
        ),
        Method(
            "layer-sam",
            "Layer-SAM",
            "SAM with T = |w| / |g| for each tensor",
            scale="weight_over_gradient",
            granularity="layer",
        ),
        Method(
            "multi-step-defense",
            "Multi-step Defense",
            "the mean loss over a walk in a plain ball; Table 2's T = 1",
            risk="mean",
            steps=None,
        ),
        Method(
            "ga-sam",
            "GA-SAM",
            "the mean loss over a walk with T = sqrt(n_i) / (|g_i| sqrt(n))",
            scale="gradient_strength",
            **ABLATION,  # type: ignore[arg-type]
        ),
        Method(
            "freelb",
            "FreeLB",
            "the mean loss over a walk of noise on word embeddings",
            "embeddings",
            risk="mean",
            steps=None,
        ),
        Method(
            "single-step",
            "Single-step",
            "GA-SAM's scale with SAM's risk: the last point alone",
            scale="gradient_strength",
            granularity="layer",
        ),
        *(
            Method(
                f"{granularity}-wise",
                f"{granularity.capitalize()}-wise",
                f"GA-SAM with one T for each {granularity}",
                scale="gradient_strength",
                **ABLATION | {"granularity": granularity},  # type: ignore[arg-type]
            )
            for granularity in ("element", "model")
        ),
        *(
            Method(f"scale-{scale.replace('_', '-')}", f"T = {of}", f"GA-SAM with T = {of}", scale=scale, **ABLATION)  # type: ignore[arg-type]
            for scale, of in (
                ("weight_over_gradient", "|w| / |g|"),
                ("inverse_gradient", "1 / |g|"),
                ("weight_rms", "|w| / sqrt(n)"),
                ("weight", "|w|"),
            )
        ),
    )
}
TABLE1 = ("baseline", "sam", "asam", "layer-sam", "multi-step-defense", "ga-sam")
