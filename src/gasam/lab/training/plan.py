"""The plan of a run: all settings that determine its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gasam import normalisation
from gasam.lab import tasks
from gasam.lab.data.corpus import cache_directory
from gasam.lab.errors import InputError
from gasam.lab.families.encoded import Encoded, encoded
from gasam.lab.families.family import Family, Recipe
from gasam.lab.methods import FAMILY, METHODS
from gasam.lab.records import configuration_key
from gasam.lab.tasks import Origin, Task
from gasam.lab.tasks.own_model import absolute, is_file, planned_task
from gasam.lab.walks import Choice, choose

_GIVEN: dict[Hashable, Encoded] = {}


@dataclass(frozen=True)
class Plan:
    """Everything that determines the result of a run, except the content of the data. `make` creates one.

    Args:
        task: The name of the task, or the path of the Python file that defines it.
        size: The name of the size.
        seed: The seed of all randomness.
        settings: The settings of the model and its training.
        choice: The method with all options of its walk.
        origin: Where the data is.
    """

    task: str
    size: str
    seed: int
    settings: Recipe
    choice: Choice
    origin: Origin

    @property
    def definition(self) -> Task:
        code = getattr(self.settings, "code", None)
        return tasks.find(self.task) if code is None else planned_task(self.task, code)

    @property
    def task_name(self) -> str:
        """The name of the task in records and file names."""
        return tasks.name_of(self.task)

    def data(self) -> Encoded:
        """The encoded data: what `give_data` gave to this process, or else from the cache or the source."""
        given = _GIVEN.get(self._encoding_key)
        return encoded_data(self.definition, self.origin, self.settings) if given is None else given

    @property
    def data_key(self) -> Hashable:
        """A key that is equal for plans with the same encoded data."""
        return self.origin, self._encoding_key

    @property
    def _encoding_key(self) -> Hashable:
        return self.task, tuple(getattr(self.settings, name) for name in self.settings.encoding)

    def family(self, data: Encoded) -> Family[Any]:
        return self.definition.family(self.settings, data)

    def config(self) -> dict[str, Any]:
        """The configuration as JSON values. Together with the data and the seed it determines the result."""
        settings, method = self.settings.recorded(), self.choice.identity()
        return {"task": self.task_name, "size": self.size, "settings": settings, "method": method}

    @property
    def key(self) -> str:
        """A key that is the same for all seeds of a configuration, and in its records."""
        return configuration_key(self.config())

    def identity(self, data_hash: str) -> str:
        text = json.dumps([self.config(), data_hash, self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def name(self, data_hash: str) -> str:
        """The name of the run's record: readable, and unique because it ends in a hash of the identity."""
        return f"{self.task_name}-{self.size}-{self.choice.method}-{self.seed}-{self.identity(data_hash)[:8]}"


def make(
    task: str,
    method: str = "baseline",
    size: str | None = None,
    seed: int = 1,
    *,
    origin: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    walk: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan of one run from names and overrides.

    Args:
        task: The name of a task, see `gasam tasks`, or the path of a Python file that defines one.
        method: The name of a method, see `gasam methods`.
        size: The name of a size; by default "small", or the only size of a task file.
        seed: The seed of all randomness.
        origin: Where the data is; by default the user's data folder.
        settings: Settings of the task to change, such as {"epochs": 3}.
        walk: Options of the walk to change, such as {"epsilon": 1e-3}.
    """
    if not 0 <= seed < 2**31:
        raise InputError(f"seed must be a whole number from 0 to 2147483647, got {seed}")
    task = str(absolute(task)) if is_file(task) else task
    origin, definition = origin or Origin(), tasks.find(task)
    definition.check(origin)
    size = definition.default_size if size is None else size
    resolved = definition.settings(size, **(settings or {}))
    if method in METHODS and METHODS[method].moved == "embeddings" and not definition.family.has_embeddings():
        raise InputError(f"{method} moves word embeddings, but the model of {task} has none: name another method")
    if method in METHODS and not _has_what_moves(method, definition):
        raise InputError(f"{method} moves normalisation layers, but the model of {task} has none: name another method")
    return Plan(task, size, seed, resolved, choose(method, definition, resolved.epochs, walk, size), origin)


def give_data(plan: Plan, data: Encoded) -> None:
    """Give this process the data of a plan. The node of a cluster needs it, because it has no source files."""
    _GIVEN[plan._encoding_key] = data


def family_on(task: str) -> tuple[list[str], list[str]]:
    """The methods of `--methods family` that a task's model allows, and the others."""
    definition = tasks.find(task)
    fitting = [name for name in FAMILY if _has_what_moves(name, definition)]
    return fitting, [name for name in FAMILY if name not in fitting]


def _has_what_moves(method: str, task: Task) -> bool:
    return METHODS[method].preset.perturb is not normalisation or task.family.has_normalisation()


def encoded_data(task: Task, origin: Origin, settings: Recipe) -> Encoded:
    """Encode the task's data, or read it from the user's cache."""
    return encoded(task.family, task.source(origin), settings, cache_directory() / "prepared")
