"""The walk of one run: a method's preset with the numbers from the task, the size and the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from gasam import FreeLB, Perturbation, Schedule, SharpBackward, recommended, same_noise
from gasam.lab.errors import InputError
from gasam.lab.families.family import Family
from gasam.lab.methods import Method, Moved, find_method
from gasam.lab.records import EpsilonSource
from gasam.lab.tasks import Radius, Task, find
from gasam.passes import plainly
from gasam.perturbation import check_schedule

Backward = Callable[..., None]

LATER = {
    "budget": None,
    "cap": None,
    "walk_progress": None,
    "walk_start": 0,
    "walk_warmup": 0,
    "walk_every": 1,
    "walk_weight": None,
}
"""Options that were added after the first records, with their defaults."""
SHORT_NAMES = {"every": "walk_every", "weight": "walk_weight"}
"""Options that have a shorter name on the command line."""
FLOATS = ("epsilon", "norm", "budget", "cap", "walk_progress", "walk_weight")
"""Options that are converted to float, so that 2 and 2.0 give the same run."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A method with every number that it needs for one run.

    `start_epoch` is counted from 1. With a budget, epsilon is 0 and not used. The options `walk_...` are those of
    `gasam.Schedule`, and `options` are the method's own, such as GSAM's alpha, as pairs of name and value. The risk
    is "own" if the method has a function for it.
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
    options: tuple[tuple[str, Any], ...] = ()
    epsilon_source: EpsilonSource

    def backward(self, family: Family[Any], model: nn.Module, backward: Backward) -> SharpBackward | FreeLB:
        """The replacement for loss.backward(); with epsilon 0 it is a plain pass."""
        around = same_noise() if self.same_noise else plainly
        if self.moved == "embeddings":
            return FreeLB(
                family.embeddings(model),
                self.epsilon,
                norm=self.norm,
                steps=self.steps,
                example_dim=family.example_dim,
                backward=backward,
                around=around,
            )
        return SharpBackward(model, self.perturbation(), schedule=self.schedule(), backward=backward, around=around)

    def perturbation(self) -> Perturbation:
        names = {field.name for field in fields(Perturbation)} - {"method"}  # here the name of a method
        options = {name: value for name, value in self._options().items() if name in names}
        options["epsilon"] = self.epsilon if self.budget is None else None
        make = find_method(self.method).make
        if make is None:
            return Perturbation(**options)
        if self.risk == OWN_RISK:
            del options["risk"]
        return replace(make(0, **dict(self.options)), **options)

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
        """Mean number of gradient evaluations per step in this epoch, counted from 1, at a strength above 0."""
        walks = (self.epsilon or self.budget) and epoch >= self.start_epoch
        return 1 + self.steps / self.walk_every if walks else 1

    def identity(self) -> dict[str, Any]:
        """All options as JSON values, without the source of epsilon, which does not change a run.

        Newer options are left out at their defaults, so that older records keep their identity.
        """
        options = {name: value for name, value in self._options().items() if name not in LATER or value != LATER[name]}
        return options | {"norm": "inf" if math.isinf(self.norm) else self.norm} | dict(self.options)

    def _options(self) -> dict[str, Any]:
        names = [field.name for field in fields(self) if field.name not in ("options", "epsilon_source")]
        return {name: getattr(self, name) for name in names}


WALK = {option.name for option in fields(Choice)} - {"method", "moved", "options", "epsilon_source"}
"""The options that users may override, besides the method's own."""
OWN_RISK = "own"


def choose(
    method: str, task: Task | str, epochs: int, overrides: Mapping[str, Any] | None = None, size: str = "paper"
) -> Choice:
    """Choose the walk of a method on a task: the paper's settings or the nearest ones, with the user's overrides.

    Except in size `paper` it is the recommended walk, unless an epsilon is given.

    Args:
        method: The name of the method.
        task: The task, or its name.
        epochs: The number of epochs of the run; it scales the paper's start epoch.
        overrides: Options of the walk by name, see `WALK`, and the method's own; None values are ignored.
        size: The name of the size.
    """
    found = find_method(method)
    task = find(task) if isinstance(task, str) else task
    given = _checked(found, overrides or {})
    if found.moved == "nothing":
        return _choice(found, Radius(math.inf, 0.0), EpsilonSource(kind="none"))
    known = _known_radius(found, task)
    if found.moved == "weights" and "epsilon" not in given and (known is None or task.recommends_walk(size)):
        choice = _recommended(found)
    else:
        radius, source = known or (_without_radius(found, task, given), EpsilonSource(kind="given"))
        choice = replace(_choice(found, radius, source), start_epoch=_start_epoch(task, epochs))
    return _overridden(choice, given, epochs)


