"""The settings of a task file: those of training, and the arguments of its `model` function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from gasam.lab.errors import InputError
from gasam.lab.families import Recipe
from gasam.lab.families.setting_checks import check_settings


@dataclass(frozen=True, kw_only=True)
class OwnSettings(Recipe):
    """The settings of a task file: those of training, and the arguments of its `model` function.

    Args:
        code: A hash of the file, so that a changed file gives other runs.
        arguments: Pairs of the name and the value of each argument of `model`.
    """

    epochs: int = 10
    batch: int = 32
    learning_rate: float = 1e-3
    code: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_settings(
            self,
            zero=("weight_decay", "warmup", "halve_after", "average"),
            below_one=("betas",),
            free=("arguments",),
        )

    def changed(self, task: str, overrides: Mapping[str, Any]) -> Self:
        arguments = dict(self.arguments)
        training = {name: value for name, value in overrides.items() if name not in arguments}
        for name in training:
            if name not in trainable():
                known = ", ".join([*trainable(), *arguments])
                raise InputError(f"{task} has no setting {name!r}: it has {known}")
        given = {name: value for name, value in overrides.items() if name in arguments}
        for name, value in given.items():
            arguments[name] = like(arguments[name], value, name)
        return replace(super().changed(task, training), arguments=tuple(arguments.items()))

    def recorded(self) -> dict[str, Any]:
        values = super().recorded()
        del values["arguments"]
        return values | {name: list(v) if isinstance(v, tuple) else v for name, v in self.arguments}


def trainable() -> tuple[str, ...]:
    """The names of the settings that every task has, and the hash of the file, which records hold."""
    return (*Recipe.names(), "code")


def like(default: Any, value: Any, name: str) -> Any:
    """A new value for an argument of `model`, which must have the type of its default value."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    if default is not None and type(value) is not type(default):
        raise InputError(f"{name} must be of the type of its default value, {default!r}, got {value!r}")
    return value
