"""The exception for mistakes that the user can correct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

ALLOWED = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "literal_error": "one of {expected}",
    "greater_than": "> {gt:g}",
    "greater_than_equal": ">= {ge:g}",
    "less_than": "< {lt:g}",
    "less_than_equal": "<= {le:g}",
}
"""What is allowed by the type of pydantic's error, or its first word; other types are said in pydantic's words."""


class InputError(ValueError):
    """Invalid input. The message is one sentence that names the input, what is allowed and the cure.

    The command line prints only this message, without a traceback.
    """


class RunFailedError(RuntimeError):
    """A run failed, and the message names its log. The others were finished first; the same call repeats only this."""


def checked(model: type[Model], /, **values: Any) -> Model:
    """Make a pydantic model of values that a user gave; raise `InputError` in one sentence for a wrong one."""
    from pydantic import ValidationError

    try:
        return model(**values)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    if fault["type"] == "value_error":
        raise InputError(str(fault["ctx"]["error"]))
    name, *place = map(str, fault["loc"])
    if fault["type"] == "extra_forbidden":
        raise InputError(f"there is no {name!r}: there are {', '.join(model.model_fields)}")
    if fault["type"] == "missing" and not place:
        raise InputError(f"{name} must be given")
    raise InputError(f"{name} must {allowed(fault)}, got {fault['input']!r}")


def allowed(fault: Mapping[str, Any]) -> str:
    """What a value must be, of one of pydantic's errors."""
    if known := ALLOWED.get(fault["type"]) or ALLOWED.get(fault["type"].partition("_")[0]):
        return f"be {known.format(**fault.get('ctx', {}))}"
    return fault["msg"].partition("should ")[2].partition(" after validation")[0] or "have more items"
