"""Groups of options: a dataclass parameter of a command is expanded into one option for each field."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its dataclass parameters expanded into options."""
    return with_parameters(command, inspect.signature(command, eval_str=True).parameters.values())


def with_parameters(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """The command with these parameters in its signature, from which typer reads the options."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for each in parameters:
        if is_dataclass(each.annotation):
            groups[each.name] = each.annotation
            options += _fields_of(each.annotation)
        else:
            options.append(keyword(each.name, each.default, each.annotation))

    def run(**given: Any) -> None:
        values: dict[str, Any] = {}
        for name, group in groups.items():
            values[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given, **values)

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in options}
    return run


def keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _fields_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [keyword(field.name, _default(field), types[field.name]) for field in fields(group)]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default
