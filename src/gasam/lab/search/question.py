"""What a search asks: the task, the method, the ranges, and the order in which the paper tries sizes of a walk."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, Self

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import BaseModel, NonNegativeInt, PositiveInt, model_validator

from gasam import recommended
from gasam.lab.errors import InputError
from gasam.lab.families.family import STRICT
from gasam.lab.methods import find_method
from gasam.lab.tasks import Origin
from gasam.lab.training import plan as plans
from gasam.lab.training.plan import Plan

SEED_STEP = 1_000_000
"""The best trials are repeated with the search's seed + 1,000,000, + 2,000,000 and so on; results have other seeds."""
TOLERANCE = 0.02
"""A walk collapses if it loses more than this share of plain training's worth, and more than the split's noise."""
CAP = 0.1
"""Ten times the recommended cap. A search can try it because validation decides."""
MANTISSAS = (5, 2, 8, 1)
BUDGETS, EPSILONS, CAPS = "0.01..0.8,log", "1e-6..8,log", "0.003..0.1,log"
WALK = frozenset({"norm", "budget", "epsilon", "cap"})
"""What is searched of a walk."""
Quantity = Literal["budget", "epsilon", "settings", "joint"]
Values = Mapping[str, Any]


class Search(BaseModel):
    """What to tune.

    Args:
        task: The name of the task, or the path of the Python file that defines it.
        method: The name of the method.
        size: The name of the size; by default the task's.
        quantity: What to search: "budget", with a cap and the recommended schedule; "epsilon", the paper's form;
            "settings" of training; or "joint", settings with budget and cap. By default a budget, but epsilon for
            methods that move embeddings, and settings for the baseline.
        space: Ranges by name that replace the usual ones: "LOW..HIGH", "LOW..HIGH,log", a list of choices, or None to
            leave a setting out.
        trials: The largest number of trials; by default 20 for settings, and as many as the paper's order has.
        seeds: Repeat the best trials and plain training until they have this many seeds, and choose by the mean.
        seed: The seed of the trials; results should use other seeds.
        settings: Settings of the task to change in all trials.
        origin: Where the data is.
    """

    model_config = STRICT

    task: str
    method: str = "ga-sam"
    size: str | None = None
    quantity: Quantity | None = None
    space: dict[str, Any] = {}
    trials: PositiveInt | None = None
    seeds: PositiveInt = 1
    seed: NonNegativeInt = 0
    settings: dict[str, Any] = {}
    origin: Origin = Origin()

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse what cannot be searched, and ranges with a value that is not allowed, before anything is run."""
        moved = find_method(self.method).moved
        if moved == "nothing" and self.what != "settings":
            raise InputError("the baseline does not walk: name a method to tune, or search its settings")
        if moved == "embeddings" and self.what in ("budget", "joint"):
            raise InputError(f"{self.method} moves embeddings and has no budget: search its epsilon or its settings")
        if self.of_walk:
            self._check_walks()
        for name, value in self.space.items():
            if name in self.settings and value is not None:
                raise InputError(f"{name} is fixed and searched: leave it out of --set or of --space")
            if value is None and name not in self.settings and name not in self._usual():
                raise InputError(f"{name} is not searched, so --space {name}=null leaves out nothing: check the name")
        if not self.ranges:
            raise InputError("nothing is left to search: add --space, or fix fewer settings")
        for name in self.ranges.keys() - WALK:
            for value in values_of(self.ranges[name]):
                self.plan({name: value})
        return self

    def _check_walks(self) -> None:
        """Walks are tried in the paper's order, which needs one list of norms and of caps."""
        usual = self._usual()
        if not self.space.keys() <= usual.keys() or None in self.space.values():
            raise InputError(
                f"a search for {self.what} has ranges of {', '.join(usual)}: use --quantity joint for settings"
            )
        for name in usual.keys() - {self.what}:
            if not isinstance(self.ranges[name], CategoricalDistribution):
                raise InputError(f"{name} must be a list of choices in this search, such as [0.1], got a range")

    @property
    def what(self) -> Quantity:
        """The searched quantity."""
        usual: dict[str, Quantity] = {"nothing": "settings", "embeddings": "epsilon", "weights": "budget"}
        return self.quantity or usual[find_method(self.method).moved]

    @property
    def of_walk(self) -> bool:
        """Whether the size of a walk is searched, and compared with plain training."""
        return self.what in ("budget", "epsilon")

    def plan(self, values: Values | None = None, repetition: int = 0) -> Plan:
        """The plan of a trial; without values, of plain training or of the task's own settings."""
        rounded = {name: float(f"{v:.2g}") if isinstance(v, float) else v for name, v in (values or {}).items()}
        walk: dict[str, Any] = {name: rounded.pop(name) for name in WALK & rounded.keys()}
        if "budget" in walk:
            walk["walk_progress"] = recommended()[1].progress
        method = "baseline" if self.of_walk and not values else self.method
        seed, settings = self.seed + repetition * SEED_STEP, {**self.settings, **rounded}
        return plans.make(self.task, method, self.size, seed, origin=self.origin, settings=settings, walk=walk)

    @cached_property
    def ranges(self) -> dict[str, BaseDistribution]:
        """What to search: the usual ranges without the settings that are fixed, and the user's own."""
        texts = {name: each for name, each in self._usual().items() if name not in self.settings} | self.space
        own = dict(self.plan().settings)
        return {name: distribution(name, each, own.get(name, 0.0)) for name, each in texts.items() if each is not None}

    def _usual(self) -> dict[str, Any]:
        norm = as_text(find_method(self.method).preset.norm)
        if self.what == "budget":
            return {"norm": [norm], "budget": BUDGETS, "cap": [CAP, recommended()[0].cap]}
        if self.what == "epsilon":
            return {"norm": ["inf", 2.0], "epsilon": EPSILONS}
        return self.plan().settings.space() | ({"budget": BUDGETS, "cap": CAPS} if self.what == "joint" else {})

    def name(self, data_hash: str) -> str:
        """The name of the search. It depends on the settings, the ranges, the data and the seed."""
        plan, space = self.plan(), {name: str(each) for name, each in self.ranges.items()}
        text = json.dumps([plan.config(), self.method, space, data_hash, self.seed], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{plan.task_name}-{plan.size}-{self.method}-{self.what}-{self.seed}-{digest}"


def distribution(name: str, value: Any, own: Any) -> BaseDistribution:
    """What to draw from for text such as "0.001..0.1" or "1..100,log", a list of choices, or one value.

    Args:
        name: The name of the setting, for error messages.
        value: The range.
        own: The present value of the setting; whole numbers have whole ranges.
    """
    if not isinstance(value, str) or ".." not in value:
        choices = list(value) if isinstance(value, tuple | list) else [value]
        if not choices:
            raise InputError(f"the choices of {name} must not be empty")
        return CategoricalDistribution(choices)
    text, _, kind = value.partition(",")
    try:
        low, high = (int(end) if end.lstrip("-").isdigit() else float(end) for end in text.split(".."))
        if kind not in ("", "log") or not low < high or (kind and low <= 0):
            raise ValueError
    except ValueError:
        allowed = "LOW..HIGH, or LOW..HIGH,log with LOW > 0, or a list such as [0,0.1]"
        raise InputError(f"the range of {name} must be {allowed}, got {value!r}") from None
    whole = isinstance(low, int) and isinstance(high, int)
    if type(own) is int and not whole:
        raise InputError(f"the range of {name} must be whole numbers, got {text}")
    if whole and not isinstance(own, float):
        return IntDistribution(int(low), int(high), log=bool(kind))
    return FloatDistribution(low, high, log=bool(kind))


def paper_order(known: Mapping[float, float], sizes: BaseDistribution, noise: float) -> list[float]:
    """The sizes of one norm to try next, in the paper's two stages; none if the search has ended.

    A bisection on the exponent finds the largest power of ten at which training does not collapse. Then 5, 2, 8 and 1
    times this power are tried, and the next lower power if these are clearly worse than plain training.

    Args:
        known: The gain of each size that was tried, as a share of the worth of plain training; -inf if it was lost.
        sizes: The range of the sizes, or their list, which has no order.
        noise: The standard error of a gain.
    """
    if isinstance(sizes, CategoricalDistribution):
        return [float(size) for size in values_of(sizes) if size not in known]
    assert isinstance(sizes, FloatDistribution)
    low, high = math.ceil(math.log10(sizes.low) - 1e-9), math.floor(math.log10(sizes.high) + 1e-9)
    fine, collapsed = low - 1, high + 1
    while collapsed - fine > 1:
        middle = (fine + collapsed) // 2
        gain = known.get(float(f"1e{middle}"))
        if gain is None:
            return [float(f"1e{middle}")]
        if gain < -max(TOLERANCE, noise):
            collapsed = middle
        else:
            fine = middle
    for exponent in range(fine, low - 1, -1):
        grid = [size for m in MANTISSAS if sizes.low <= (size := float(f"{m}e{exponent}")) <= sizes.high]
        clear_loss = known.get(float(f"1e{exponent}"), 0.0) < -max(TOLERANCE / 4, noise)
        if clear_loss and exponent > low:
            continue
        if untried := [size for size in grid if size not in known]:
            return untried
        if max(known[size] for size in grid) >= -noise:
            return []
    return []


def values_of(kind: BaseDistribution) -> tuple[Any, ...]:
    """The choices, or the ends of a range."""
    if isinstance(kind, CategoricalDistribution):
        return kind.choices
    assert isinstance(kind, FloatDistribution | IntDistribution)
    return kind.low, kind.high


def as_text(norm: float) -> float | str:
    """JSON has no infinity."""
    return "inf" if math.isinf(norm) else norm
