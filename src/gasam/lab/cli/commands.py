"""The commands of `gasam`, each from the file of its group; slow imports are inside the commands."""

from __future__ import annotations

from collections.abc import Callable

import typer

from gasam.lab.cli import analysis, listings, paper, training, tuning

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Train models with sharpness-aware methods, compare them and report the results. Run `gasam compare` without "
    "arguments for a demonstration, which downloads nothing.",
    epilog="Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted. Finished runs are skipped; interrupted "
    "runs are continued.",
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
