"""`gasam tune`: the search for epsilon in front of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gasam.cli import options as opt

SEARCH = "The search"


def tune(
    task: Annotated[str, typer.Argument(metavar="TASK", help="See `gasam tasks`.")],
    method: Annotated[str, typer.Option(help="See `gasam methods`.")] = "ga-sam",
    size: opt.Size = "small",
    norms: Annotated[str, typer.Option(help="inf, 2 or both, with a comma.", rich_help_panel=SEARCH)] = "inf,2",
    exponents: Annotated[
        str, typer.Option(help="The smallest and the largest power of ten.", rich_help_panel=SEARCH)
    ] = "-6,0",
    budget: Annotated[int | None, typer.Option(help="At most that many tries.", rich_help_panel=SEARCH)] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="A try that loses more of the baseline's worth has collapsed.", rich_help_panel=SEARCH),
    ] = 0.02,
    full_grid: Annotated[
        bool,
        typer.Option("--full-grid", help="Try all of {1, 2, 5, 8} x 10^k to the end: dear.", rich_help_panel=SEARCH),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of every try; results are taken with others.")] = 0,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    text_column: opt.TextColumn = "text",
    label_column: opt.LabelColumn = "label",
    data_dir: opt.DataDir = None,
    epochs: opt.Epochs = None,
    settings: opt.Set = [],  # noqa: B006  typer reads it
    jobs: opt.Jobs = None,
    out: opt.Out = Path("runs"),
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """Find a method's epsilon on validation: its order of magnitude by bisection, then the grid within it.

    `gasam tune imdb --method ga-sam --norms inf`, then `gasam compare imdb --tuned`
    """
    from gasam.cli.sessions import search
    from gasam.experiments.search.tuning import Question
    from gasam.experiments.sizes import in_records
    from gasam.experiments.tasks import Origin

    question = Question(
        task,
        method,
        in_records(task, size),
        seed,
        Origin(data_dir, train, valid, test, text_column, label_column),
        opt.settings(settings, epochs),
        tuple(opt.norm(text, "--norms", "2, inf or both") for text in opt.listed("--norms", norms)),
        opt.exponents(exponents),
        tolerance,
    )
    search(question, out, None if budget is None else opt.positive("--budget", budget), full_grid, jobs, cpu, json)
