"""The commands that analyse finished runs, made of the classes in `gasam.lab.analyses`, `reproduce` and `doctor`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from gasam import doctor as check
from gasam.lab import api
from gasam.lab.analyses import KINDS, Analysis, measure_all
from gasam.lab.cli.options import RUNS, command, listed
from gasam.lab.cli.training import show
from gasam.lab.display import Live, console, print_json, print_table, say
from gasam.lab.engines import Place
from gasam.lab.engines.engine import Engine, raise_failed
from gasam.lab.errors import InputError
from gasam.lab.paper import tables
from gasam.lab.paper.figures import FIGURES
from gasam.lab.record import AnalysisRecord
from gasam.lab.report.comparison import configuration_labels
from gasam.lab.tasks import SIZE_NAMES, Origin

WALKS = ("paper", "recommended", "tuned")
ARGUMENTS = """

Args:
    run: Records of finished runs, such as runs/NAME.json.
    out: Folder for the records and pictures.
"""


def add(kind: type[Analysis]) -> None:

    def measure(
        run: list[Path],
        *,
        analysis: Any,
        data: Origin,
        place: Place,
        out: Path = RUNS / "analysis",
        cpu: bool = False,
        json: bool = False,
    ) -> None:
        with place.engine(cpu) as engine:
            found = measured(analysis, run, out, data, engine, cpu)
        labels = configuration_labels(found)
        table, files = analysis.table(found, labels), analysis.save(found, labels, out)
        if json:
            print_json(table.as_json() | {"files": [str(file) for file in files]})
        else:
            print_table(table, files)

    measure.__name__, measure.__doc__ = str(kind.command), f"{inspect.getdoc(kind)}{ARGUMENTS}"
    command(measure, analysis=kind)


for kind in KINDS.values():
    if kind.command is not None:
        add(kind)


def measured(
    analysis: Analysis, runs: Sequence[Path], folder: Path, origin: Origin, engine: Engine, cpu: bool
) -> list[AnalysisRecord]:
    """Measure the runs that have no record yet, with progress on standard error."""
    with Live(len(runs)) as live:
        return measure_all(analysis, runs, folder, origin, engine, live.watch, cpu=cpu)


@command
def reproduce(
    study: str,
    *,
    size: str = "small",
    tasks: str | None = None,
    seeds: int | None = None,
    walks: str | None = None,
    data_dir: Path | None = None,
    place: Place,
    jobs: int | None = None,
    out: Path = RUNS,
    cpu: bool = False,
    json: bool = False,
) -> None:
    """Run a table or figure of the paper, and show the results next to the paper's. Finished runs are skipped.

    Args:
        study: table1 to table5, or figure1 to figure5.
        size: paper (the paper's settings), small (minutes) or tiny (seconds).
        tasks: Tasks, separated by commas: some of a table's tasks, or any tasks for a figure.
        seeds: Number of runs of each row. Default: 4 as in the paper, 1 for figures and table4.
        walks: Walks of a table's rows: paper (the appendix's epsilons; the default at size paper), recommended (the
            default elsewhere), or tuned (chosen by `gasam tune --quantity epsilon` with the same --out).
    """
    if size not in SIZE_NAMES:
        raise InputError(f"the paper's tables and figures are run in the sizes paper, small and tiny, got {size}")
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be a whole number >= 1, got {seeds}")
    if walks not in (None, *WALKS):
        raise InputError(f"--walks must be {', '.join(WALKS)}, got {walks!r}")
    chosen = None if tasks is None else listed("--tasks", tasks)
    origin, numbers = Origin(data_dir), None if seeds is None else range(1, seeds + 1)
    if study not in FIGURES:
        chosen_walks: Any = walks or ("paper" if size == "paper" else "recommended")
        source = out if chosen_walks == "tuned" else chosen_walks
        table = tables.load(study)
        with place.engine(cpu, jobs) as engine:
            done = api.run_all(table.plans(size, chosen, numbers, source, origin), out, engine, cpu=cpu)
        found = [job.record for job in done if job.record is not None]
        beside = table.beside(found, size, chosen_walks)
        name = "-".join([study, size, *(chosen or ()), chosen_walks])
        show(beside, done, api.save(beside, found, out / "tables" / name) if found else [], json)
        return
    if walks is not None:
        raise InputError(f"--walks is for tables: leave it out for {study}")
    figure = FIGURES[study]
    folder = out / "gradient-norms" if figure.norms else out
    plans = figure.plans(size, chosen or figure.tasks, numbers or (1,), origin)
    with place.engine(cpu, jobs) as engine:
        done = api.run_all(plans, folder, engine, cpu=cpu, gradient_norms=bool(figure.norms))
        raise_failed(done)
        files, records = [folder / f"{job.name}.json" for job in done], [job.record for job in done]
        measure = partial(measured, folder=out / "analysis", origin=origin, engine=engine, cpu=cpu)
        found, saved = figure.write(out / "figures" / f"{study}-{size}", size, files, records, measure)
    if json:
        shown = [each.as_json() for each in found]
        print_json({"title": figure.title, "tables": shown, "files": [str(file) for file in saved]})
        return
    say(figure.title, console)
    for each in found:
        print_table(each, saved if each is found[-1] else ())


@command
def doctor(*, device: str | None = None) -> None:
    """Check versions, the walk in every type and the restore on this machine, in under a minute.

    Send the output with a bug report. The exit code is 1 if something failed.

    Args:
        device: Check this device, such as `cpu` or `cuda:0`. Default: the accelerator, if any.
    """
    raise typer.Exit(check.main([] if device is None else ["--device", device]))
