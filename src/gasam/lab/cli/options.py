"""How functions become commands, and the groups of options that several commands share."""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import torch
import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

import gasam
from gasam.lab import api, search
from gasam.lab.errors import InputError, allowed, checked
from gasam.lab.methods import OPTIONS, Walk
from gasam.lab.tasks import Origin, find, name_of

RUNS = Path("runs")
ENTRY = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""An argument in a docstring, and its description."""
app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    help="Train models with sharpness-aware methods, compare them and report the results. Run `gasam compare` without "
    "arguments for a demonstration, which downloads nothing.",
    epilog="Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted. Finished runs are skipped; interrupted "
    "runs are continued.",
)


@app.callback(invoke_without_command=True)
def general(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the versions.")] = False
) -> None:
    if version:
        typer.echo(f"gasam {gasam.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def refusal(error: typer.TyperException) -> str:
    """What is wrong with the words of a command, in one sentence."""
    context, said = getattr(error, "ctx", None), " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, typer.BadParameter) and isinstance(error.__cause__, ValidationError):
        fault = error.__cause__.errors(include_url=False)[-1]
        name = error.param.opts[0] if error.param else "a value"
        said = f"{name} must {allowed(fault)}, got {fault['input']!r}"
    return said + (f"; see `{context.command_path} --help`" if context else "")


def described(of: Any) -> tuple[str, dict[str, str]]:
    """The docstring of a function or class without its section Args, and what this section says by name."""
    text, _, arguments = (inspect.getdoc(of) or "").partition("\n\nArgs:\n")
    return text, {name: " ".join(said.split()) for name, said in ENTRY.findall(arguments)}


SHARED = described(Walk)[1] | described(Origin)[1] | described(api.compare)[1]
SHARED |= {"json": "Print JSON.", "track": "Follow the training in a tracker, such as tensorboard, wandb or mlflow."}
"""The descriptions of options that mean the same in several commands."""


def parameter(
    name: str, kind: Any, default: Any, about: str | None, panel: str | None = None, *, positional: bool = False
) -> inspect.Parameter:
    """The parameter from which typer makes an option; what typer cannot read is text, and the model reads it."""
    told: dict[str, Any] = {"help": about, "rich_help_panel": panel}
    parts = {get_origin(each) or each for each in (kind, *get_args(kind))}
    if get_origin(kind) is tuple:
        kind, default = str, default if isinstance(default, str) else ",".join(f"{value:g}" for value in default)
    elif Literal in parts:
        kind = str
    elif {int, float} <= parts:
        kind, told["metavar"], told["parser"] = str | None, "NUMBER", TypeAdapter(int | float).validate_python
    elif list in parts:
        told["metavar"] = "NAME=VALUE"
    option = typer.Option(f"--{name.replace('_', '-')}", **told)
    if positional:
        option = typer.Argument(metavar=name.upper(), help=about)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def fields_of(group: Any) -> list[tuple[str, Any, Any, str | None]]:
    """Name, type, default and description of each field of a pydantic model or a dataclass."""
    if issubclass(group, BaseModel):
        return [(name, each.annotation, each.default, each.description) for name, each in group.model_fields.items()]
    fields, about = inspect.signature(group, eval_str=True).parameters, described(group)[1]
    return [(name, each.annotation, each.default, about.get(name)) for name, each in fields.items()]


def command(function: Callable[..., None], **groups: Any) -> Callable[..., None]:
    """Add a command to `gasam`: its positional parameters are arguments, the others options, described by docstrings.

    A parameter whose type is a dataclass, or that has a type in `groups`, stands for an option for each of its fields.
    """
    text, own = described(function)
    helps = SHARED | described(getattr(api, function.__name__, None))[1] | own
    parameters: list[inspect.Parameter] = []
    for name, each in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(each.annotation) or name in groups:
            group = groups.setdefault(name, each.annotation)
            parameters += (parameter(*field, f"The {name}") for field in fields_of(group))
        else:
            positional = each.kind is not inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter(name, each.annotation, each.default, helps.get(name), positional=positional))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = checked(group, **{option: given.pop(option) for option, *_ in fields_of(group)})
        function(**given)

    run.__name__, run.__doc__ = function.__name__, text
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command()(run)
    return function


@dataclass(frozen=True)
class Settings:
    """Changes of a task's settings.

    Args:
        epochs: Number of epochs.
        set: Change another setting of the task, e.g. dropout=0.3.
        settings_from: Use the settings that a search chose: a file of `gasam tune --method baseline`.
    """

    epochs: int | None = None
    set: list[str] | None = None
    settings_from: Path | None = None

    def changed(self, task: str, size: str | None) -> dict[str, Any]:
        """The settings that the user changes in a size of a task."""
        given = assignments("--set", self.set) | ({} if self.epochs is None else {"epochs": self.epochs})
        if self.settings_from is None:
            return given
        found = search.read(self.settings_from)
        if (found.task, found.size) != (name_of(task), size or find(task).default_size):
            raise InputError(
                f"{self.settings_from} has the settings of {found.task}, size {found.size}: use it with these"
            )
        return found.changes | given


GivenWalk = make_dataclass(
    "GivenWalk",
    [(name, Walk.model_fields[name].annotation | None, None) for name in OPTIONS]  # type: ignore[operator]
    + [("option", list[str] | None, None)],
)
"""The options of `train` that change the walk of a method; None for those not given."""
GivenWalk.__doc__ = f"{Walk.__doc__}    option: Set an option of the method, e.g. alpha=0.2 for gsam."


def assignments(option: str, texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse NAME=VALUE, where the value is JSON, such as a number, a list or null, or else text."""
    values: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"{option} must look like name=value, got {text!r}")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[name.replace("-", "_")] = tuple(parsed) if isinstance(parsed, list) else parsed
    return values


def listed(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"{option} must be one or more names separated by commas, got {text!r}")
    return names
