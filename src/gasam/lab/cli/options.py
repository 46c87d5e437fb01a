"""The options that several commands share, and what they mean to a plan."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gasam.lab.command_text import parsed_norm
from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.tasks import Origin

WALK, DATA, RUN = "The walk", "The data", "The run"

Size = Annotated[
    str,
    typer.Option(help="paper (its appendix), small (newest version, minutes), small@1 (the first) or tiny (seconds)."),
]
Out = Annotated[Path, typer.Option(help="Folder of records, checkpoints and tables.", rich_help_panel=RUN)]
Cpu = Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.", rich_help_panel=RUN)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.", rich_help_panel=RUN)]
Epochs = Annotated[int | None, typer.Option(help="How many times through the training data.", rich_help_panel=RUN)]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="Parallel runs, one process each; by default the number of cores, 1 with a GPU.", rich_help_panel=RUN
    ),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any other setting of the task, e.g. dropout=0.3.", rich_help_panel=RUN
    ),
]
SameNoise = Annotated[
    bool, typer.Option("--same-noise", help="Use the same dropout masks in every pass of a step.", rich_help_panel=WALK)
]
Tuned = Annotated[
    bool,
    typer.Option("--tuned", help="Use the walk that `gasam tune` chose, from the same --out.", rich_help_panel=WALK),
]

DataDir = Annotated[
    Path | None, typer.Option(help="Folder with the data sets; or set GASAM_DATA.", rich_help_panel=DATA)
]
Train = Annotated[
    str | None, typer.Option(help="Your training file; for translate two, a.de,a.en.", rich_help_panel=DATA)
]
Valid = Annotated[
    str | None, typer.Option(help="Your validation file; else a share is held out.", rich_help_panel=DATA)
]
Test = Annotated[str | None, typer.Option(help="Your test file; else a share is held out.", rich_help_panel=DATA)]
TextColumn = Annotated[str, typer.Option(help="Column with the text (classify).", rich_help_panel=DATA)]
LabelColumn = Annotated[str, typer.Option(help="Column with the label (classify).", rich_help_panel=DATA)]

Epsilon = Annotated[float | None, typer.Option(help="Radius of the ball.", rich_help_panel=WALK)]
Budget = Annotated[
    float | None, typer.Option(help="Rise of the loss that a walk aims at, instead of epsilon.", rich_help_panel=WALK)
]
Cap = Annotated[
    float | None, typer.Option(help="Largest offset of a tensor as a share of its weights.", rich_help_panel=WALK)
]
WalkProgress = Annotated[
    float | None,
    typer.Option(help="Full strength when the loss has fallen by this share, e.g. 0.2.", rich_help_panel=WALK),
]
WalkStart = Annotated[
    str | None, typer.Option(help="First step with a walk, or a share of training such as 0.1.", rich_help_panel=WALK)
]
WalkWarmup = Annotated[
    str | None, typer.Option(help="Steps, or a share of training, until full strength.", rich_help_panel=WALK)
]
Every = Annotated[
    int | None, typer.Option(help="Walk on every n-th step only; the others are plain.", rich_help_panel=WALK)
]
Weight = Annotated[
    float | None,
    typer.Option(help="Weight of the walk in such a step; n by default, the same over time.", rich_help_panel=WALK),
]
Norm = Annotated[str | None, typer.Option(help="2, inf, or any number > 1.", rich_help_panel=WALK)]
Steps = Annotated[int | None, typer.Option(help="K, the steps of a walk.", rich_help_panel=WALK)]
Scale = Annotated[str | None, typer.Option(help="T, e.g. gradient_strength.", rich_help_panel=WALK)]
Granularity = Annotated[str | None, typer.Option(help="element, filter, layer, module or model.", rich_help_panel=WALK)]
Risk = Annotated[str | None, typer.Option(help="mean over the walk, or final: its end.", rich_help_panel=WALK)]
StartEpoch = Annotated[int | None, typer.Option(help="First epoch with a walk, from 1.", rich_help_panel=WALK)]


def norm(text: str | None) -> float | None:
    return None if text is None else parsed_norm(text)


def steps_or_share(option: str, text: str | None) -> float | None:
    """A whole number of steps stays an int; a share is a float."""
    if text is None:
        return None
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise InputError(f"{option} must be a number of steps or a share below 1, got {text!r}") from None


def assignments(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE: numbers, lists and null as in JSON, anything else as text."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"{option} must look like name=value, got {text!r}")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[name.replace("-", "_")] = tuple(parsed) if isinstance(parsed, list) else parsed
    return values


def settings(texts: Iterable[str], epochs: int | None) -> dict[str, Any]:
    return assignments("--set", texts) | ({} if epochs is None else {"epochs": epochs})


def flags(origin: Origin, settings: Mapping[str, Any], out: Path) -> str:
    """What another command needs in order to use the same data and settings."""
    given = {f"--{field.name.replace('_', '-')}": getattr(origin, field.name) for field in fields(origin)}
    usual = {f"--{field.name.replace('_', '-')}": field.default for field in fields(origin)}
    words = [f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value != usual[name]]
    words += [f" --set {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in settings.items()]
    return "".join([*words, f" --out {shlex.quote(str(out))}"])


def listed(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"{option} must be one or more names with commas, got {text!r}")
    return names


def exponents(text: str) -> tuple[int, int]:
    try:
        low, high = (int(part) for part in listed("--exponents", text))
    except ValueError:
        raise InputError(f"--exponents must be two whole numbers with a comma, as -6,0, got {text!r}") from None
    return low, high


def positive(option: str, number: int) -> int:
    if number < 1:
        raise InputError(f"{option} must be a whole number >= 1, got {number}")
    return number


def walks(texts: Iterable[str], methods: list[str], same_noise: bool) -> dict[str, dict[str, Any]]:
    """METHOD.NAME=VALUE by method; shared masks are for all that walk."""
    changed: dict[str, dict[str, Any]] = {method: {"same_noise": same_noise or None} for method in methods}
    for text in texts:
        method, dot, assignment = text.partition(".")
        if not dot or method not in methods:
            raise InputError(
                f"--walk must look like METHOD.NAME=VALUE, METHOD one of {', '.join(methods)}, got {text!r}"
            )
        values = assignments("--walk", [assignment])
        values = {f"walk_{name}" if name in ("every", "weight") else name: value for name, value in values.items()}
        if "norm" in values:
            values["norm"] = norm(str(values["norm"]))
        changed[method] |= values
    return changed
