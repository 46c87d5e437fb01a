"""How functions become commands, and the groups of options that several commands share."""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
import typer
from pydantic import BaseModel, TypeAdapter, ValidationError

import gasam
from gasam.lab import api, search
from gasam.lab.engines import opened
from gasam.lab.engines.engine import Engine
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


class Choice(NamedTuple):
    """An option or argument of a command: what a function or a group says about it."""

    name: str
    type: Any
    default: Any
    help: str | None
    panel: str | None = None
    positional: bool = False

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter from which typer makes the option; what typer cannot read is read as text."""
        kind, default, shown = self.type, self.default, {"help": self.help, "rich_help_panel": self.panel}
        if isinstance(default, tuple):
            kind, default = str, ",".join(f"{value:g}" for value in default)
        several = set(get_args(kind)) - {NoneType}
        if get_origin(kind) is Literal or any(get_origin(each) is Literal for each in several):
            kind = str | None  # one sentence for every wrong value, from the model
        elif several == {int, float}:
            kind, shown["metavar"] = str | None, "NUMBER"
            shown["parser"] = TypeAdapter(int | float).validate_python
        if list in (get_origin(each) for each in several):
            shown["metavar"] = "NAME=VALUE"
        told = typer.Option(f"--{self.name.replace('_', '-')}", **shown)
        if self.positional:
            told = typer.Argument(metavar=self.name.upper(), help=self.help)
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, keyword, default=default, annotation=Annotated[kind, told])


def choices(group: Any, panel: str) -> Iterator[Choice]:
    """The options of a group: the fields of a pydantic model or of a dataclass."""
    if issubclass(group, BaseModel):
        for name, field in group.model_fields.items():
            extra = field.json_schema_extra
            default = extra["text"] if isinstance(extra, dict) else field.default
            yield Choice(name, str if isinstance(extra, dict) else field.annotation, default, field.description, panel)
        return
    types, helps = get_type_hints(group), described(group)[1]
    for each in fields(group):
        yield Choice(each.name, types[each.name], each.default, helps.get(each.name), panel)


def command(function: Callable[..., None], **groups: Any) -> Callable[..., None]:
    """Add a command to `gasam`: its positional parameters are arguments, the others options.

    A parameter whose type is a dataclass, or that has a type in `groups`, stands for an option for each of its fields.
    Descriptions are from its docstring, or else from that of the function of the same name in `api`.
    """
    text, own = described(function)
    helps = SHARED | described(getattr(api, function.__name__, None))[1] | own
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(each.annotation) or each.name in groups:
            group = groups.setdefault(each.name, each.annotation)
            parameters += (choice.parameter for choice in choices(group, f"The {each.name}"))
            continue
        positional = each.kind is not inspect.Parameter.KEYWORD_ONLY
        choice = Choice(each.name, each.annotation, each.default, helps.get(each.name), positional=positional)
        parameters.append(choice.parameter)

    def run(**given: Any) -> None:
        for name, group in groups.items():
            names = [choice.name for choice in choices(group, "")]
            given[name] = checked(group, **{option: given.pop(option) for option in names})
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
        try:
            found = search.read(self.settings_from)
        except InputError as error:
            reason = str(error).removesuffix("; delete it and run again")
            raise InputError(f"--settings-from must name a file that `gasam tune` wrote: {reason}") from None
        if (found.task, found.size) != (name_of(task), size or find(task).default_size):
            raise InputError(
                f"{self.settings_from} has the settings of {found.task}, size {found.size}: use it with these"
            )
        return found.changes | given


@dataclass(frozen=True)
class Place:
    """Where the work is done.

    Args:
        on: Where to run: local, ray (the Ray cluster that runs on this machine), HOST:PORT or ray://HOST:PORT.
        cpus_per_run: CPUs of each run in a cluster. Default: 1.
        gpus_per_run: GPUs of each run in a cluster, e.g. 0.5. Default: 1 if it has any.
    """

    on: str = "local"
    cpus_per_run: int | None = None
    gpus_per_run: float | None = None

    def engine(self, cpu: bool, jobs: int | None = None) -> AbstractContextManager[Engine]:
        """Open the engine; `jobs` limits the number of runs at a time."""
        return opened(self.on, parallel=jobs, cpus=self.cpus_per_run, gpus=self.gpus_per_run, cpu=cpu)


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
