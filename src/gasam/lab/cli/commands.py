"""The commands of `gasam`, each from the file of its group; slow imports are inside the commands."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from typing import Annotated

import typer

import gasam
from gasam.lab.cli import checking, listings, measuring, paper, prediction, reporting, training, tuning


def show_versions(asked: bool) -> None:
    if asked:
        torch = importlib.metadata.version("torch")
        typer.echo(f"gasam {gasam.__version__}, torch {torch}, Python {platform.python_version()}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=show_versions, is_eager=True, help="Print the versions of gasam and torch, and exit."
    ),
]
HELP = (
    "Train models with sharpness-aware methods, compare them and report the results. Run `gasam compare` without "
    "arguments for a demonstration, which downloads nothing."
)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help=HELP,
    epilog="Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted. Finished runs are skipped; interrupted "
    "runs are continued.",
)
app.add_typer(listings.data_app, name="data")


@app.callback(help=HELP)
def general(version: Version = False) -> None:
    """Read the options that come before a command."""


COMMANDS: tuple[Callable[..., None], ...] = (
    training.train,
    training.compare,
    prediction.predict,
    paper.reproduce,
    reporting.report,
    listings.tasks,
    listings.methods,
    tuning.tune,
    checking.doctor,
    *measuring.COMMANDS,
)
for command in COMMANDS:
    app.command()(command)
