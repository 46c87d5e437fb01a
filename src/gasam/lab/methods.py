"""The methods that can be compared, and the walk of each in a run: the appendix's numbers, or the recommended walk."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from inspect import signature
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from torch import nn

import gasam.family
from gasam import Perturbation, Schedule, SharpBackward
from gasam.family.random_offsets import RandomDirection
from gasam.lab.errors import InputError, checked
from gasam.lab.families.family import Family
from gasam.passes import plainly
from gasam.perturbation import check_schedule

INF = math.inf
OWN_RISK = "own"
"""The risk of a method that has a function for it."""
Source = Literal["none", "paper", "recommended", "tuned", "given"]
Walks = Literal["paper", "recommended"]


@dataclass(frozen=True)
class Method:
    """A method that can be compared."""

    name: str  # on the command line and in records
    title: str  # in tables
    about: str  # what it minimises, in a few words
    preset: Perturbation  # the walk without its size; without `make` only a named scale, granularity, risk and norm
    moved: Literal["nothing", "weights", "embeddings"] = "weights"  # by a walk
    make: Callable[..., Perturbation] | None = None  # makes the preset of a method of `gasam.family`, with its options

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options with their defaults, such as GSAM's alpha."""
        known = {} if self.make is None else signature(self.make).parameters
        return {name: each.default for name, each in known.items() if each.kind is each.KEYWORD_ONLY}

    @property
    def risk(self) -> str:
        return OWN_RISK if self.preset.own_fold is not None else self.preset.risk


TABLE1 = ("baseline", "sam", "asam", "layer-sam", "multi-step-defense", "ga-sam")
_MEAN = "the mean loss over a walk"
_ALL = (
    Method("baseline", "Baseline", "plain training", gasam.sam(0), moved="nothing"),
    Method("sam", "SAM", "the loss at the worst point of a plain ball", gasam.sam(0)),
    Method("asam", "ASAM", "SAM with T = |w| for each weight", gasam.asam(0)),
    Method("asam-filter", "ASAM (filter)", "SAM with T = |w| for each filter", gasam.asam(0, granularity="filter")),
    Method("layer-sam", "Layer-SAM", "SAM with T = |w| / |g| for each tensor", gasam.layer_sam(0)),
    Method("multi-step-defense", "Multi-step Defense", f"{_MEAN} in a plain ball", gasam.multi_step_defense(0)),
    Method("ga-sam", "GA-SAM", f"{_MEAN} with T = sqrt(n_i) / (|g_i| sqrt(n))", gasam.ga_sam(0)),
    Method("freelb", "FreeLB", f"{_MEAN} of noise on word embeddings", gasam.multi_step_defense(0), moved="embeddings"),
)
_ABLATED: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "single-step": ("Single-step", "SAM's risk: only the last point", {"risk": "final"}),
    "element-wise": ("Element-wise", "one T for each element", {"granularity": "element"}),
    "model-wise": ("Model-wise", "one T for each model", {"granularity": "model"}),
    "scale-weight-over-gradient": ("T = |w| / |g|", "T = |w| / |g|", {"scale": "weight_over_gradient"}),
    "scale-inverse-gradient": ("T = 1 / |g|", "T = 1 / |g|", {"scale": "inverse_gradient"}),
    "scale-weight-rms": ("T = |w| / sqrt(n)", "T = |w| / sqrt(n)", {"scale": "weight_rms"}),
    "scale-weight": ("T = |w|", "T = |w|", {"scale": "weight"}),
}
"""Methods of the paper's Table 2 that change one part of GA-SAM: title, part and option."""
_CHANGED = (
    Method(name, title, f"GA-SAM with {part}", gasam.ga_sam(0, **option))
    for name, (title, part, option) in _ABLATED.items()
)


def _found() -> Iterator[Method]:
    """The methods of the folder `gasam/family`: the preset that a file is named after, and the file's first line."""
    for file in pkgutil.iter_modules(gasam.family.__path__):
        module = import_module(f"gasam.family.{file.name}")
        title, _, about = str(module.__doc__).partition("\n")[0].partition(": ")
        preset = getattr(module, file.name, None)
        if preset is not None:
            yield Method(file.name.replace("_", "-"), title, about.rstrip("."), preset(0), make=preset)


