"""The settings of a task file: those of training, and the arguments of its `model` function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field, PositiveFloat, PositiveInt, create_model

from gasam.lab.families.family import Recipe

_MADE: dict[str, type[OwnSettings]] = {}


class OwnSettings(Recipe):
    """The settings of a task file. `settings_with` adds the arguments of its `model` function as fields.

    Args:
        code: A hash of the file, so that a changed file gives other runs.
    """

    epochs: PositiveInt = 10
    batch: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3
    code: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `model`."""
        return {name: value for name, value in self if name not in OwnSettings.model_fields}

    def __reduce__(self) -> tuple[Callable[..., OwnSettings], tuple[Any, ...]]:
        """Another process has no such class before it makes one."""
        fields = type(self).model_fields
        return _restored, ({name: fields[name].default for name in self.arguments}, dict(self))


def settings_with(arguments: Mapping[str, Any]) -> type[OwnSettings]:
    """The class of settings with these arguments of `model`, which have the types of their default values."""
    key = repr(arguments)
    if key not in _MADE:
        fields: dict[str, Any] = {name: _field(value) for name, value in arguments.items()}
        _MADE[key] = create_model("OwnSettings", __base__=OwnSettings, **fields)
    return _MADE[key]


def _field(default: Any) -> tuple[Any, Any]:
    if isinstance(default, tuple):
        return tuple[Any, ...], Field(default, strict=False)
    return Any if default is None else type(default), default


def _restored(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> OwnSettings:
    return settings_with(arguments)(**values)
