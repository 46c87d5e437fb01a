"""The commands of `gasam`. What is slow to import is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gasam.lab.cli import analysis, tuning
from gasam.lab.cli import options as opt

if TYPE_CHECKING:
    from gasam.lab.tables import Table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    help="Sharpness-aware training: train, compare and report. `gasam compare` alone is a demonstration; nothing is "
    "downloaded.",
    epilog="Exit codes: 0 done, 1 a run failed, 2 bad input, 130 interrupted. Finished runs are not run again; "
    "interrupted ones go on.",
)
data_app = typer.Typer(no_args_is_help=False, invoke_without_command=True, help="What data each task needs and has.")
app.add_typer(data_app, name="data")

RUNS = Path("runs")
TaskName = Annotated[str, typer.Argument(metavar="TASK", help="See `gasam tasks`.")]


@app.command()
def train(
    task: TaskName,
    method: Annotated[str, typer.Option(help="See `gasam methods`.")] = "baseline",
    size: opt.Size = "small",
    seed: Annotated[int, typer.Option(help="All randomness comes from it.")] = 1,
    epsilon: opt.Epsilon = None,
    budget: opt.Budget = None,
    cap: opt.Cap = None,
    norm: opt.Norm = None,
    steps: opt.Steps = None,
    scale: opt.Scale = None,
    granularity: opt.Granularity = None,
    risk: opt.Risk = None,
    start_epoch: opt.StartEpoch = None,
    walk_progress: opt.WalkProgress = None,
    walk_start: opt.WalkStart = None,
    walk_warmup: opt.WalkWarmup = None,
    every: opt.Every = None,
    weight: opt.Weight = None,
    same_noise: opt.SameNoise = False,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    text_column: opt.TextColumn = "text",
    label_column: opt.LabelColumn = "label",
    data_dir: opt.DataDir = None,
    epochs: opt.Epochs = None,
    settings: opt.Set = [],  # noqa: B006  typer reads it
    gradient_norms: Annotated[
        bool,
        typer.Option(
            "--gradient-norms",
            help="Put each epoch's mean gradient norm of every tensor into the record.",
            rich_help_panel=opt.RUN,
        ),
    ] = False,
    out: opt.Out = RUNS,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """Train one model by one method.

    `gasam train imdb --method ga-sam`, `gasam train lm --train a.txt --method sam --norm 2 --epsilon 0.05`
    """
    from gasam.lab.cli.sessions import run_here
    from gasam.lab.tasks import Origin
    from gasam.lab.tasks.sizes import in_records
    from gasam.lab.training.plan import make

    walk = {
        "epsilon": epsilon,
        "budget": budget,
        "cap": cap,
        "norm": opt.norm(norm),
        "steps": steps,
        "scale": scale,
        "granularity": granularity,
        "risk": risk,
        "start_epoch": start_epoch,
        "walk_progress": walk_progress,
        "walk_start": opt.steps_or_share("--walk-start", walk_start),
        "walk_warmup": opt.steps_or_share("--walk-warmup", walk_warmup),
        "walk_every": every,
        "walk_weight": weight,
        "same_noise": same_noise or None,
    }
    origin = Origin(data_dir, train, valid, test, text_column, label_column)
    chosen = opt.settings(settings, epochs)
    plan = make(task, method, in_records(task, size), seed, origin=origin, settings=chosen, walk=walk)
    run_here(plan, out, cpu, json, gradient_norms)


@app.command()
def compare(
    task: TaskName = "docstrings",
    methods: Annotated[str | None, typer.Option(help="Names with commas; the six of Table 1 by default.")] = None,
    size: opt.Size = "small",
    seeds: Annotated[int, typer.Option(help="Runs of each method, with seeds 1, 2, ...")] = 1,
    walks: Annotated[
        list[str],
        typer.Option("--walk", metavar="METHOD.NAME=VALUE", help="E.g. ga-sam.epsilon=1e-3.", rich_help_panel=opt.WALK),
    ] = [],  # noqa: B006  typer reads it
    tuned: opt.Tuned = False,
    same_noise: opt.SameNoise = False,
    train: opt.Train = None,
    valid: opt.Valid = None,
    test: opt.Test = None,
    text_column: opt.TextColumn = "text",
    label_column: opt.LabelColumn = "label",
    data_dir: opt.DataDir = None,
    epochs: opt.Epochs = None,
    settings: opt.Set = [],  # noqa: B006  typer reads it
    jobs: opt.Jobs = None,
    out: opt.Out = RUNS,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """Compare methods on one task: all of them, all seeds, in parallel; a table and a figure at the end.

    `gasam compare classify --train a.csv --methods baseline,ga-sam --seeds 2 --size tiny`
    """
    from gasam.lab.cli.sessions import run_many, show, timed
    from gasam.lab.methods import TABLE1
    from gasam.lab.report.comparison import comparison
    from gasam.lab.search.tuned import with_tuned_walk
    from gasam.lab.tasks import Origin
    from gasam.lab.tasks.sizes import in_records
    from gasam.lab.training.plan import make

    size = in_records(task, size)
    origin = Origin(data_dir, train, valid, test, text_column, label_column)
    names = opt.listed("--methods", methods) if methods is not None else list(TABLE1)
    chosen = opt.settings(settings, epochs)
    changed = opt.walks(walks, names, same_noise)
    plans = [
        make(task, method, size, seed, origin=origin, settings=chosen, walk=changed.get(method))
        for seed in range(1, opt.positive("--seeds", seeds) + 1)
        for method in names
    ]
    if tuned:
        plans = [with_tuned_walk(plan, out) for plan in plans]
    done = run_many(plans, out, jobs, cpu)
    found = [job.record for job in done if job.record is not None]
    times = timed(done, jobs, cpu)
    table = comparison(found, task, size, opt.flags(origin, chosen, out), times)
    show(table, found, done, out / "tables" / f"{task}-{size}", json, times)


@app.command()
def reproduce(
    study: Annotated[str, typer.Argument(help="table1 to table5, figure1 to figure5, or substitutions.")],
    size: opt.Size = "small",
    tasks: Annotated[
        str | None, typer.Option(help="Only these of a table's tasks, or any others for a figure, with commas.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of each row; the paper's 4 by default, 1 for figures and table4.")
    ] = None,
    tuned: opt.Tuned = False,
    data_dir: opt.DataDir = None,
    jobs: opt.Jobs = None,
    out: opt.Out = RUNS,
    cpu: opt.Cpu = False,
    json: opt.Json = False,
) -> None:
    """Run a table or a figure of the paper, or what is missing of it, and show it beside the paper's numbers."""
    from gasam.lab.cli.sessions import run_many, show
    from gasam.lab.cli.studies import reproduce_figure
    from gasam.lab.errors import InputError
    from gasam.lab.paper import figures, studies
    from gasam.lab.report.paper_tables import study_table
    from gasam.lab.tasks import Origin

    size = "small" if size == "small@1" else size
    if "@" in size:
        raise InputError(f"the paper's tables and figures are run in the sizes paper, small@1 and tiny, got {size}")
    chosen = opt.listed("--tasks", tasks) if tasks is not None else None
    numbers = None if seeds is None else range(1, opt.positive("--seeds", seeds) + 1)
    if study in figures.NAMES:
        if tuned:
            raise InputError(f"{study} takes the paper's radii: leave --tuned out")
        reproduce_figure(study, size, chosen, numbers or (1,), Origin(data_dir), jobs, out, cpu, json)
        return
    table = studies.load(study)
    plans = table.plans(size, chosen, numbers, origin=Origin(data_dir), tuned=out if tuned else None)
    done = run_many(plans, out, jobs, cpu)
    found = [job.record for job in done if job.record is not None]
    show(study_table(table, found, size), found, done, out / "tables" / f"{study}-{size}", json)


