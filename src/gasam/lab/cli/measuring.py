"""The measurement of finished runs with progress on the terminal: in this process one by one, or in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.status import Status

from gasam.lab import analyses
from gasam.lab.analyses import Analysis
from gasam.lab.analyses.by_engine import run_all
from gasam.lab.cli.display import errors, failed_because
from gasam.lab.engines.engine import Engine, Event, Job
from gasam.lab.engines.local import LocalEngine
from gasam.lab.record import AnalysisRecord
from gasam.lab.tasks import Origin


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
    """Measure the runs that have no record yet. On this machine they are measured one by one, each with all cores.

    Args:
        analysis: What to measure.
        runs: The records of the finished runs.
        folder: The folder for records of analyses.
        origin: Where the data of the runs is.
        engine: Where to measure.
        status: Shows the progress.
        cpu: Use the CPU even if there is a GPU.
    """
    if not isinstance(engine, LocalEngine):
        return _by_engine(analysis, runs, folder, origin, engine, status, cpu)
    found = []
    for number, run in enumerate(runs, 1):
        place = f"{number}/{len(runs)} {analysis.kind} of {run.stem}"
        report = lambda text, place=place: status.update(f"{place}: {text}")  # noqa: E731
        found.append(analyses.run(analysis, run, folder, origin, cpu=cpu, report=report))
        if not errors.is_terminal:
            errors.print(f"{place}: done", soft_wrap=True)
    return found


def _by_engine(
    analysis: Analysis,
    runs: Sequence[Path],
    folder: Path,
    origin: Origin,
    engine: Engine,
    status: Status,
    cpu: bool,
) -> list[AnalysisRecord]:
    ended = 0

    def watch(job: Job, event: Event) -> None:
        nonlocal ended
        kind, value = event
        if kind == "update":
            status.update(f"{ended}/{len(runs)} {job.name}: {value}")
        elif kind == "moved":
            errors.print(f"{job.name}: {value}", soft_wrap=True)
        elif kind != "start":
            ended += 1
            result = "done" if kind == "done" else failed_because(job)
            errors.print(f"{ended}/{len(runs)} {job.name}: {result}", soft_wrap=True)

    jobs = run_all(analysis, runs, folder, origin, engine, watch, cpu=cpu)
    if any(job.record is None for job in jobs):
        raise typer.Exit(1)
    return [job.record for job in jobs]
