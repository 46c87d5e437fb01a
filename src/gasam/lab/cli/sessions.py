"""The execution of plans and searches with progress on the terminal, and the output of their results."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from gasam.lab.cli.display import Live, console, describe, describe_trial, errors, label, print_json, print_table, say
from gasam.lab.cli.options import OutputOptions
from gasam.lab.engines.engine import Engine, Job, do_all, prepare, train
from gasam.lab.engines.local import LocalEngine
from gasam.lab.engines.step_times import step_times
from gasam.lab.errors import InputError
from gasam.lab.output import Table, save
from gasam.lab.record import Record
from gasam.lab.record import as_json as as_record
from gasam.lab.report.comparison import Comparison
from gasam.lab.search import FOLDER, Finding, Search, tune
from gasam.lab.storage import replaced, write_json
from gasam.lab.training.plan import Plan
from gasam.lab.training.run import run

FEW_METHODS = 3
"""The name of a table lists at most this many methods."""


def run_here(
    plan: Plan, out: Path, cpu: bool, json: bool, gradient_norms: bool = False, track: str | None = None
) -> None:
    """Run one plan in this process, as torchrun and debuggers need. Of several processes only the first prints."""
    if os.environ.get("RANK", "0") != "0":
        run(plan, out, cpu=cpu, gradient_norms=gradient_norms, track=track)
        return
    [job] = prepared([plan], out)
    if job.record is not None:
        say(f"{label(job)}: already there, not run again", errors)
    if job.record is None or gradient_norms or track:  # `run` checks what a finished run lacks of them
        with Live(1) as live:
            live.watch(job, ("start", None))
            job.record = run(
                plan,
                out,
                on_update=lambda update: live.watch(job, ("update", update)),
                cpu=cpu,
                gradient_norms=gradient_norms,
                track=track,
            )
    if json:
        print_json(as_record(job.record))
        return
    say(f"{label(job)}: {describe(job, job.record)}")
    record, model = out / f"{job.name}.json", out / job.name
    console.print(f"record: {record}", soft_wrap=True)
    missing = "" if model.is_dir() else " is missing: use another --out to train it again"
    console.print(f"model: {model}{missing}", soft_wrap=True)


def run_many(
    plans: Sequence[Plan],
    out: Path,
    engine: Engine,
    cpu: bool,
    gradient_norms: bool = False,
    track: str | None = None,
) -> list[Job]:
    found = prepared(plans, out)
    todo = [job for job in found if job.record is None]
    if len(todo) < len(found):
        say(f"{len(found) - len(todo)} of {len(found)} runs are already there, not run again", errors)
    if track is not None and not isinstance(engine, LocalEngine):
        raise InputError("--track follows runs on this machine: leave out --on, or --track")
    with Live(len(todo)) as live:
        work = partial(train, cpu=cpu, gradient_norms=gradient_norms, track=track)
        do_all(found, out, engine, live.watch, work)
    return found


def search(asked: Search, out: Path, engine: Engine, cpu: bool) -> Finding:
    """Run a search with a line for every trial."""
    prepared([asked.plan()], out)
    with Live(None, describe_trial) as live:
        return tune(asked, out, engine, live.watch, cpu)


def show_search(finding: Finding, output: OutputOptions) -> None:
    """Print what a search found, and its conclusion."""
    file = output.out / FOLDER / f"{finding.name}.json"
    if output.json:
        print_json(finding.model_dump(mode="json") | {"file": str(file)})
        return
    print_table(finding.table())
    say(finding.sentence)
    console.print(f"saved: {file} and .journal", soft_wrap=True)


def prepared(plans: Sequence[Plan], out: Path) -> list[Job]:
    with errors.status("preparing the data"):
        jobs = prepare(plans, out)
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        say(f"- {note}", errors)
    return jobs


def timed(done: Sequence[Job], engine: Engine, cpu: bool) -> dict[str, float]:
    """Step times relative to the baseline; empty if the measurement fails, so that the comparison is still shown."""
    try:
        with errors.status("measuring step times"):
            return step_times(engine, done, cpu=cpu)
    except (Exception, KeyboardInterrupt) as error:
        say(f"step times were not measured: {type(error).__name__} {error}", errors)
        return {}


def table_name(front: str, jobs: Sequence[Job]) -> str:
    """A file name for the table of a comparison: other methods, data or settings give another name, more seeds do not.

    Args:
        front: The task and the size.
        jobs: The compared runs.
    """
    first = min(job.plan.seed for job in jobs)
    names = sorted(job.name for job in jobs if job.plan.seed == first)
    methods = list(dict.fromkeys(job.plan.walk.method for job in jobs))
    told = "+".join(methods) if len(methods) <= FEW_METHODS else f"{len(methods)}-methods"
    files = [re.sub(r"[^\w-]+", "-", Path(name).stem) for name in jobs[0].plan.origin.file_names[:1]]
    return "-".join([front, *files, told, hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]])


def show(
    table: Table,
    records: Sequence[Record],
    jobs: Sequence[Job],
    place: Path,
    json: bool,
    report: Callable[[Path], None] | None = None,
) -> None:
    """Print and save the table; exit with code 1 if a run failed. `report` writes an HTML page beside it."""
    failed = [job for job in jobs if job.record is None]
    page = place.with_name(f"{place.name}.html")
    if records:
        write_json(place.with_name(f"{place.name}.json"), table.as_json())
        with replaced(place.with_name(f"{place.name}.md")) as partial:
            partial.write_text(table.markdown(), encoding="utf-8")
        charts = [
            replace(chart, title=f"{each.title}: {chart.title}")
            for each in Comparison.of(records)
            for chart in each.charts()
        ]
        save(charts, place, columns=2)
        if report is not None:
            report(page)
    if json:
        print_json(table.as_json() | {"failed": [failure(job) for job in failed]})
    else:
        print_table(table)
        if records:
            console.print(f"saved: {place}.md, .json, .png and .svg", soft_wrap=True)
        if records and report is not None:
            console.print(f"report: {page}", soft_wrap=True)
        for job in failed:
            say(f"failed: {label(job)}: {job.error}")
    if failed:
        raise typer.Exit(1)


def failure(job: Job) -> dict[str, Any]:
    return {"run": job.name, "error": job.error, "log": None if job.log is None else str(job.log)}
