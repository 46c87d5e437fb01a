"""The commands `gasam train` and `gasam compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gasam.lab.cli import option_values
from gasam.lab.cli import options as opt
from gasam.lab.cli.grouping import expanded
from gasam.lab.cli.options import DataOptions, EngineOptions, OutputOptions, SettingsOptions, WalkOptions

GradientNorms = Annotated[
    bool,
    opt.option(opt.RUN, "Record the mean gradient norm of every tensor in each epoch.", "--gradient-norms"),
]
Walks = Annotated[
    list[str],
    opt.option(
        opt.WALK,
        "Change an option of a method's walk, e.g. ga-sam.epsilon=1e-3.",
        "--walk",
        metavar="METHOD.NAME=VALUE",
    ),
]


@expanded
def train(
    task: opt.TaskName,
    walk: WalkOptions,
    data: DataOptions,
    changes: SettingsOptions,
    output: OutputOptions,
    method: opt.MethodName = "baseline",
    size: opt.Size = None,
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 1,
    gradient_norms: GradientNorms = False,
    track: opt.Track = None,
) -> None:
    """Train one model with one method.

    Examples: `gasam train imdb --method ga-sam`, `gasam train lm --train a.txt --method sam --norm 2 --epsilon 0.05`
    """
    from gasam.lab.cli.sessions import run_here
    from gasam.lab.training.plan import make

    option_values.check_tracker(track)
    plan = make(
        task,
        method,
        size,
        seed,
        origin=data.origin,
        settings=changes.changed(task, size),
        walk=walk.changed,
    )
    run_here(plan, output.out, output.cpu, output.json, gradient_norms, track)


@expanded
def compare(
    data: DataOptions,
    changes: SettingsOptions,
    place: EngineOptions,
    output: OutputOptions,
    task: opt.TaskName = "docstrings",
    methods: Annotated[
        str,
        typer.Option(help="Methods, separated by commas, or `family` for all of them."),
    ] = "baseline,sam,ga-sam",
    size: opt.Size = None,
    seeds: Annotated[int, typer.Option(help="Number of runs of each method, with the seeds 1, 2, ...")] = 3,
    walks: Walks = [],  # noqa: B006  typer reads it
    tuned: opt.Tuned = False,
    same_noise: opt.SameNoise = False,
    track: opt.Track = None,
) -> None:
    """Train several methods on one task in parallel, and compare them in a table, a figure and an HTML report.

    Example: `gasam compare classify --train a.csv --methods baseline,ga-sam --seeds 2 --size tiny`
    """
    from gasam.lab.cli.display import say
    from gasam.lab.cli.sessions import run_many, show, table_name, timed
    from gasam.lab.comparisons import comparison_plans
    from gasam.lab.output import Table
    from gasam.lab.report import html
    from gasam.lab.report.comparison import Comparison
    from gasam.lab.tasks import TASKS

    option_values.check_tracker(track)
    names = option_values.methods_of(task, "--methods", methods)
    settings = changes.changed(task, size)
    plans = comparison_plans(
        task,
        names,
        seeds=option_values.positive("--seeds", seeds),
        size=size,
        origin=data.origin,
        settings=settings,
        walks=option_values.walks(walks, names, same_noise),
        tuned=output.out if tuned else None,
    )
    name, size = plans[0].task_name, plans[0].size
    with place.engine(output.cpu) as engine:
        done = run_many(plans, output.out, engine, output.cpu, track=track)
        times = timed(done, engine, output.cpu)
    found = [job.record for job in done if job.record is not None]
    tune = f"gasam tune {shlex.quote(task)} --size {size}{option_values.flags(data.origin, settings, output.out)}"
    tables = [each.table(times, tune) for each in Comparison.of(found)] or [Table(f"{name}, size {size}", [])]

    def report(page: Path) -> None:
        runs = {output.out / f"{record.name}.json": record for record in found}
        html.write(page, runs, times)

    show(tables[0], found, done, output.out / "tables" / table_name(f"{name}-{size}", done), output.json, report)
    if not output.json and name in TASKS and TASKS[name].kind.startswith("twin"):
        say("This data is built in, and no evidence. On your own texts: `gasam compare classify --train YOUR.csv`")
