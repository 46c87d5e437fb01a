"""The command `gasam tune`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from gasam.lab.cli import option_values
from gasam.lab.cli import options as opt
from gasam.lab.cli.grouping import expanded
from gasam.lab.cli.options import DataOptions, EngineOptions, OutputOptions, SettingsOptions
from gasam.lab.errors import InputError, checked

search_option = partial(opt.option, "The search")

Quantity = Annotated[
    str | None,
    search_option(
        "What to search: budget (default, with a cap and the recommended schedule), epsilon (the paper's form), "
        "settings (of training; the default for baseline), or joint (settings, budget and cap)."
    ),
]
Trials = Annotated[
    int | None, search_option("Maximum number of trials. Default: 20 for settings and joint, else the paper's order.")
]
Ranges = Annotated[
    list[str],
    search_option(
        "Range of a setting, or of norm, budget, epsilon or cap: LOW..HIGH, LOW..HIGH,log, a JSON list such as "
        "[0,0.1], or null to leave it out.",
        "--space",
        metavar="NAME=RANGE",
    ),
]
Seeds = Annotated[
    int, search_option("Run plain training and up to three best trials with this many seeds; choose by the mean.")
]


@expanded
def tune(
    task: opt.TaskName,
    data: DataOptions,
    changes: SettingsOptions,
    place: EngineOptions,
    output: OutputOptions,
    method: Annotated[
        str,
        typer.Option(
            help="Method, several separated by commas, or `family`, each with the same --trials; baseline searches the "
            "settings of plain training."
        ),
    ] = "ga-sam",
    size: opt.Size = None,
    quantity: Quantity = None,
    trials: Trials = None,
    ranges: Ranges = [],  # noqa: B006  typer reads it
    seeds: Seeds = 1,
    seed: Annotated[int, typer.Option(help="Seed of the trials. Use other seeds for results.")] = 0,
) -> None:
    """Choose a method's budget or epsilon, or the settings of training, on the validation split.

    `optuna-dashboard` shows the journal of a search. Examples: `gasam tune imdb`, then `gasam compare imdb --tuned`;
    `gasam tune imdb --method baseline`, then `gasam compare imdb --settings-from runs/search/NAME.json`
    """
    from gasam.lab.cli.display import errors, say
    from gasam.lab.cli.sessions import search, show_search
    from gasam.lab.search import Search, TrialFailedError

    names = option_values.methods_of(task, "--method", method)
    if len(names) > 1 and trials is None:
        raise InputError("several methods need the same number of trials to be comparable: add --trials 5, for example")
    if len(names) > 1 and "baseline" in names and quantity not in ("settings", "joint"):
        say("- baseline has no walk: search its settings with --method baseline", errors)
        names.remove("baseline")
    asked = partial(
        checked,
        Search,
        task=task,
        size=size,
        quantity=quantity,
        space=option_values.assignments("--space", ranges),
        trials=trials,
        seeds=seeds,
        seed=seed,
        settings=changes.changed(task, size),
        origin=data.origin,
    )
    searches = [asked(method=name) for name in names]
    try:
        with place.engine(output.cpu) as engine:
            for each in searches:
                show_search(search(each, output.out, engine, output.cpu), output)
    except TrialFailedError as error:
        say(f"failed: {error}; run the same command to continue", errors)
        raise typer.Exit(1) from None
