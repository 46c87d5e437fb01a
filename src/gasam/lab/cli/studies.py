"""A figure of the paper in front of the user: its runs, its measurements, its picture, its sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from gasam.lab.cli.display import console, errors, print_json, print_table
from gasam.lab.cli.sessions import failure, run_many
from gasam.lab.paper import figures
from gasam.lab.paper.figure_study import TrainedRuns
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
    study = figures.study(name)
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
        trained = TrainedRuns(
            size,
            files=[runs / f"{job.name}.json" for job in done],
            records=[job.record for job in done if job.record is not None],
            folder=out / "analysis",
            origin=origin,
            cpu=cpu,
            labels=run_labels,
            report=status.update,
        )
        finding = study.find(trained)
    files = [str(file) for file in finding.save(out / "figures" / f"{name}-{size}")]
    if json:
        tables = [as_json(table) for table in finding.tables]
        print_json({"title": finding.title, "sentence": finding.sentence, "tables": tables, "files": files})
        return
    for table in finding.tables:
        print_table(table)
    console.print(f"{finding.title}: {finding.sentence}", soft_wrap=True)
    console.print(f"saved: {', '.join(files)}", soft_wrap=True)
