"""The execution of plans and searches with progress on the terminal, and the output of their results."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from gasam.analysis import pictures
from gasam.lab.cli.display import Live, console, describe, describe_trial, errors, label, print_json, print_table
from gasam.lab.cli.options import positive
from gasam.lab.engines.local import Job, default_jobs, prepare, run_all
from gasam.lab.engines.step_time import mean_step_times
from gasam.lab.records import RunRecord
from gasam.lab.records import as_json as as_record
from gasam.lab.report.pictures import comparison_figure
from gasam.lab.report.tuning import conclusion, tuning_figure, tuning_table
from gasam.lab.search.driver import TrialFailedError, tune
from gasam.lab.search.question import Question
from gasam.lab.storage import replaced, write_json
from gasam.lab.tables import Table, as_json, markdown
from gasam.lab.training.plan import Plan
from gasam.lab.training.run import run


def run_here(plan: Plan, out: Path, cpu: bool, json: bool, gradient_norms: bool = False) -> None:
    """Run one plan in this process, as torchrun and debuggers need. Of several processes only the first prints."""
    if os.environ.get("RANK", "0") != "0":
        run(plan, out, cpu=cpu, gradient_norms=gradient_norms)
        return
    [job] = prepared([plan], out)
    if job.record is None or gradient_norms:  # `run` checks whether a finished record has them
        with Live(1) as live:
            live.watch(job, ("start", None))
            job.record = run(
                plan,
                out,
                on_update=lambda update: live.watch(job, ("update", update)),
                cpu=cpu,
                gradient_norms=gradient_norms,
            )
    if json:
        print_json(as_record(job.record))
        return
    console.print(f"{label(job)}: {describe(job.record)}", soft_wrap=True)
    console.print(f"{out / job.name}.json, weights in {out / job.name / 'model.pt'}", soft_wrap=True)


def run_many(plans: Sequence[Plan], out: Path, jobs: int | None, cpu: bool, gradient_norms: bool = False) -> list[Job]:
    parallel = default_jobs() if jobs is None else positive("--jobs", jobs)
    found = prepared(plans, out)
    todo = [job for job in found if job.record is None]
    if len(todo) < len(found):
        errors.print(f"{len(found) - len(todo)} of {len(found)} runs are finished already", soft_wrap=True)
    with Live(len(todo)) as live:
        run_all(found, out, parallel, live.watch, cpu=cpu, gradient_norms=gradient_norms)
    return found


def search(question: Question, out: Path, jobs: int | None, cpu: bool, json: bool) -> None:
    """Run a search with a line for every trial, then save a picture and print a table and the conclusion."""
    prepared([question.plan(None)], out)
    parallel = default_jobs() if jobs is None else positive("--jobs", jobs)
    try:
        with Live(None, describe_trial) as live:
            finding = tune(question, out, parallel=parallel, watch=live.watch, cpu=cpu)
    except TrialFailedError as error:
        errors.print(f"failed: {error}; run the same command to continue", soft_wrap=True)
        raise typer.Exit(1) from None
    place = out / "tuning" / finding.name
    pictures.save(tuning_figure([finding]), place)
    if json:
        print_json(finding.as_json())
        return
    print_table(tuning_table([finding]))
    console.print(conclusion(finding), soft_wrap=True)
    console.print(f"saved: {place}.json, .png and .svg", soft_wrap=True)


def prepared(plans: Sequence[Plan], out: Path) -> list[Job]:
    with errors.status("preparing the data"):
        jobs = prepare(plans, out)
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        errors.print(f"- {note}", soft_wrap=True)
    return jobs


def timed(done: Sequence[Job], jobs: int | None, cpu: bool) -> dict[str, float]:
    """Step times relative to the baseline; empty if the measurement fails, so that the comparison is still shown."""
    try:
        with errors.status("measuring step times"):
            return mean_step_times(done, default_jobs() if jobs is None else jobs, cpu=cpu)
    except (Exception, KeyboardInterrupt) as error:
        errors.print(f"step times were not measured: {type(error).__name__} {error}", soft_wrap=True)
        return {}


def show(
    table: Table,
    records: list[RunRecord],
    jobs: Sequence[Job],
    place: Path,
    json: bool,
    times: Mapping[str, float] | None = None,
) -> None:
    """Print and save the table; exit with code 1 if a run failed."""
    failed = [job for job in jobs if job.record is None]
    if records:
        write_json(place.with_suffix(".json"), as_json(table))
        with replaced(place.with_suffix(".md")) as partial:
            partial.write_text(markdown(table), encoding="utf-8")
        comparison_figure(records, place.with_suffix(".png"), times or {})
    if json:
        print_json(as_json(table) | {"failed": [failure(job) for job in failed]})
    else:
        print_table(table)
        if records:
            console.print(f"saved: {place}.md, .json and .png", soft_wrap=True)
        for job in failed:
            console.print(f"failed: {label(job)}: {job.error}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def failure(job: Job) -> dict[str, Any]:
    return {"run": job.name, "error": job.error, "log": str(job.log)}
