"""Groups of options: a parameter of a command that is a dataclass stands for its fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of such a parameter: typer reads options from a signature."""
    own = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}
    parameters: list[inspect.Parameter] = []
    for name, each in own.items():
        parameters += options_of(groups[name]) if name in groups else [keyword(name, each.default, each.annotation)]

    @wraps(command)
    def run(**given: Any) -> None:
        values: dict[str, Any] = {}
        for name, group in groups.items():
            values[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__  # typer would read the options of the command itself
    return run


def options_of(group: type) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [keyword(field.name, _default(field), types[field.name]) for field in fields(group)]


def keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