_FOUND = tuple(_found())
METHODS = {method.name: method for method in (*_ALL, *_CHANGED, *_FOUND)}
FAMILY = (*TABLE1, *(method.name for method in _FOUND))
"""The methods of `--methods family`."""

_COLUMNS = ("imdb", "ptb", "en-vi", "de-en")
_ROWS: Mapping[str, Sequence[tuple[float, float, int] | None]] = {
    "sam": [(INF, 2e-5, 1), (2, 5e-3, 1), (INF, 1.2e-3, 1), (INF, 5e-4, 1)],
    "asam": [(INF, 5e-3, 1), (INF, 5e-4, 1), (INF, 5e-4, 1), (INF, 2e-4, 1)],
    "layer-sam": [(2, 1e-5, 1), (2, 1e-6, 1), (INF, 1e-3, 1), (INF, 3e-3, 1)],
    "multi-step-defense": [(INF, 2e-5, 1), (INF, 1e-3, 1), (INF, 5e-4, 2), (INF, 5e-4, 2)],
    # The paper prints 0.9 and 0.8 for the translations. We read them as of fairseq's loss, a sum of 4,096 tokens:
    # GA-SAM's T is the inverse of a gradient, so with the mean loss 0.9 would move every weight by about 1 (inferred).
    "ga-sam": [(INF, 1e-4, 1), (INF, 8e-6, 1), (INF, 0.9 / 4096, 2), (INF, 0.8 / 4096, 2)],
    "freelb": [None, None, (INF, 0.02, 1), (INF, 0.005, 3)],
    "single-step": [(INF, 5e-5, 1), (2, 5e-3, 1)],
    "element-wise": [(INF, 5e-6, 1), (INF, 2e-6, 1)],
    "model-wise": [(INF, 5e-5, 1), (INF, 5e-6, 1)],
    "scale-weight-over-gradient": [(INF, 2e-5, 1), (2, 2e-5, 1)],
    "scale-inverse-gradient": [(INF, 5e-5, 1), (INF, 5e-6, 1)],
    "scale-weight-rms": [(INF, 5e-3, 1), (INF, 1e-4, 1)],
    "scale-weight": [(INF, 5e-6, 1), (INF, 1e-7, 1)],
}
APPENDIX = {name: {task: row for task, row in zip(_COLUMNS, rows, strict=False) if row} for name, rows in _ROWS.items()}
"""The paper's norm, epsilon and number of steps K, by method and task."""
FIRST_EPOCHS = {"en-vi": (30, 52), "de-en": (30, 70)}
"""The paper's first epoch with a walk, and its number of epochs; the other tasks walk from the first."""


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


Norm = Annotated[
    float,
    BeforeValidator(lambda value: INF if value == "inf" else value),
    PlainSerializer(lambda norm: "inf" if math.isinf(norm) else norm),
]
"""JSON has no infinity, so it is written as text."""