def _choice(method: Method, radius: Radius, source: EpsilonSource) -> Choice:
    preset, usual = method.preset, (method.preset.method and method.preset.method.usual_schedule) or Schedule()
    return Choice(
        method=method.name,
        moved=method.moved,
        epsilon=radius.epsilon,
        norm=radius.norm,
        scale=str(preset.scale),
        granularity=preset.granularity,
        risk=OWN_RISK if callable(preset.risk) else preset.risk,
        steps=radius.steps if method.has_many_steps else 1,
        walk_every=usual.every,
        walk_weight=None if usual.weight is None else float(usual.weight),
        options=tuple(sorted(method.options.items())),
        epsilon_source=source,
    )


def _known_radius(method: Method, task: Task) -> tuple[Radius, EpsilonSource] | None:
    """The paper's radius, else one chosen on validation, else that of a similar task; None if there is none.

    A method of the family has the radius of SAM, as in its paper, unless it moves only a part of the weights.
    """
    if method.make is not None:
        known = None if method.preset.perturb is not None else _known_radius(find_method("sam"), task)
        return known and (known[0], known[1].model_copy(update={"remark": "the radius of SAM"}))
    for place in (task, *map(find, task.borrows_from)):
        borrowed = None if place is task else place.name
        if method.name in place.paper_radii:
            radius = place.paper_radii[method.name]
            return radius, EpsilonSource(kind="paper", borrowed_from=borrowed, remark=radius.remark)
        if method.name in place.chosen_radii:
            return place.chosen_radii[method.name], EpsilonSource(kind="chosen", borrowed_from=borrowed)
    return None


def _without_radius(method: Method, task: Task, given: Mapping[str, Any]) -> Radius:
    if method.moved == "embeddings" and not {"epsilon", "norm"} <= given.keys():
        raise InputError(f"no epsilon is known for {method.name} on {task.name}: give --epsilon and --norm")
    return Radius(method.preset.norm, 0.0)


def _recommended(method: Method) -> Choice:
    """The recommended walk, for data of which nothing is known, in the norm of the method's preset."""
    perturbation, schedule = recommended()
    plain = _choice(method, Radius(method.preset.norm, 0.0), EpsilonSource(kind="recommended"))
    return replace(plain, budget=perturbation.budget, cap=perturbation.cap, walk_progress=schedule.progress)


def _start_epoch(task: Task, epochs: int) -> int:
    """The paper's start epoch, scaled to this number of epochs."""
    start, of = task.start_epoch
    return max(1, round(start * epochs / of))


def _checked(method: Method, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides that are not None; raise if the method does not have them."""
    given = {name: value for name, value in overrides.items() if value is not None}
    known = WALK | method.options.keys()
    if unknown := given.keys() - known:
        raise InputError(f"a walk has no option {min(unknown)!r}: it has {', '.join(sorted(known))}")
    if callable(method.preset.risk) and given.get("risk", OWN_RISK) != OWN_RISK:
        raise InputError(f"{method.name} has its own risk: leave out --risk")
    if method.moved == "nothing" and (left := given.keys() - {"same_noise"}):
        raise InputError(f"the baseline does not walk: leave out {_as_option(left)}, or name a method")
    if method.moved == "embeddings" and (left := given.keys() & {"scale", "granularity", "risk", *LATER}):
        raise InputError(f"{method.name} moves embeddings, not weights: leave out {_as_option(left)}")
    if "budget" in given and "epsilon" in given:
        raise InputError("give either --epsilon or --budget: both are the size of the walk")
    if not isinstance(given.get("same_noise", False), bool):
        raise InputError(f"same_noise must be true or false, got {given['same_noise']!r}")
    return given


def _overridden(choice: Choice, given: Mapping[str, Any], epochs: int) -> Choice:
    own = dict(choice.options)
    values: dict[str, Any] = {
        name: float(value) if name in (*FLOATS, *own) and type(value) is int else value for name, value in given.items()
    }
    values["options"] = tuple((name, values.pop(name, value)) for name, value in choice.options)
    if values.keys() & {"epsilon", "norm", "budget"}:
        values["epsilon_source"] = EpsilonSource(kind="given")
    if "budget" in values:
        values["epsilon"] = 0.0
    choice = replace(choice, **values)
    if choice.walk_weight == choice.walk_every:
        choice = replace(choice, walk_weight=None)  # the default, so that it is the same run
    try:
        check_schedule(choice.perturbation(), choice.schedule())
    except ValueError as error:
        raise InputError(str(error)) from None
    if choice.start_epoch not in range(1, epochs + 1):
        raise InputError(f"start_epoch must be a whole number from 1 to {epochs}, got {choice.start_epoch!r}")
    return choice


def _as_option(names: Collection[str]) -> str:
    """The first of these options as the command line spells it."""
    name = min(names)
    short = {long: short for short, long in SHORT_NAMES.items()}.get(name, name)
    return f"--{short.replace('_', '-')}"