@app.command()
def results(
    folder: Annotated[Path, typer.Argument(help="Folder of records.")] = RUNS,
    write: Annotated[
        Path | None, typer.Option(help="Write docs/results.md and README's table in this checkout of the project.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Tables of all records in a folder; nothing is run."""
    from gasam.lab import records
    from gasam.lab.cli.display import print_json, print_table
    from gasam.lab.errors import InputError
    from gasam.lab.report import pages
    from gasam.lab.report.comparison import comparison
    from gasam.lab.tables import as_json

    if write is not None:
        if json or folder != RUNS:
            raise InputError("--write takes the records of that checkout's results folder: leave FOLDER and --json out")
        for file in pages.write(write):
            typer.echo(f"wrote {file}")
        return
    found = list(records.read_all(folder))
    if not found:
        raise InputError(f"no records in {folder}: train something first, or name another folder")
    kinds = dict.fromkeys((record.task, record.size) for record in found)
    tables: list[Table] = [comparison(found, task, size) for task, size in kinds]
    if json:
        print_json([as_json(table) for table in tables])
        return
    for table in tables:
        print_table(table)


@app.command()
def tasks(json: opt.Json = False) -> None:
    """The tasks, their data and sizes."""
    from gasam.lab.cli.listings import list_tasks

    list_tasks(json)


@app.command()
def methods(
    task: Annotated[str, typer.Option(help="The task whose walks are shown.")] = "imdb",
    size: opt.Size = "small",
    json: opt.Json = False,
) -> None:
    """The methods, with what they use for a task and where that comes from."""
    from gasam.lab.cli.listings import list_methods

    list_methods(task, size, json)


@data_app.callback()
def data(context: typer.Context, data_dir: opt.DataDir = None, json: opt.Json = False) -> None:
    """What each task needs, where it was looked for, and what was found. `gasam data get TASK` downloads it."""
    if context.invoked_subcommand is None:
        from gasam.lab.cli.listings import list_data

        list_data(data_dir, json)


@data_app.command()
def get(task: TaskName, data_dir: opt.DataDir = None) -> None:
    """Download a task's data from the Hugging Face hub into the local layout. Needs gasam[download]."""
    from gasam.lab.data import download
    from gasam.lab.data.locations import data_directory

    for file in download.get(task, data_directory(data_dir)):
        typer.echo(f"{file.path}: {file.size} bytes, content {file.checksum}")


for command in (tuning.tune, *analysis.COMMANDS):
    app.command()(command)
