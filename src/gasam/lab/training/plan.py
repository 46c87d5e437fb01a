"""A plan: everything that decides what a run does, resolved, before anything is computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gasam.lab import tasks
from gasam.lab.data.locations import cache_directory
from gasam.lab.errors import InputError
from gasam.lab.families import Family, Recipe
from gasam.lab.families.encoded import Encoded, encoded
from gasam.lab.methods import METHODS
from gasam.lab.records import configuration_key
from gasam.lab.tasks import Origin, Task
from gasam.lab.walks import Choice, choose

DEFAULT_SIZE = "small"


@dataclass(frozen=True)
class Plan:
    task: str
    size: str
    seed: int
    settings: Recipe
    choice: Choice
    origin: Origin

    @property
    def definition(self) -> Task:
        return tasks.find(self.task)

    def data(self) -> Encoded:
        return encoded_data(self.definition, self.origin, self.settings)

    @property
    def data_key(self) -> Hashable:
        """Equal for plans that use the same encoded data."""
        return self.task, self.origin, tuple(getattr(self.settings, name) for name in self.settings.encoding)

    def family(self, data: Encoded) -> Family[Any]:
        return self.definition.family(self.settings, data)

    def config(self) -> dict[str, Any]:
        """What decides the outcome, with the data and the seed; as JSON holds it."""
        settings, method = self.settings.recorded(), self.choice.identity()
        return {"task": self.task, "size": self.size, "settings": settings, "method": method}

    @property
    def key(self) -> str:
        """The same for all seeds of a configuration, and for its records."""
        return configuration_key(self.config())

    def identity(self, data_hash: str) -> str:
        text = json.dumps([self.config(), data_hash, self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def name(self, data_hash: str) -> str:
        """The name of the run's record: to be read by people, and one of its own for every other identity."""
        return f"{self.task}-{self.size}-{self.choice.method}-{self.seed}-{self.identity(data_hash)[:8]}"


def make(
    task: str,
    method: str = "baseline",
    size: str = DEFAULT_SIZE,
    seed: int = 1,
    *,
    origin: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    walk: Mapping[str, Any] | None = None,
) -> Plan:
    """A plan from names, with what the user overrides in the task's settings and in the method's walk."""
    if not 0 <= seed < 2**31:
        raise InputError(f"seed must be a whole number from 0 to 2147483647, got {seed}")
    origin, definition = origin or Origin(), tasks.find(task)
    definition.check(origin)
    resolved = definition.settings(size, **(settings or {}))
    if method in METHODS and METHODS[method].moved == "embeddings" and not definition.family.has_embeddings:
        raise InputError(f"{method} moves word embeddings, and the model of {task} has none: name another method")
    return Plan(task, size, seed, resolved, choose(method, task, resolved.epochs, walk, size), origin)


def encoded_data(task: Task, origin: Origin, settings: Recipe) -> Encoded:
    """From the user's cache, else made."""
    return encoded(task.family, task.source(origin), settings, cache_directory() / "prepared")
