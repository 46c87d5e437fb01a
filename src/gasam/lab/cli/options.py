"""The options that several commands share, in groups, and the parsers of their values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gasam.lab.command_text import parsed_norm
from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.tasks import Origin

WALK, DATA, RUN = "The walk", "The data", "The run"
RUNS = Path("runs")


def option(panel: str, help: str, *flags: str, **described: Any) -> Any:  # noqa: A002
    return typer.Option(*flags, help=help, rich_help_panel=panel, **described)


TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Name of a task, see `gasam tasks`.")]
MethodName = Annotated[str, typer.Option(help="Name of a method, see `gasam methods`.")]
Size = Annotated[
    str,
    typer.Option(help="paper (the paper's settings), small (minutes), small@1 (its first version) or tiny (seconds)."),
]
DataDir = Annotated[
    Path | None, option(DATA, "Folder with the paper's data sets. Default: GASAM_DATA, or the user's data folder.")
]
Json = Annotated[bool, option(RUN, "Print JSON.", "--json")]
Cpu = Annotated[bool, option(RUN, "Use the CPU even if there is a GPU.", "--cpu")]
Jobs = Annotated[
    int | None, option(RUN, "Number of parallel runs, one process each. Default: the number of cores, or 1 with a GPU.")
]
SameNoise = Annotated[bool, option(WALK, "Use the same dropout masks in every pass of a step.", "--same-noise")]
Tuned = Annotated[bool, option(WALK, "Use the walks that `gasam tune` chose with the same --out.", "--tuned")]


@dataclass(frozen=True)
class DataOptions:
    """The options that say where the data is."""

    train: Annotated[str | None, option(DATA, "Your training file; for translate two files, a.de,a.en.")] = None
    valid: Annotated[str | None, option(DATA, "Your validation file. Default: a tenth of --train is held out.")] = None
    test: Annotated[str | None, option(DATA, "Your test file. Default: a tenth of --train is held out.")] = None
    text_column: Annotated[str, option(DATA, "Column with the text (classify).")] = "text"
    label_column: Annotated[str, option(DATA, "Column with the label (classify).")] = "label"
    data_dir: DataDir = None

    @property
    def origin(self) -> Origin:
        from gasam.lab.tasks import Origin

        return Origin(self.data_dir, self.train, self.valid, self.test, self.text_column, self.label_column)


@dataclass(frozen=True)
class SettingsOptions:
    """The options that change the settings of a task."""

    epochs: Annotated[int | None, option(RUN, "Number of epochs.")] = None
    settings: Annotated[
        list[str], option(RUN, "Change another setting of the task, e.g. dropout=0.3.", "--set", metavar="NAME=VALUE")
    ] = field(default_factory=list)

    @property
    def changed(self) -> dict[str, Any]:
        return assignments("--set", self.settings) | ({} if self.epochs is None else {"epochs": self.epochs})


@dataclass(frozen=True)
class OutputOptions:
    """The options for the output and the device."""

    out: Annotated[Path, option(RUN, "Folder for records, checkpoints and tables.")] = RUNS
    cpu: Cpu = False
    json: Json = False


@dataclass(frozen=True)
class WalkOptions:
    """The options that change the walk of a method."""

    epsilon: Annotated[float | None, option(WALK, "Radius of the ball.")] = None
    budget: Annotated[float | None, option(WALK, "Rise of the loss that a walk aims at; replaces epsilon.")] = None
    cap: Annotated[float | None, option(WALK, "Largest offset of a tensor, as a share of the norm of its weights.")] = (
        None
    )
    norm: Annotated[str | None, option(WALK, "Norm of the ball: 2, inf, or any number > 1.")] = None
    steps: Annotated[int | None, option(WALK, "Number of ascent steps, K.")] = None
    scale: Annotated[str | None, option(WALK, "Scale T, e.g. gradient_strength.")] = None
    granularity: Annotated[
        str | None, option(WALK, "Group of weights with its own T: element, filter, layer, module or model.")
    ] = None
    risk: Annotated[str | None, option(WALK, "Loss to minimise: mean (over the walk) or final (its last point).")] = (
        None
    )
    start_epoch: Annotated[int | None, option(WALK, "First epoch with a walk, counted from 1.")] = None
    walk_progress: Annotated[
        float | None, option(WALK, "Reach full strength when the loss has fallen by this share, e.g. 0.2.")
    ] = None
    walk_start: Annotated[str | None, option(WALK, "First step with a walk, or a share of training such as 0.1.")] = (
        None
    )
    walk_warmup: Annotated[str | None, option(WALK, "Steps, or a share of training, to reach full strength.")] = None
    every: Annotated[int | None, option(WALK, "Walk only on every n-th step; the other steps are plain.")] = None
    weight: Annotated[float | None, option(WALK, "Weight of the walk on a step with --every n. Default: n.")] = None
    same_noise: SameNoise = False

    @property
    def changed(self) -> dict[str, Any]:
        """The options by the names that a plan uses; None for those not given."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return as_plan_names(given) | {
            "norm": None if self.norm is None else parsed_norm(self.norm),
            "walk_start": steps_or_share("--walk-start", self.walk_start),
            "walk_warmup": steps_or_share("--walk-warmup", self.walk_warmup),
            "same_noise": self.same_noise or None,
        }


def as_plan_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a walk by the names that a plan uses."""
    from gasam.lab.walks import SHORT_NAMES

    return {SHORT_NAMES.get(name, name): value for name, value in options.items()}


def steps_or_share(option: str, text: str | None) -> float | None:
    """Parse a number of steps (an int) or a share of training (a float)."""
    if text is None:
        return None
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        raise InputError(f"{option} must be a number of steps or a share below 1, got {text!r}") from None


def assignments(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """Parse NAME=VALUE, where the value is JSON, such as a number, a list or null, or else text."""
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


def flags(origin: Origin, settings: Mapping[str, Any], out: Path) -> str:
    """The options with which another command uses the same data and settings."""
    words = []
    for each in fields(origin):
        value = getattr(origin, each.name)
        if value != each.default:
            words.append(f" --{each.name.replace('_', '-')} {shlex.quote(str(value))}")
    for name, value in settings.items():
        words.append(f" --set {shlex.quote(f'{name}={json.dumps(value)}')}")
    return "".join([*words, f" --out {shlex.quote(str(out))}"])


def listed(option: str, text: str) -> list[str]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise InputError(f"{option} must be one or more names separated by commas, got {text!r}")
    return names


def positive(option: str, number: int) -> int:
    if number < 1:
        raise InputError(f"{option} must be a whole number >= 1, got {number}")
    return number


def walks(texts: Iterable[str], methods: list[str], same_noise: bool) -> dict[str, dict[str, Any]]:
    """Parse METHOD.NAME=VALUE into options by method; `same_noise` holds for all methods."""
    changed: dict[str, dict[str, Any]] = {method: {"same_noise": same_noise or None} for method in methods}
    for text in texts:
        method, dot, assignment = text.partition(".")
        if not dot or method not in methods:
            raise InputError(
                f"--walk must look like METHOD.NAME=VALUE with METHOD one of {', '.join(methods)}, got {text!r}"
            )
        values = as_plan_names(assignments("--walk", [assignment]))
        if "norm" in values:
            values["norm"] = parsed_norm(str(values["norm"]))
        changed[method] |= values
    return changed
