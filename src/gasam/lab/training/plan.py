"""The plan of a run: everything that determines its result, and the run's name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gasam import normalisation
from gasam.lab import tasks
from gasam.lab.data.corpus import cache_directory
from gasam.lab.errors import InputError
from gasam.lab.families.family import VERSION, Encoded, Family, Layers, Recipe, encoded
from gasam.lab.methods import FAMILY, METHODS, Method, Walk, Walks, find_method, walk_for
from gasam.lab.record import key_of
from gasam.lab.tasks import Origin, Task
from gasam.lab.tasks.own_model import absolute, is_file, load_task


@dataclass(frozen=True)
class Plan:
    """Everything that determines the result of a run, except the content of the data. `make` creates one."""

    task: str  # its name, or the path of the Python file that defines it
    size: str  # a label, because the settings are whole
    seed: int
    settings: Recipe
    walk: Walk  # the method with all options of its walk
    origin: Origin

    @property
    def definition(self) -> Task:
        code = getattr(self.settings, "code", None)
        return tasks.find(self.task) if code is None else load_task(self.task, code)

    @property
    def task_name(self) -> str:
        """Its name in records and file names."""
        return tasks.name_of(self.task)

    def data(self) -> Encoded:
        """The encoded data, from the cache or from its source."""
        task = self.definition
        return encoded(task.family, task.source(self.origin), self.settings, cache_directory() / "prepared")

    @property
    def data_key(self) -> Hashable:
        """A key that is equal for plans with the same encoded data."""
        return self.task, self.origin, tuple(getattr(self.settings, name) for name in self.settings.encoding)

    def family(self, data: Encoded) -> Family[Any]:
        return self.definition.family(self.settings, data)

    def config(self) -> dict[str, Any]:
        settings, walk = self.settings.model_dump(mode="json"), self.walk.model_dump()
        return {"task": self.task_name, "size": self.size, "settings": settings, "walk": walk}

    def key(self, data_hash: str, *more: object) -> str:
        """A hash of the configuration, the same for all seeds and in the records of its runs."""
        known = self.config()
        return key_of(known["task"], known["settings"], known["walk"], data_hash, VERSION, *more)

    def name(self, data_hash: str) -> str:
        """The name of the run and of its files: readable, and unique because it ends in a hash of everything."""
        digest = self.key(data_hash, self.seed)[:8]
        return f"{self.task_name}-{self.size}-{self.walk.method}-{self.seed}-{digest}"


def make(
    task: str,
    method: str = "baseline",
    size: str | None = None,
    seed: int = 1,
    *,
    origin: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    walk: Mapping[str, Any] | None = None,
    walks: Walks | None = None,
) -> Plan:
    """Make the plan of one run from names and overrides.

    Args:
        task: The name of a task, or the path of a Python file that defines one.
        method: The name of a method.
        size: The name of a size, by default "small".
        seed: The seed of all randomness.
        origin: Where the data is; by default the user's data folder.
        settings: Settings of the task to change.
        walk: Options of the walk to change.
        walks: Takes the paper's or the recommended walk in every size.
    """
    if not 0 <= seed < 2**31:
        raise InputError(f"seed must be a whole number from 0 to 2147483647, got {seed}")
    task = str(absolute(task)) if is_file(task) else task
    origin, definition, found = origin or Origin(), tasks.find(task), find_method(method)
    definition.check(origin)
    size = definition.default_size if size is None else size
    resolved = definition.settings(size, **(settings or {}))
    for layers in _moved_layers(found):
        if not definition.family.has(layers):
            raise InputError(f"{method} moves {layers}, but the model of {task} has none: name another method")
    chosen = walk_for(method, task, size, resolved.epochs, walks, **(walk or {}))
    return Plan(task, size, seed, resolved, chosen, origin)


def family_on(task: str) -> tuple[list[str], list[str]]:
    """The methods of `--methods family` that a task's model allows, and the others."""
    definition = tasks.find(task)
    fitting = [name for name in FAMILY if all(map(definition.family.has, _moved_layers(METHODS[name])))]
    return fitting, [name for name in FAMILY if name not in fitting]


def _moved_layers(method: Method) -> list[Layers]:
    """The layers that a model must have for this method."""
    if method.moved == "embeddings":
        return ["word embeddings"]
    return ["normalisation layers"] if method.preset.perturb is normalisation else []