class Walk(BaseModel):
    """How a method moves the weights in one run: every option, and `source`, which does not change the result.

    Args:
        method: The name of the method.
        epsilon: Radius of the ball. The walk has either this or a budget; plain training has neither.
        budget: Rise of the loss that the walk aims at.
        cap: Largest offset of a group, as a share of the norm of its weights.
        norm: The p of the ball's norm.
        steps: Number of ascent steps, K.
        scale: The scale T.
        granularity: The groups of weights with their own T.
        risk: The loss to minimise: "mean", "final", or "own" if the method has a function for it.
        start_epoch: First epoch with a walk, counted from 1.
        walk_progress: Reach full strength when the loss has fallen by this share.
        walk_start: First step with a walk, or a share of training.
        walk_warmup: Steps, or a share of training, to reach full strength.
        every: Walk only on every n-th step.
        weight: The weight of the walk with `every`; by default n.
        same_noise: Use the same dropout masks in every pass of a step.
        ascent_fraction: Find the ascent on this share of each batch, in each process: 0.25 is the first quarter of its
            examples.
        options: The method's own options, such as GSAM's alpha.
        source: Who chose the size: the paper, the recommended walk, a search, or the user; "none" without a walk.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    method: str
    epsilon: float | None = None
    budget: float | None = None
    cap: float | None = None
    norm: Norm = INF
    steps: int = 1
    scale: str = "one"
    granularity: str = "model"
    risk: str = "final"
    start_epoch: int = 1
    walk_progress: float | None = None
    walk_start: int | float = 0
    walk_warmup: int | float = 0
    every: int = 1
    weight: float | None = None
    same_noise: bool = False
    ascent_fraction: float = Field(default=1.0, gt=0, le=1, exclude_if=lambda share: share == 1)  # 1 isn't stored
    options: dict[str, Any] = {}
    source: Source = "none"

    @model_validator(mode="after")
    def _check(self) -> Walk:
        """Perturbation and Schedule check the values."""
        check_schedule(self.perturbation(), self.schedule())
        if self.ascent_fraction < 1:
            if self.one_pass or self.perturbation().own_fold is not None:
                raise ValueError(f"{self.method} needs the whole batch in every pass: leave out --ascent-fraction")
            if (self.every if self.weight is None else self.weight) != 1:
                raise ValueError("--ascent-fraction needs the weight 1 in the schedule: add --weight 1")
        return self

    @property
    def moved(self) -> str:
        return find_method(self.method).moved

    @property
    def size(self) -> float:
        """The budget or epsilon; 0 for plain training."""
        return self.budget or self.epsilon or 0.0

    @property
    def one_pass(self) -> bool:
        """Whether the method computes no gradient at the weights themselves."""
        return not self.perturbation().clean_pass

    @property
    def passes(self) -> float:
        """Gradient evaluations of a step, on average over the steps that may walk."""
        return (not self.one_pass) + self.steps / self.every if self.size else 1.0

    def backward(
        self, family: Family[Any], model: nn.Module, backward: Callable[..., None]
    ) -> SharpBackward | gasam.FreeLB:
        """The replacement for loss.backward(); without a size it is a plain pass."""
        passes: Any = {"backward": backward, "around": gasam.same_noise() if self.same_noise else plainly}
        if self.moved == "embeddings":
            passes |= {"norm": self.norm, "steps": self.steps, "example_dim": family.example_dim}
            return gasam.FreeLB(family.embeddings(model), self.epsilon or 0.0, **passes)
        return SharpBackward(model, self.perturbation(), schedule=self.schedule(), **passes)

    def perturbation(self) -> Perturbation:
        names = {field.name for field in fields(Perturbation)} & type(self).model_fields.keys() - {"method"}
        given = {name: getattr(self, name) for name in names if (name, self.risk) != ("risk", OWN_RISK)}
        if self.budget is None and self.epsilon is None:
            given["epsilon"] = 0.0
        make = find_method(self.method).make
        return Perturbation(**given) if make is None else replace(make(0, **self.options), **given)

    def schedule(self) -> Schedule | None:
        times = {name: getattr(self, f"walk_{name}") for name in ("progress", "start", "warmup")}
        made = Schedule(**times, every=self.every, weight=self.weight)
        return None if made == Schedule() else made

    def identity(self) -> dict[str, Any]:
        """All options as JSON values, without the source."""
        return self.model_dump(mode="json", exclude={"source"})

    def __str__(self) -> str:
        """The size and what differs from the method's usual options, such as "L-inf, budget 0.1, cap 0.01"."""
        if self.moved == "nothing":
            return "same noise" if self.same_noise else ""
        usual = _usual(find_method(self.method))
        standard = dict(Walk(**usual)) | usual["options"] | {"norm": None}
        values = {name: getattr(self, name) for name in OPTIONS} | self.options
        return ", ".join(in_words(name, value) for name, value in values.items() if value != standard[name])


OPTIONS = tuple(name for name in Walk.model_fields if name not in ("method", "options", "source"))
"""The options that users may give, besides the method's own."""


def in_words(name: str, value: Any) -> str:
    """An option or setting with its value, for labels."""
    if name == "norm":
        return "L-inf" if math.isinf(value) else f"L{value:g}"
    words = {"steps": "K ="}.get(name, name.removeprefix("walk_").replace("_", " "))
    if value is None:
        return f"no {words}"
    return words if value is True else f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"


