"""The commands that analyse finished runs, generated from the classes in `gasam.lab.analyses`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import typer
from rich.status import Status

from gasam.lab.analyses import KINDS, Analysis, measure_all
from gasam.lab.cli import options as opt
from gasam.lab.cli.display import console, errors, failed_because, print_json, print_table
from gasam.lab.cli.grouping import keyword, with_parameters
from gasam.lab.cli.options import DataOptions, PlaceOptions
from gasam.lab.engines.engine import Engine, Event, Job
from gasam.lab.errors import checked
from gasam.lab.record import AnalysisRecord
from gasam.lab.report.comparison import configuration_labels
from gasam.lab.tasks import Origin

Runs = Annotated[list[Path], typer.Argument(metavar="RUN", help="Records of finished runs, such as runs/NAME.json.")]


@dataclass(frozen=True)
class AnalysisOutput:
    """The options for the output and the device of an analysis."""

    out: Annotated[Path, opt.option(opt.RUN, "Folder for the records and pictures.")] = opt.RUNS / "analysis"
    cpu: opt.Cpu = False
    json: opt.Json = False


def generated(kind: type[Analysis]) -> Callable[..., None]:
    """Make the command of an analysis, with its options and the options that all analyses share."""

    def command(runs: list[Path], data: DataOptions, place: PlaceOptions, output: AnalysisOutput, **given: Any) -> None:
        analysis = checked(kind, **given)
        with place.engine(output.cpu) as engine, errors.status("loading") as status:
            found = measured(analysis, runs, output.out, data.origin, engine, status, cpu=output.cpu)
        show(analysis, found, output)

    command.__name__ = str(kind.command)
    command.__doc__ = kind.__doc__
    groups = {"data": DataOptions, "place": PlaceOptions, "output": AnalysisOutput}
    shared = [keyword(name, None, group) for name, group in groups.items()]
    return with_parameters(command, [keyword("runs", inspect.Parameter.empty, Runs), *_parameters(kind), *shared])


def measured(
    analysis: Analysis,
    runs: Sequence[Path],
    folder: Path,
    origin: Origin,
    engine: Engine,
    status: Status,
    *,
    cpu: bool = False,
) -> list[AnalysisRecord]:
    """Measure the runs that have no record yet, with progress on the terminal. See `measure_all` for the arguments."""
    ended = 0

    def watch(job: Job, event: Event) -> None:
        nonlocal ended
        kind, value = event
        if kind == "update":
            status.update(f"{ended + 1}/{len(runs)} {job.name}: {value}")
        elif kind == "moved":
            errors.print(f"{job.name}: {value}", soft_wrap=True)
        elif kind != "start":
            ended += 1
            result = "done" if kind == "done" else failed_because(job)
            errors.print(f"{ended}/{len(runs)} {job.name}: {result}", soft_wrap=True)

    jobs = measure_all(analysis, runs, folder, origin, engine, watch, cpu=cpu)
    if any(job.record is None for job in jobs):
        raise typer.Exit(1)
    return [job.record for job in jobs]


def show(analysis: Analysis, found: Sequence[AnalysisRecord], output: AnalysisOutput) -> None:
    """Print and save the table and the charts."""
    labels = configuration_labels(found)
    files = analysis.save(found, labels, output.out)
    table = analysis.table(found, labels)
    if output.json:
        print_json(table.as_json() | {"files": files})
        return
    print_table(table)
    for file in files:
        console.print(f"saved: {file}", soft_wrap=True)


def _parameters(kind: type[Analysis]) -> Iterator[inspect.Parameter]:
    """The fields of an analysis as parameters of a function signature, from which typer reads the options."""
    for name, field in kind.model_fields.items():
        annotation, default = field.annotation, field.default
        if isinstance(default, tuple):
            extra = field.json_schema_extra
            annotation = str
            default = extra["text"] if isinstance(extra, dict) else ",".join(map(str, default))
        elif get_origin(annotation) is Literal:
            annotation = str  # one sentence for every wrong value, from the analysis
        yield keyword(name, default, Annotated[annotation, typer.Option(help=field.description)])


COMMANDS = [generated(kind) for kind in KINDS.values() if kind.command]
