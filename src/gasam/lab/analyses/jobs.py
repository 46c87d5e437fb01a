"""The measurement of finished runs: one by one in this process, or as jobs of a cluster."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gasam.analysis.objective import plain_value
from gasam.lab import record
from gasam.lab.analyses.analysis import Analysis, Progress
from gasam.lab.engines.engine import Engine, Files, Job, OnEvent, do_all, raise_failed, read_files, write_files
from gasam.lab.engines.local import LocalEngine
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.tasks import Origin
from gasam.lab.training.finished import find, load


@dataclass
class AnalysisJob(Job):
    """The analysis of one run; `files` are those of the run, for a machine that does not have them."""

    analysis: Any = None
    run: Path = Path()
    origin: Origin = field(default_factory=Origin)
    files: Files | None = None
    cpu: bool = False


def measure_all(
    analysis: Analysis,
    runs: Iterable[Path],
    folder: Path,
    origin: Origin,
    engine: Engine,
    on_event: OnEvent = lambda job, event: None,
    *,
    cpu: bool = False,
) -> list[AnalysisRecord]:
    """Analyse finished runs: one by one in this process, each with all cores, or as jobs of a cluster.

    Existing records are only read, and interrupted measurements are continued. Raises `RunFailedError` if a job fails.

    Args:
        analysis: What to measure.
        runs: The records of the finished runs, NAME.json, or their folders.
        folder: The folder for records of analyses.
        origin: Where the data of the runs is. What it does not say is taken from their folders.
        engine: Where to measure.
        on_event: Called with every event of every job; an update is a short text.
        cpu: Use the CPU even if there is a GPU.
    """
    here = isinstance(engine, LocalEngine)
    jobs = []
    for run in runs:
        known = replace(find(run), data=origin)
        name = analysis.name(known.record)
        job = AnalysisJob(known.plan, name, exclusive=False, analysis=analysis, origin=origin, cpu=cpu)
        job.run, job.detail, file = Path(f"{known.folder}.json"), analysis.kind, folder / f"{name}.json"
        if file.exists():
            job.record = record.read_analysis(file)
        elif not here:
            job.data, job.files = known.read_data(), read_files(known.folder.parent, known.name)
        jobs.append(job)
    if not here:
        do_all(jobs, folder, engine, on_event, measured)
        raise_failed(jobs)
    for job in jobs:
        if job.record is None:
            # Bound now, because `job` is another one in the next round.
            on_update = partial(lambda own, text: on_event(own, ("update", text)), job)
            job.record = measured(job, folder, on_update)
            on_event(job, ("done", job.record))
    return [job.record for job in jobs]


def measured(job: AnalysisJob, folder: Path, on_update: Callable[[Any], None]) -> AnalysisRecord:
    """The work of a job: analyse its run, and write and return the record."""
    begun, code, analysis, run = time.perf_counter(), record.code(), job.analysis, job.run
    progress = Progress(folder / f".{job.name}.json", on_update)
    with tempfile.TemporaryDirectory(prefix="gasam-") as place:
        if job.files is not None:
            run = Path(place) / run.name
            write_files(Path(place), run.stem, job.files, job.files)
        loaded = load(run, job.origin if job.data is None else job.data, cpu=job.cpu)
        try:
            found = analysis.measure(loaded, progress)
        except ValueError as error:  # invalid options, explained in one sentence
            raise InputError(str(error)) from None
        made = AnalysisRecord(
            kind=analysis.kind,
            options=analysis.options(),
            run=Summary(**loaded.record.model_dump(include=set(Summary.model_fields))),
            examples=loaded.count(analysis.split, analysis.rows),
            found=plain_value(found),
            seconds=round(time.perf_counter() - begun, 2),
            machine=record.machine(next(loaded.model.parameters()).device),
            versions=record.versions(),
            **code,
        )
    record.write(folder / f"{job.name}.json", made)
    progress.file.unlink(missing_ok=True)
    return record.read_analysis(folder / f"{job.name}.json")
