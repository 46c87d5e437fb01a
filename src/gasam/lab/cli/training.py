"""The commands `gasam train` and `gasam compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from gasam.lab.cli import options as opt
from gasam.lab.cli.grouping import expanded
from gasam.lab.cli.options import DataOptions, OutputOptions, SettingsOptions, WalkOptions

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
    size: opt.Size = "small",
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 1,
    gradient_norms: GradientNorms = False,
) -> None:
    """Train one model with one method.

    Examples: `gasam train imdb --method ga-sam`, `gasam train lm --train a.txt --method sam --norm 2 --epsilon 0.05`
    """
    from gasam.lab.cli.sessions import run_here
    from gasam.lab.tasks import recorded_size
    from gasam.lab.training.plan import make

    plan = make(
        task,
        method,
        recorded_size(task, size),
        seed,
        origin=data.origin,
        settings=changes.changed,
        walk=walk.changed,
    )
    run_here(plan, output.out, output.cpu, output.json, gradient_norms)


@expanded
def compare(
    data: DataOptions,
    changes: SettingsOptions,
    output: OutputOptions,
    task: opt.TaskName = "docstrings",
    methods: Annotated[
        str | None, typer.Option(help="Methods, separated by commas. Default: the six of Table 1.")
    ] = None,
    size: opt.Size = "small",
    seeds: Annotated[int, typer.Option(help="Number of runs of each method, with the seeds 1, 2, ...")] = 1,
    walks: Walks = [],  # noqa: B006  typer reads it
    tuned: opt.Tuned = False,
    same_noise: opt.SameNoise = False,
    jobs: opt.Jobs = None,
) -> None:
    """Train several methods on one task in parallel, and compare them in a table and a figure.

    Example: `gasam compare classify --train a.csv --methods baseline,ga-sam --seeds 2 --size tiny`
    """
    from gasam.lab.cli.sessions import run_many, show, timed
    from gasam.lab.methods import TABLE1
    from gasam.lab.report.comparison import comparison
    from gasam.lab.search.tuned_walk import with_tuned_walk
    from gasam.lab.tasks import recorded_size
    from gasam.lab.training.plan import make

    size = recorded_size(task, size)
    names = opt.listed("--methods", methods) if methods is not None else list(TABLE1)
    changed = opt.walks(walks, names, same_noise)
    plans = [
        make(task, method, size, seed, origin=data.origin, settings=changes.changed, walk=changed.get(method))
        for seed in range(1, opt.positive("--seeds", seeds) + 1)
        for method in names
    ]
    if tuned:
        plans = [with_tuned_walk(plan, output.out) for plan in plans]
    done = run_many(plans, output.out, jobs, output.cpu)
    found = [job.record for job in done if job.record is not None]
    times = timed(done, jobs, output.cpu)
    table = comparison(found, task, size, opt.flags(data.origin, changes.changed, output.out), times)
    show(table, found, done, output.out / "tables" / f"{task}-{size}", output.json, times)
