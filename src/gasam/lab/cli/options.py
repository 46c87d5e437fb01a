"""The options that several commands share, in groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gasam.lab.cli.option_values import assignments, chosen_settings, positive, steps_or_share
from gasam.lab.command_text import parsed_norm
from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.engines.engine import Engine
    from gasam.lab.tasks import Origin

WALK, DATA, RUN, PLACE = "The walk", "The data", "The run", "The machines"
RUNS = Path("runs")


def option(panel: str, help: str, *flags: str, **described: Any) -> Any:  # noqa: A002
    return typer.Option(*flags, help=help, rich_help_panel=panel, **described)


TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK", help="Name of a task, see `gasam tasks`, or a Python file with your own model, e.g. task.py."
    ),
]
MethodName = Annotated[str, typer.Option(help="Name of a method, see `gasam methods`.")]
Size = Annotated[
    str | None,
    typer.Option(
        help="paper (the paper's settings), small (default, minutes) or tiny (seconds). "
        "ptb also has medium (half an hour a run)."
    ),
]
DataDir = Annotated[
    Path | None, option(DATA, "Folder with the paper's data sets. Default: GASAM_DATA, or the user's data folder.")
]
Json = Annotated[bool, option(RUN, "Print JSON.", "--json")]
Cpu = Annotated[bool, option(RUN, "Use the CPU even if there is a GPU.", "--cpu")]
Jobs = Annotated[
    int | None,
    option(
        PLACE,
        "Number of parallel runs, one process each. Default: the number of cores, 1 with a GPU, or all that a cluster "
        "has room for.",
    ),
]
SameNoise = Annotated[bool, option(WALK, "Use the same dropout masks in every pass of a step.", "--same-noise")]
Tuned = Annotated[bool, option(WALK, "Use the walks that `gasam tune` chose with the same --out.", "--tuned")]
Track = Annotated[
    str | None,
    option(RUN, "Follow the training in a tracker, such as tensorboard, wandb or mlflow."),
]


@dataclass(frozen=True)
class DataOptions:
    """The options that say where the data is."""

    train: Annotated[str | None, option(DATA, "Your training file; for translate two files, a.de,a.en.")] = None
    valid: Annotated[str | None, option(DATA, "Your validation file. Default: a tenth of --train is held out.")] = None
    test: Annotated[str | None, option(DATA, "Your test file. Default: a tenth of --train is held out.")] = None
    text_column: Annotated[str, option(DATA, "Column with the text (classify).")] = "text"
    label_column: Annotated[str, option(DATA, "Column with the label (classify).")] = "label"
    drop_empty: Annotated[
        bool, option(DATA, "Leave out rows with an empty field (classify, translate).", "--drop-empty")
    ] = False
    data_dir: DataDir = None

    @property
    def origin(self) -> Origin:
        from gasam.lab.tasks import Origin

        return Origin(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True)
class SettingsOptions:
    """The options that change the settings of a task."""

    epochs: Annotated[int | None, option(RUN, "Number of epochs.")] = None
    settings: Annotated[
        list[str], option(RUN, "Change another setting of the task, e.g. dropout=0.3.", "--set", metavar="NAME=VALUE")
    ] = field(default_factory=list)

    settings_from: Annotated[
        Path | None,
        option(RUN, "Use the settings that a search chose: a file of `gasam tune --method baseline`.", metavar="FILE"),
    ] = None

    def changed(self, task: str, size: str | None) -> dict[str, Any]:
        """The settings that the user changes in a size of a task."""
        given = assignments("--set", self.settings) | ({} if self.epochs is None else {"epochs": self.epochs})
        return given if self.settings_from is None else chosen_settings(self.settings_from, task, size) | given


@dataclass(frozen=True)
class OutputOptions:
    """The options for the output and the device."""

    out: Annotated[Path, option(RUN, "Folder for records, checkpoints and tables.")] = RUNS
    cpu: Cpu = False
    json: Json = False


@dataclass(frozen=True)
class PlaceOptions:
    """The options that say where the work is done."""

    on: Annotated[
        str,
        option(
            PLACE,
            "Where to run: local, ray (the Ray cluster that runs on this machine), HOST:PORT or ray://HOST:PORT.",
            metavar="WHERE",
        ),
    ] = "local"
    cpus_per_run: Annotated[int | None, option(PLACE, "CPUs of each run in a cluster. Default: 1.")] = None
    gpus_per_run: Annotated[
        float | None, option(PLACE, "GPUs of each run in a cluster, e.g. 0.5. Default: 1 if it has any.")
    ] = None

    @contextmanager
    def engine(self, cpu: bool, jobs: int | None = None) -> Iterator[Engine]:
        """Open the engine; `jobs` limits the number of runs at a time."""
        from gasam.lab.engines import opened

        limits = {"--jobs": jobs, "--cpus-per-run": self.cpus_per_run}
        parallel, cpus = (None if number is None else positive(name, number) for name, number in limits.items())
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run < math.inf:
            raise InputError(f"--gpus-per-run must be a number >= 0, got {self.gpus_per_run:g}")
        with opened(self.on, parallel=parallel, cpus=cpus, gpus=self.gpus_per_run, cpu=cpu) as engine:
            yield engine


@dataclass(frozen=True)
class EngineOptions(PlaceOptions):
    """The options that say where runs are trained, and how many at a time."""

    jobs: Jobs = None

    @contextmanager
    def engine(self, cpu: bool, jobs: int | None = None) -> Iterator[Engine]:
        with super().engine(cpu, self.jobs if jobs is None else jobs) as opened:
            yield opened


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
    options: Annotated[
        list[str],
        option(WALK, "Set an option of the method, e.g. alpha=0.2 for gsam.", "--option", metavar="NAME=VALUE"),
    ] = field(default_factory=list)
    same_noise: SameNoise = False

    @property
    def changed(self) -> dict[str, Any]:
        """The options by the names that a plan uses; None for those not given."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "options"}
        return (
            given
            | assignments("--option", self.options)
            | {
                "norm": None if self.norm is None else parsed_norm(self.norm),
                "walk_start": steps_or_share("--walk-start", self.walk_start),
                "walk_warmup": steps_or_share("--walk-warmup", self.walk_warmup),
                "same_noise": self.same_noise or None,
            }
        )