def walk_for(method: str, task: str, size: str, epochs: int, source: Walks | None = None, /, **given: Any) -> Walk:
    """The walk of a method on a task: by default the paper's at size "paper", and the recommended one elsewhere.

    Where the appendix has no epsilon it is the recommended one, too. A given epsilon takes the place of the paper's
    number, and a given budget of any.

    Args:
        method: The name of the method, as `task` and `size` are names.
        epochs: The number of epochs of the run; it scales the paper's first epoch with a walk.
        source: Takes the paper's or the recommended walk in every size.
        given: Options of the walk by name, see `OPTIONS`, and the method's own; None values are ignored.
    """
    found, given = find_method(method), {name: value for name, value in given.items() if value is not None}
    _refuse(found, given)
    values = _usual(found) | _size(found, task, size, epochs, source, given)
    if given.keys() & {"epsilon", "norm", "budget"}:
        values["source"] = "given"
    if "budget" in given:
        values["epsilon"] = None
    own = {name: float(v) if type(v) is int else v for name, v in given.items() if name in found.options}
    values |= {name: value for name, value in given.items() if name not in own}
    values["options"] = {**found.options, **own}
    if values["weight"] == values["every"]:
        values["weight"] = None  # the default, so that it is the same run
    walk = checked(Walk, **values)
    if walk.start_epoch not in range(1, epochs + 1):
        raise InputError(f"start_epoch must be a whole number from 1 to {epochs}, got {walk.start_epoch}")
    return walk


def _usual(method: Method) -> dict[str, Any]:
    """The options of a method's preset, without a size."""
    preset = method.preset
    schedule = (preset.method and preset.method.usual_schedule) or Schedule()
    return {
        "method": method.name,
        "norm": preset.norm,
        "scale": str(preset.scale),
        "granularity": preset.granularity,
        "risk": method.risk,
        "every": schedule.every,
        "weight": schedule.weight,
        "options": method.options,
    }


def _size(
    method: Method, task: str, size: str, epochs: int, source: str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The size of the walk, its norm, its steps and its schedule."""
    if method.moved == "nothing":
        return {}
    known = APPENDIX.get(method.name, {})
    place = "en-vi" if method.moved == "embeddings" and task not in known else task
    wanted = source or ("paper" if size == "paper" or method.moved == "embeddings" else "recommended")
    if "epsilon" in given or (wanted == "paper" and place in known):
        norm, epsilon, steps = known.get(place, (method.preset.norm, 0.0, 1))
        first, of = FIRST_EPOCHS.get(task, (1, epochs))
        start = max(1, round(first * epochs / of))
        return {"norm": norm, "epsilon": epsilon, "steps": steps, "start_epoch": start, "source": "paper"}
    if source == "paper":
        raise InputError(f"the paper has no epsilon for {method.name} on {task}: leave out --walks paper")
    perturbation, schedule = gasam.recommended(2)
    size_of = {"budget": perturbation.budget, "cap": perturbation.cap}
    if isinstance(method.preset.method, RandomDirection):  # which has no rise; each tensor moves as far as the cap
        size_of = {"epsilon": perturbation.cap}
    return size_of | {"walk_progress": schedule.progress, "source": "recommended"}


def _refuse(method: Method, given: Mapping[str, Any]) -> None:
    """Raise for options that the method does not have."""
    known = {*OPTIONS, *method.options}
    if unknown := given.keys() - known:
        raise InputError(f"a walk has no option {min(unknown)!r}: it has {', '.join(sorted(known))}")
    if method.risk == OWN_RISK and given.get("risk", OWN_RISK) != OWN_RISK:
        raise InputError(f"{method.name} has its own risk: leave out --risk")
    if method.moved == "nothing" and (left := given.keys() - {"same_noise"}):
        raise InputError(f"the baseline does not walk: leave out {_as_option(left)}, or name a method")
    only = {"epsilon", "norm", "steps", "start_epoch", "same_noise"}
    if method.moved == "embeddings" and (left := given.keys() - only):
        raise InputError(f"{method.name} moves embeddings, not weights: leave out {_as_option(left)}")


def _as_option(names: Collection[str]) -> str:
    return f"--{min(names).replace('_', '-')}"
