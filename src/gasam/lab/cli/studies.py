"""A figure of the paper in front of the user: its runs, its measurements, its picture, its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from gasam.lab import analyses
from gasam.lab.analyses import Analysis
from gasam.lab.cli.display import console, errors, print_json, print_table
from gasam.lab.cli.sessions import failure, run_many
from gasam.lab.paper import figures
from gasam.lab.paper.figure_study import TrainedRuns
from gasam.lab.records import AnalysisRecord
from gasam.lab.report.labels import run_labels
from gasam.lab.tables import as_json
from gasam.lab.tasks import Origin


def reproduce_figure(
    name: str,
    size: str,
    tasks: Sequence[str] | None,
    seeds: Sequence[int],
    origin: Origin,
    jobs: int | None,
    out: Path,
    cpu: bool,
    json: bool,
) -> None:
    study = figures.STUDIES[name]
    runs = out / "gradient-norms" if study.gradient_norms else out
    chosen = study.usual_tasks(origin) if tasks is None else tasks
    if tasks is None and chosen != study.tasks:
        errors.print(f"- {', '.join(chosen)} instead of {', '.join(study.tasks)}, whose data is not there")
    plans = study.plans(size, chosen, seeds, origin)
    done = run_many(plans, runs, jobs, cpu, study.gradient_norms)
    failed = [failure(job) for job in done if job.record is None]
    if failed:
        for each in failed:
            errors.print(f"failed: {each['run']}: {each['error']}", soft_wrap=True)
        raise typer.Exit(1)
    with errors.status(study.title) as status:

        def analyse(analysis: Analysis, files: Sequence[Path]) -> list[AnalysisRecord]:
            found = []
            for file in files:
                report = lambda text, file=file: status.update(f"{analysis.kind} of {file.stem}: {text}")  # noqa: E731
                found.append(analyses.run(analysis, file, out / "analysis", origin, cpu=cpu, report=report))
            return found

        files = [runs / f"{job.name}.json" for job in done]
        records = [job.record for job in done if job.record is not None]
        finding = study.find(TrainedRuns(size, files, records, analyse, run_labels))
    saved = [str(file) for file in finding.save(out / "figures" / f"{name}-{size}")]
    if json:
        tables = [as_json(table) for table in finding.tables]
        print_json({"title": finding.title, "sentence": finding.sentence, "tables": tables, "files": saved})
        return
    for table in finding.tables:
        print_table(table)
    console.print(f"{finding.title}: {finding.sentence}", soft_wrap=True)
    console.print(f"saved: {', '.join(saved)}", soft_wrap=True)
