"""The question of a search for settings: the task, the method, the ranges, and when to stop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.families.spaces import Span
from gasam.lab.methods import find_method
from gasam.lab.search.question import SEED, SEED_STEP
from gasam.lab.search.settings_finding import WALK_SCHEDULE, WALK_SPACE
from gasam.lab.tasks import Origin
from gasam.lab.tasks.task import DEFAULT_SIZE
from gasam.lab.training import plan as plans
from gasam.lab.training.plan import Plan

TRIALS = 20
"""The default number of trials. A limit of gradient evaluations can only end the search earlier."""

Values = Mapping[str, Any]
"""The settings of a trial, and the options of its walk; empty for the task's own."""


@dataclass(frozen=True)
class SettingsQuestion:
    """What to tune.

    Args:
        task: The name of the task, or the path of the Python file that defines it.
        method: The name of the method; usually the baseline.
        size: The name of the size as records hold it.
        seed: The seed of the trials and of the sampler; results should use other seeds.
        origin: Where the data is.
        settings: Settings of the task that all trials share.
        space: Ranges that replace or extend those of the task; None takes a setting out.
        joint: Search for the budget and the cap of the walk as well.
        trials: Maximum number of trials.
        evaluations: Start no more trials after this many gradient evaluations; None for no limit.
        seeds: Repeat the finalists and the task's own settings until they have this many seeds, and choose by the mean.
    """

    task: str
    method: str = "baseline"
    size: str = DEFAULT_SIZE
    seed: int = SEED
    origin: Origin = field(default_factory=Origin)
    settings: Mapping[str, Any] = field(default_factory=dict)
    space: Mapping[str, Span | tuple[Any, ...] | None] = field(default_factory=dict)
    joint: bool = False
    trials: int = TRIALS
    evaluations: int | None = None
    seeds: int = 1

    def __post_init__(self) -> None:
        """Raise `InputError` for invalid values before anything is run."""
        moved = find_method(self.method).moved
        if self.joint and moved != "weights":
            raise InputError(f"{self.method} has no budget to search with the settings: use --quantity settings")
        for name in ("trials", "seeds", "evaluations"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be a whole number >= 1, got {getattr(self, name)}")
        self._check_ranges()

    def _check_ranges(self) -> None:
        for name, span in self.space.items():
            if name in self.settings and span is not None:
                raise InputError(
                    f"{name} is fixed and searched: leave it out of --set and --settings-from, or of --space"
                )
            if span is None and name not in self.settings and name not in self._own_ranges():
                raise InputError(f"{name} is not searched, so --space {name}=null leaves out nothing: check the name")
        if not self.ranges():
            raise InputError("nothing is left to search: add --space, or leave out --set or --settings-from")
        for name, span in self.ranges().items():
            for value in (span.low, span.high) if isinstance(span, Span) else span:
                self.plan({name: value})

    def _own_ranges(self) -> dict[str, Span | tuple[Any, ...]]:
        return {**self.plan({}).settings.space(), **(WALK_SPACE if self.joint else {})}

    def ranges(self) -> dict[str, Span | tuple[Any, ...]]:
        """What to search: the task's ranges, without the settings that the user fixed, and the user's own."""
        own = {name: span for name, span in self._own_ranges().items() if name not in self.settings}
        values = self.plan({}).settings.model_dump(mode="json")
        return {
            name: span.fitted(name, values.get(name, 0.0)) if isinstance(span, Span) else span
            for name, span in {**own, **self.space}.items()
            if span is not None
        }

    def plan(self, values: Values | None, repetition: int = 0) -> Plan:
        """The plan of a trial. Repetition 0 has the seed of the search."""
        values = values or {}
        walk = {name: values[name] for name in WALK_SPACE if name in values and self.joint}
        settings = {name: value for name, value in values.items() if name not in walk}
        if walk:
            walk |= WALK_SCHEDULE
        seed = self.seed + repetition * SEED_STEP
        settings = {**self.settings, **settings}
        return plans.make(self.task, self.method, self.size, seed, origin=self.origin, settings=settings, walk=walk)

    def described(self, values: Values) -> str:
        return ", ".join(f"{name}={value}" for name, value in values.items()) or "the task's own settings"

    def distinct(self, values: Values) -> Values:
        """The values, or none if they give the same run as the task's own settings."""
        return values if self.plan(values).key("") != self.plan({}).key("") else {}

    def name(self, data_hash: str) -> str:
        """The name of the search. It depends on the settings, the ranges, the data and the seed."""
        ranges = {
            name: (span.low, span.high, span.log) if isinstance(span, Span) else span
            for name, span in self.ranges().items()
        }
        text = json.dumps([self.plan({}).config(), ranges, data_hash, self.seed], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        kind = "-joint" if self.joint else ""
        return f"{tasks.name_of(self.task)}-{self.size}-{self.method}{kind}-{self.seed}-{digest}"
