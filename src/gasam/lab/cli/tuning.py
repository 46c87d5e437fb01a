"""The command `gasam tune`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from gasam.lab.cli import option_values
from gasam.lab.cli import options as opt
from gasam.lab.cli.grouping import expanded
from gasam.lab.cli.options import DataOptions, EngineOptions, OutputOptions, SettingsOptions
from gasam.lab.command_text import parsed_norm
from gasam.lab.errors import InputError

search_option = partial(opt.option, "The search")


Quantity = Annotated[
    str | None,
    search_option(
        "What to search: budget (default, with a cap and the recommended schedule), epsilon, settings (of training; "
        "the default for baseline), or joint (settings, budget and cap)."
    ),
]
Norms = Annotated[
    str | None,
    search_option("Norms to search: inf, 2 or inf,2. Default: the method's own for a budget, both for epsilon."),
]
Exponents = Annotated[
    str | None,
    search_option("Smallest and largest power of ten. Default: -2,-1 for a budget, -6,0 for epsilon."),
]
Trials = Annotated[int | None, search_option("Maximum number of trials. Default for settings: 20.")]
Evaluations = Annotated[
    int | None, search_option("Start no more trials after this many gradient evaluations (settings, joint).")
]
Ranges = Annotated[
    list[str],
    search_option(
        "Range of a setting: LOW..HIGH, LOW..HIGH,log, a JSON list such as [0,0.1], or null to leave it out "
        "(settings, joint).",
        "--space",
        metavar="NAME=RANGE",
    ),
]
Seeds = Annotated[
    int, search_option("Run the baseline and up to three finalists with this many seeds, and choose by the mean.")
]
Cap = Annotated[
    float | None,
    search_option(
        "Cap of the trials with a budget. The recommended walk, with its own cap, is tried as well. Default: 0.1."
    ),
]
Tolerance = Annotated[
    float | None,
    search_option(
        "A trial has collapsed if it loses more than this share of the baseline's gain over guessing (or of its "
        "perplexity), and more than the noise of the validation split. Default: 0.02."
    ),
]
FullGrid = Annotated[
    bool, search_option("Run every grid point {1, 2, 5, 8} x 10^k to completion (expensive).", "--full-grid")
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
    norms: Norms = None,
    exponents: Exponents = None,
    trials: Trials = None,
    evaluations: Evaluations = None,
    ranges: Ranges = [],  # noqa: B006  typer reads it
    seeds: Seeds = 1,
    cap: Cap = None,
    tolerance: Tolerance = None,
    full_grid: FullGrid = False,
    seed: Annotated[int, typer.Option(help="Seed of the trials. Use other seeds for results.")] = 0,
) -> None:
    """Choose a method's budget or epsilon, or the settings of training, on the validation split.

    Examples: `gasam tune imdb`, then `gasam compare imdb --tuned`; `gasam tune imdb --method baseline`, then
    `gasam compare imdb --settings-from runs/settings/NAME.json`
    """
    from gasam.lab.cli.display import errors, say
    from gasam.lab.cli.sessions import search, show_search
    from gasam.lab.families.spaces import parsed_space
    from gasam.lab.search.asking import ask
    from gasam.lab.search.driver import TrialFailedError
    from gasam.lab.tasks import find

    names = option_values.methods_of(task, "--method", method)
    if len(names) > 1 and trials is None and not full_grid:
        raise InputError("several methods need the same number of trials to be comparable: add --trials 5, for example")
    if len(names) > 1 and "baseline" in names and quantity not in ("settings", "joint"):
        say("- baseline has no walk: search its settings with --method baseline", errors)
        names.remove("baseline")
    question = partial(
        ask,
        quantity=quantity,
        of_walk={
            "norms": None if norms is None else _norms(norms),
            "exponents": None if exponents is None else _exponents(exponents),
            "cap": cap,
            "tolerance": tolerance,
            "full_grid": full_grid or None,
        },
        of_settings={
            "space": parsed_space(option_values.assignments("--space", ranges)) or None,
            "evaluations": option_values.positive("--evaluations", evaluations),
        },
        trials=option_values.positive("--trials", trials),
        task=task,
        size=size or find(task).default_size,
        seed=seed,
        origin=data.origin,
        settings=changes.changed(task, size),
        seeds=option_values.positive("--seeds", seeds),
    )
    questions = [question(name) for name in names]
    try:
        with place.engine(output.cpu) as engine:
            for each in questions:
                show_search(search(each, output.out, engine, output.cpu), output)
    except TrialFailedError as error:
        say(f"failed: {error}; run the same command to continue", errors)
        raise typer.Exit(1) from None


def _norms(text: str) -> tuple[float, ...]:
    return tuple(parsed_norm(part, "--norms", "2, inf or both") for part in option_values.listed("--norms", text))


def _exponents(text: str) -> tuple[int, int]:
    try:
        low, high = (int(part) for part in option_values.listed("--exponents", text))
    except ValueError:
        raise InputError(f"--exponents must be two whole numbers such as -6,0, got {text!r}") from None
    return low, high
