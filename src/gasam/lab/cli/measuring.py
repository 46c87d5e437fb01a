"""The commands that analyse finished runs, made of the classes in `gasam.lab.analyses`, and `gasam doctor`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from gasam import doctor as check
from gasam.lab.analyses import KINDS, Analysis, measure_all
from gasam.lab.cli.options import RUNS, Place, command
from gasam.lab.display import Live, print_json, print_table
from gasam.lab.engines.engine import Engine
from gasam.lab.record import AnalysisRecord
from gasam.lab.report.comparison import configuration_labels
from gasam.lab.tasks import Origin

ARGUMENTS = """

Args:
    run: Records of finished runs, such as runs/NAME.json.
    out: Folder for the records and pictures.
"""


def add(kind: type[Analysis]) -> None:
    """Add the command of an analysis."""

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
        jobs = measure_all(analysis, runs, folder, origin, engine, live.watch, cpu=cpu)
    if any(job.record is None for job in jobs):
        raise typer.Exit(1)
    return [job.record for job in jobs]


@command
def doctor(*, device: str | None = None) -> None:
    """Check versions, the walk in every type and the restore on this machine, in under a minute.

    Send the output with a bug report. The exit code is 1 if something failed.

    Args:
        device: Check this device, such as `cpu` or `cuda:0`. Default: the accelerator, if any.
    """
    raise typer.Exit(check.main([] if device is None else ["--device", device]))
