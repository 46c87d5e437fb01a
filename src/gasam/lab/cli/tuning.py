"""`gasam tune`: the search for the size of the walk, shown to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gasam.lab.cli import options as opt


def search_option(text: str, *flags: str) -> Any:
    return typer.Option(*flags, help=text, rich_help_panel="The search")


Quantity = Annotated[
    str | None,
    search_option("budget (default, with a cap and the recommended schedule) or epsilon (the paper's form)."),
]
Norms = Annotated[
    str | None, search_option("inf, 2 or inf,2; by default the method's own for a budget, both for epsilon.")
]
Exponents = Annotated[
    str | None,
    search_option("The smallest and the largest power of ten; by default -2,-1 for a budget, -6,0 for epsilon."),
]
Trials = Annotated[int | None, search_option("Maximum number of trials.")]
Seeds = Annotated[
    int, search_option("Run the baseline and up to three finalists with this many seeds, and choose by the mean.")
]
Cap = Annotated[
    float, search_option("Cap of the trials with a budget; the recommended walk, with its cap, is tried as well.")
]
Tolerance = Annotated[
    float,
    search_option(
        "A trial that loses more than this share of what the baseline has learned has collapsed. Losses within the "
        "noise of the validation split never count."
    ),
]
FullGrid = Annotated[
    bool, search_option("Run every grid point {1, 2, 5, 8} x 10^k to completion (expensive).", "--full-grid")
]


def tune(
    task: Annotated[str, typer.Argument(metavar="TASK", help="See `gasam tasks`.")],
    method: Annotated[str, typer.Option(help="See `gasam methods`.")] = "ga-sam",
    size: opt.Size = "small",
    quantity: Quantity = None,
    norms: Norms = None,
    exponents: Exponents = None,
    trials: Trials = None,
    seeds: Seeds = 1,
    cap: Cap = 0.1,
    tolerance: Tolerance = 0.02,
    full_grid: FullGrid = False,
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
    lengths = usual_norms(method, quantity)
    if norms is not None:
        lengths = tuple(opt.norm(text, "--norms", "2, inf or both") for text in opt.listed("--norms", norms))
    question = Question(
        task=task,
        method=method,
        size=in_records(task, size),
        seed=seed,
        origin=Origin(data_dir, train, valid, test, text_column, label_column),
        settings=opt.settings(settings, epochs),
        quantity=quantity,
        norms=lengths,
        exponents=EXPONENTS.get(quantity, (0, 0)) if exponents is None else opt.exponents(exponents),
        tolerance=tolerance,
        cap=cap,
        trials=None if trials is None else opt.positive("--trials", trials),
        seeds=opt.positive("--seeds", seeds),
        full_grid=full_grid,
    )
    search(question, out, jobs, cpu, json)
