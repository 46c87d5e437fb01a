"""The execution of analyses by an engine: each measurement is a job, which gets the weights of its runs as bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from gasam.lab import analyses
from gasam.lab import record as records
from gasam.lab.analyses.definition import Analysis
from gasam.lab.analyses.loading import plan_of, planned
from gasam.lab.engines.engine import Engine, Files, Job, OnEvent, do_all, read_files
from gasam.lab.record import AnalysisRecord
from gasam.lab.tasks import Origin
from gasam.lab.training.loop import OnUpdate
from gasam.lab.training.stored import find_run


@dataclass
class AnalysisJob(Job):
    """The analysis of one run.

    Args:
        analysis: What to measure.
        run: The name of the run.
        files: The record and the files of the run, and of other runs that the options name.
        cpu: Use the CPU even if there is a GPU.
    """

    analysis: Analysis | None = None
    run: str = ""
    files: Files | None = None
    cpu: bool = False


def run_all(
    analysis: Analysis,
    runs: Sequence[Path],
    folder: Path,
    origin: Origin,
    engine: Engine,
    on_event: OnEvent,
    *,
    cpu: bool = False,
) -> list[AnalysisJob]:
    """Analyse finished runs; the records are those of the jobs. Existing records are only read.

    Args:
        analysis: What to measure.
        runs: The records of the finished runs, NAME.json.
        folder: The folder for records of analyses.
        origin: Where the data of the runs is.
        engine: Where to measure.
        on_event: Called with every event of every job; an update is a short text.
        cpu: Use the CPU even if there is a GPU.
    """
    jobs = [_job(analysis, run, folder, origin, cpu) for run in runs]
    do_all(jobs, folder, engine, on_event, measure)
    return jobs


def measure(job: AnalysisJob, folder: Path, on_update: OnUpdate) -> AnalysisRecord:
    """The work of the job: write the files of its runs to a temporary folder, and analyse them."""
    assert job.analysis is not None
    assert job.files is not None
    with tempfile.TemporaryDirectory(prefix="gasam-") as place:
        for name, content in job.files.items():
            (Path(place) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(place) / name).write_bytes(content)
        moved: dict[str, Any] = {
            name: Path(place) / f"{run.stem}.json" for name, run in _named_runs(job.analysis).items()
        }
        report: Any = on_update
        return analyses.run(
            replace(job.analysis, **moved),
            Path(place) / f"{job.run}.json",
            folder,
            job.plan.origin,
            cpu=job.cpu,
            report=report,
        )


def _job(analysis: Analysis, run: Path, folder: Path, origin: Origin, cpu: bool) -> AnalysisJob:
    found = find_run(run)
    name = analyses.name(analysis, found.name, found.record)
    plan, file = plan_of(found, origin), folder / f"{name}.json"
    job = AnalysisJob(plan, name, exclusive=False, analysis=analysis, run=found.name, cpu=cpu)
    if file.exists():
        job.record = records.read_analysis(file)
        return job
    _, job.data = planned(found, origin)
    job.files = {}
    for each in (found, *map(find_run, _named_runs(analysis).values())):
        job.files |= read_files(each.folder.path.parent, each.name)
    return job


def _named_runs(analysis: Analysis) -> dict[str, Path]:
    """The options that name other runs."""
    values = {each.name: getattr(analysis, each.name) for each in fields(analysis)}
    return {name: value for name, value in values.items() if isinstance(value, Path)}
