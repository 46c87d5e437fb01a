"""The command `gasam reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gasam.lab.cli import option_values
from gasam.lab.cli import options as opt
from gasam.lab.cli.grouping import expanded
from gasam.lab.cli.options import EngineOptions, OutputOptions
from gasam.lab.errors import InputError

if TYPE_CHECKING:
    from gasam.lab.analyses import Analysis
    from gasam.lab.methods import Walks
    from gasam.lab.paper.figures import FigureResult
    from gasam.lab.record import AnalysisRecord
    from gasam.lab.tasks import Origin


WALKS = ("paper", "recommended", "tuned")
StudySize = Annotated[
    str,
    typer.Option(help="paper (the paper's settings), small (minutes) or tiny (seconds)."),
]


@expanded
def reproduce(
    study: Annotated[str, typer.Argument(help="table1 to table5, or figure1 to figure5.")],
    place: EngineOptions,
    output: OutputOptions,
    size: StudySize = "small",
    tasks: Annotated[
        str | None, typer.Option(help="Tasks, separated by commas: some of a table's tasks, or any tasks for a figure.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of runs of each row. Default: 4 as in the paper, 1 for figures and table4."),
    ] = None,
    walks: Annotated[
        str | None,
        typer.Option(
            help="Walks of a table's rows: paper (the appendix's epsilons; the default at size paper), recommended "
            "(the default elsewhere), or tuned (chosen by `gasam tune --quantity epsilon` with the same --out)."
        ),
    ] = None,
    data_dir: opt.DataDir = None,
) -> None:
    """Run a table or figure of the paper, and show the results next to the paper's. Finished runs are skipped."""
    from gasam.lab.paper.figures import FIGURES
    from gasam.lab.tasks import SIZE_NAMES, Origin

    if size not in SIZE_NAMES:
        raise InputError(f"the paper's tables and figures are run in the sizes paper, small and tiny, got {size}")
    chosen = option_values.listed("--tasks", tasks) if tasks is not None else None
    numbers = None if seeds is None else range(1, option_values.positive("--seeds", seeds) + 1)
    if walks not in (None, *WALKS):
        raise InputError(f"--walks must be {', '.join(WALKS)}, got {walks!r}")
    if study not in FIGURES:
        usual = "paper" if size == "paper" else "recommended"
        _table(study, size, chosen, numbers, Origin(data_dir), place, output, walks or usual)
    elif walks is not None:
        raise InputError(f"--walks is for tables: leave it out for {study}")
    else:
        _figure(study, size, chosen, numbers or (1,), Origin(data_dir), place, output)


def _table(
    name: str,
    size: str,
    tasks: Sequence[str] | None,
    seeds: Sequence[int] | None,
    origin: Origin,
    place: EngineOptions,
    output: OutputOptions,
    walks: str,
) -> None:
    from gasam.lab.cli.sessions import run_many, show
    from gasam.lab.paper import tables

    study = tables.load(name)
    source: Walks | Path = output.out if walks == "tuned" else "recommended" if walks == "recommended" else "paper"
    plans = study.plans(size, tasks, seeds, source, origin)
    with place.engine(output.cpu) as engine:
        done = run_many(plans, output.out, engine, output.cpu)
    found = [job.record for job in done if job.record is not None]
    told = "-".join([f"{name}-{size}", *(tasks or ()), walks])
    table = study.beside(found, size, source)
    show(table, found, done, output.out / "tables" / told, output.json)


def _figure(
    name: str,
    size: str,
    tasks: Sequence[str] | None,
    seeds: Sequence[int],
    origin: Origin,
    place: EngineOptions,
    output: OutputOptions,
) -> None:
    from gasam.lab.cli.display import errors, say
    from gasam.lab.cli.measuring import measured
    from gasam.lab.cli.sessions import failure, run_many
    from gasam.lab.paper.figures import FIGURES

    study = FIGURES[name]
    folder = output.out / "gradient-norms" if bool(study.norms) else output.out
    with place.engine(output.cpu) as engine:
        done = run_many(
            study.plans(size, tasks or study.tasks, seeds, origin), folder, engine, output.cpu, bool(study.norms)
        )
        failed = [failure(job) for job in done if job.record is None]
        for each in failed:
            say(f"failed: {each['run']}: {each['error']}", errors)
        if failed:
            raise typer.Exit(1)
        with errors.status(study.title) as status:

            def analyse(analysis: Analysis, files: Sequence[Path]) -> list[AnalysisRecord]:
                return measured(analysis, files, output.out / "analysis", origin, engine, status, cpu=output.cpu)

            files = [folder / f"{job.name}.json" for job in done]
            trained = [job.record for job in done]
            finding = study.find(size, files, trained, analyse)
    _show(finding, output.out / "figures" / f"{name}-{size}", output.json)


def _show(finding: FigureResult, place: Path, json: bool) -> None:
    from gasam.lab.cli.display import console, print_json, print_table, say

    saved = [str(file) for file in finding.save(place)]
    if json:
        tables = [table.as_json() for table in finding.tables]
        print_json({"title": finding.title, "tables": tables, "files": saved})
        return
    say(finding.title)
    for table in finding.tables:
        print_table(table)
    for file in saved:
        console.print(f"saved: {file}", soft_wrap=True)
