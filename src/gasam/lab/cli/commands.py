"""The command line `gasam`: its commands, each in the file of its group. What is slow is imported where it is used."""

from __future__ import annotations

from collections.abc import Callable

import typer

from gasam.lab.cli import analysis, listings, paper, training, tuning

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Sharpness-aware training: train, compare and report. `gasam compare` alone is a demonstration; nothing is "
    "downloaded.",
    epilog="Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted. Finished runs are not run again; "
    "interrupted ones go on.",
)
app.add_typer(listings.data_app, name="data")
COMMANDS: tuple[Callable[..., None], ...] = (
    training.train,
    training.compare,
    paper.reproduce,
    paper.results,
    listings.tasks,
    listings.methods,
    tuning.tune,
    *analysis.COMMANDS,
)
for command in COMMANDS:
    app.command()(command)
