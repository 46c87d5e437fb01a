"""`gasam tune`: the search for the size of the walk, shown to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gasam.lab.cli import options as opt
from gasam.lab.command_text import parsed_norm

SEARCH = "The search"


def tune(
    task: Annotated[str, typer.Argument(metavar="TASK", help="See `gasam tasks`.")],
    method: Annotated[str, typer.Option(help="See `gasam methods`.")] = "ga-sam",
    size: opt.Size = "small",
    quantity: Annotated[
        str | None,
        typer.Option(
            help="budget (default, with a cap and the recommended schedule) or epsilon (the paper's form).",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    norms: Annotated[
        str | None,
        typer.Option(
            help="inf, 2 or inf,2; by default the method's own for a budget, both for epsilon.", rich_help_panel=SEARCH
        ),
    ] = None,
    exponents: Annotated[
        str | None,
        typer.Option(
            help="The smallest and the largest power of ten; by default -2,-1 for a budget, -6,0 for epsilon.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Maximum number of trials.", rich_help_panel=SEARCH)] = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="Run the baseline and up to three finalists with this many seeds, and choose by the mean.",
            rich_help_panel=SEARCH,
        ),
    ] = 1,
    cap: Annotated[
        float,
        typer.Option(
            help="Cap of the trials with a budget; the recommended walk, with its cap, is tried as well.",
            rich_help_panel=SEARCH,
        ),
    ] = 0.1,
    tolerance: Annotated[
        float,
        typer.Option(
            help="A trial that loses more than this share of what the baseline has learned has collapsed. Losses "
            "within the noise of the validation split never count.",
            rich_help_panel=SEARCH,
        ),
    ] = 0.02,
    full_grid: Annotated[
        bool,
        typer.Option(
            "--full-grid",
            help="Run every grid point {1, 2, 5, 8} x 10^k to completion (expensive).",
            rich_help_panel=SEARCH,
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the trials; take results with other seeds.")] = 0,
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
    """Choose a method's budget (or epsilon) on the validation split: bisect for the power of ten, then try a grid.

    `gasam tune imdb --method ga-sam`, then `gasam compare imdb --methods baseline,ga-sam --tuned`
    """
    from gasam.lab.cli.sessions import search
    from gasam.lab.search.question import EXPONENTS, Question, usual_norms, usual_quantity
    from gasam.lab.tasks import Origin
    from gasam.lab.tasks.sizes import in_records

    quantity = quantity or usual_quantity(method)
    texts = None if norms is None else opt.listed("--norms", norms)
    question = Question(
        task,
        method,
        in_records(task, size),
        seed,
        Origin(data_dir, train, valid, test, text_column, label_column),
        opt.settings(settings, epochs),
        quantity,
        usual_norms(method, quantity)
        if texts is None
        else tuple(parsed_norm(text, "--norms", "2, inf or both") for text in texts),
        EXPONENTS.get(quantity, (0, 0)) if exponents is None else opt.exponents(exponents),
        tolerance,
        cap,
    )
    trials = None if trials is None else opt.positive("--trials", trials)
    search(question, out, trials, opt.positive("--seeds", seeds), full_grid, jobs, cpu, json)
