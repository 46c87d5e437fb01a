"""The exception for mistakes that the user can correct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)

ALLOWED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "literal_error": "one of {expected}",
    "greater_than": "> {gt:g}",
    "greater_than_equal": ">= {ge:g}",
    "less_than": "< {lt:g}",
    "less_than_equal": "<= {le:g}",
}
"""What is allowed by the kind of pydantic's error; other kinds are said in pydantic's words."""


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
    of_kind = not place and fault["type"].endswith("_type")
    nullable = of_kind and type(None) in get_args(model.model_fields[name].annotation)
    raise InputError(f"{name} must {allowed(fault)}{' or null' if nullable else ''}, got {fault['input']!r}")


def allowed(fault: Mapping[str, Any]) -> str:
    """What a value must be, of one of pydantic's errors."""
    if known := ALLOWED.get(fault["type"]):
        return f"be {known.format(**fault.get('ctx', {}))}"
    return fault["msg"].partition("should ")[2].partition(" after validation")[0] or "have more items"
