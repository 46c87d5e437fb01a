"""Runs that differ in their seed alone, and what sets one such group apart from the others."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.families import Recipe
from gasam.lab.methods import METHODS
from gasam.lab.records import EpsilonSource, RunSummary, configuration_key
from gasam.lab.walks import LATER, choose

CIRCUMSTANCES = ("start_epoch", "same_noise")
"""What a walk is the same without: the first follows the number of epochs, the second is the user's wish for all."""
RADIUS = ("epsilon", "norm")
TUNED = (*RADIUS, "budget", "cap", "walk_progress")
"""What a search may set."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration on the same data, one a seed."""

    runs: tuple[Any, ...]

    @property
    def task(self) -> str:
        return str(self.runs[0].task)

    @property
    def size(self) -> str:
        return str(self.runs[0].size)

    @property
    def method(self) -> str:
        return str(self.runs[0].method)

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.runs[0].config["settings"])

    @property
    def walk(self) -> dict[str, Any]:
        return dict(self.runs[0].config["method"])

    @property
    def key(self) -> str:
        return configuration_key(self.runs[0].config)

    @property
    def data(self) -> str:
        return data_hash(self.runs[0])

    @property
    def scores(self) -> dict[int, float]:
        """The metric on the test split by seed, of the runs that gave a number."""
        return {run.seed: run.test for run in self.runs if run.test is not None}

    @property
    def lost(self) -> set[int]:
        """The seeds of the runs that gave no number: they diverged."""
        return {run.seed for run in self.runs} - self.scores.keys()

    @property
    def silent(self) -> int:
        return len(self.lost)

    @cached_property
    def sources(self) -> list[str]:
        """Where its epsilon comes from: runs that agree in the number may differ in this."""
        return list(dict.fromkeys(str(run.epsilon_source or "source unknown") for run in self.runs))

    @cached_property
    def _sources(self) -> list[EpsilonSource]:
        return [run.epsilon_source for run in self.runs if run.epsilon_source is not None]

    @cached_property
    def tuned(self) -> bool:
        """Whether its radius is the one that was found on validation for its method."""
        return any(source.kind == "tuned" and source.multiple is None for source in self._sources)

    @cached_property
    def tries(self) -> int:
        """Of the search that found its radius: of two, the longer one speaks for the method."""
        return max((source.trials or 0 for source in self._sources), default=0)

    @cached_property
    def multiple(self) -> float | None:
        """How many times the tuned radius its own is, where it was chosen to be a multiple of it."""
        found = [source.multiple for source in self._sources if source.multiple is not None]
        return None if self.tuned or not found else found[0]

    @property
    def found_on_validation(self) -> bool:
        """Whether its radius was, or that of which it is a multiple."""
        return self.tuned or self.multiple is not None

    @cached_property
    def other_settings(self) -> dict[str, Any]:
        task = tasks.find(self.task)
        later = task.family.settings_type.later
        return _changed(later | self.settings, later | as_recorded(task.settings(self.size)))

    def other_walk(self, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What differs from the method's walk on this task, with what a study overrides in it."""
        try:
            usual = choose(self.method, self.task, self.settings["epochs"], overrides, self.size).identity()
        except InputError:  # a method that has no radius of its own on this task
            usual = self.walk | {"epsilon": None, "norm": None}
        return _changed(LATER | self.walk, LATER | usual)


def grouped(records: Iterable[RunSummary]) -> list[Group]:
    """In the order of the methods, the usual configuration of each first, with its tuned radius before the paper's. A
    run that is there twice counts once."""
    found: dict[str, dict[int, Any]] = {}
    for record in records:
        if record.method not in METHODS:
            raise InputError(f"a record's method must be one of {', '.join(METHODS)}, got {record.method!r}")
        key = json.dumps([record.config, data_hash(record)], sort_keys=True)
        found.setdefault(key, {}).setdefault(record.seed, record)
    groups = [Group(tuple(found[key][seed] for seed in sorted(found[key]))) for key in sorted(found)]
    order = list(METHODS)
    return sorted(groups, key=lambda group: (order.index(group.method), *_oddity(group)))


def baseline_of(group: Group, groups: Sequence[Group]) -> Group | None:
    """Plain training with the same settings on the same data; what another baseline is compared with is the first."""
    plain = [other for other in groups if other.method == "baseline" and other.data == group.data]
    if group.method == "baseline":
        return plain[0] if plain and plain[0] is not group else None
    alike = [other for other in plain if other.settings == group.settings]
    noise = [other for other in alike if other.walk.get("same_noise") == group.walk.get("same_noise")]
    return next(iter(noise + alike), None)


def shared_settings(groups: Sequence[Group]) -> dict[str, Any]:
    """What all of them set in the same way, though their size has another value."""
    first, *others = groups
    return {
        name: value
        for name, value in first.other_settings.items()
        if all(name in other.other_settings and other.other_settings[name] == value for other in others)
    }


def labels(groups: Sequence[Group]) -> list[str]:
    """Names that tell the groups apart."""
    return [label(group, METHODS[group.method].title, group.other_walk(), groups) for group in groups]


def label(group: Group, name: str, walk: Mapping[str, Any], groups: Sequence[Group]) -> str:
    """The name, and in brackets what differs from what the name promises and is not shared by all groups."""
    shared = shared_settings(groups)
    settings = {key: value for key, value in group.other_settings.items() if key not in shared}
    data = {"data": group.data[:8]} if len({other.data for other in groups}) > 1 else {}
    other = {key: value for key, value in walk.items() if key not in TUNED} if _radius(group) else walk
    differing = ", ".join(filter(None, (_radius(group), in_words({**other, **settings, **data}))))
    return f"{name} ({differing})" if differing else name


def in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(_in_words(name, value) for name, value in values.items())


def as_recorded(settings: Recipe) -> dict[str, Any]:
    """Settings as a record holds them."""
    return settings.recorded()


def data_hash(record: RunSummary) -> str:
    return record.data.hash


def radius(group: Group) -> str:
    budget = group.walk.get("budget")
    size = f"budget {budget:g}" if budget else f"{group.walk['epsilon']:g}"
    return f"{in_words({'norm': group.walk['norm']})} {size}"


def _radius(group: Group) -> str:
    """What a name says of a radius that was found on validation."""
    if group.multiple is not None:
        return f"{group.multiple:g} x tuned: {radius(group)}"
    return f"tuned: {radius(group)}" if group.tuned else ""


def _oddity(group: Group) -> tuple[float, ...]:
    """How far a group is from its method's usual configuration; a radius found on validation is the usual one."""
    walk = group.other_walk().keys() - (TUNED if _radius(group) else ())
    rung = group.multiple
    odd = len(group.other_settings) + len(walk) + (rung is not None)
    return odd, not group.tuned, -group.tries, rung or 0.0


def _changed(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in usual and _plain(value) != usual[name]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _in_words(name: str, value: Any) -> str:
    match name:
        case "steps":
            return f"K = {value}"
        case "norm":
            return f"L-{value}" if value == "inf" else f"L{value:g}"
        case "same_noise":
            return "same noise" if value else "fresh noise"
    words = name.replace("_", " ")
    if value is None:
        return f"all {words}" if name in ("rows", "judged") else f"no {words}"
    if isinstance(value, list):
        return f"{words} {'/'.join(map(str, value))}"
    return f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}"
