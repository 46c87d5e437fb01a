"""The commands `gasam compare`, `gasam train` and `gasam tune`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gasam.lab import api
from gasam.lab.cli.options import RUNS, GivenWalk, Settings, assignments, command, listed
from gasam.lab.display import Live, console, label, outcome, print_json, print_table, say
from gasam.lab.engines import Place
from gasam.lab.engines.engine import Job, raise_failed
from gasam.lab.errors import InputError, checked
from gasam.lab.output import Table
from gasam.lab.record import as_json
from gasam.lab.report import html
from gasam.lab.report.comparison import Comparison
from gasam.lab.search import FOLDER, Search
from gasam.lab.tasks import TASKS, Origin
from gasam.lab.training import tracking
from gasam.lab.training.plan import make
from gasam.lab.training.run import run


@command
def compare(
    task: str = "docstrings",
    *,
    methods: str = "baseline,sam,ga-sam",
    size: str | None = None,
    seeds: int = 3,
    walk: list[str] | None = None,
    tuned: bool = False,
    data: Origin,
    settings: Settings,
    place: Place,
    jobs: int | None = None,
    track: str | None = None,
    out: Path = RUNS,
    cpu: bool = False,
    json: bool = False,
) -> None:
    """Train several methods on one task in parallel, and compare them in a table, a figure and an HTML report.

    Example: `gasam compare classify --train a.csv --methods baseline,ga-sam --seeds 2 --size tiny`

    Args:
        methods: Methods, separated by commas, or `family` for all of them.
        walk: Change an option of a method's walk: METHOD.NAME=VALUE, e.g. ga-sam.epsilon=1e-3.
    """
    names = listed("--methods", methods)
    walks, changed = walks_of(names, walk or ()), settings.changed(task, size)
    plans = api.comparison_plans(task, names, seeds, out if tuned else None, size, data, changed, walks)
    with place.engine(cpu, jobs) as engine:
        done = api.run_all(plans, out, engine, cpu=cpu, track=track)
    found = {out / f"{job.name}.json": job.record for job in done if job.record is not None}
    name = f"{plans[0].task_name}-{plans[0].size}"
    table, files = Table(f"{name}: every run failed", []), list[Path]()
    if found:
        [comparison] = Comparison.of(found.values())
        table = comparison.table()
        if any(row.collapsed and row.walk.source != "tuned" for row in comparison.rows):
            say("- a method collapsed: `gasam tune` finds a walk for it, which --tuned then uses")
        configurations = "\n".join(sorted(job.name for job in done if job.plan.seed == 1))  # the same for more seeds
        file = out / "tables" / f"{name}-{hashlib.sha256(configurations.encode()).hexdigest()[:8]}"
        files = [*api.save(table, [*found.values()], file), file.with_name(f"{file.name}.html")]
        html.write(files[-1], found)
    show(table, done, files, json)
    if not json and task in TASKS and TASKS[task].kind.startswith("twin"):
        say("This data is built in, and no evidence. On your own: `gasam compare classify --train YOUR.csv`", console)


def walks_of(methods: Sequence[str], texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse METHOD.NAME=VALUE into options by method."""
    changed = {method: dict[str, Any]() for method in methods}
    for text in texts:
        method, dot, assignment = text.partition(".")
        if not dot or method not in methods:
            known = ", ".join(methods)
            raise InputError(f"--walk must look like METHOD.NAME=VALUE with METHOD one of {known}, got {text!r}")
        changed[method] |= assignments("--walk", [assignment])
    return changed


def show(table: Table, jobs: Sequence[Job], files: Sequence[Path], json: bool) -> None:
    """Print the table and where it is saved, then raise if a run failed."""
    if json:
        failed = [job for job in jobs if job.record is None]
        told = [{"run": job.name, "error": job.error, "log": job.log and str(job.log)} for job in failed]
        print_json(table.as_json() | {"failed": told})
    else:
        print_table(table, files)
    raise_failed(jobs)


@partial(command, walk=GivenWalk)
def train(
    task: str,
    *,
    method: str = "baseline",
    size: str | None = None,
    seed: int = 1,
    walk: Any,
    data: Origin,
    settings: Settings,
    track: str | None = None,
    out: Path = RUNS,
    cpu: bool = False,
    json: bool = False,
) -> None:
    """Train one model with one method.

    Examples: `gasam train imdb --method ga-sam`, `gasam train lm --train a.txt --method sam --norm 2 --epsilon 0.05`

    Args:
        method: Name of a method, see `gasam methods`.
        seed: Seed of all randomness.
    """
    given = dict(vars(walk))
    options = assignments("--option", given.pop("option"))
    plan = make(task, method, size, seed, origin=data, settings=settings.changed(task, size), walk=given | options)
    if track is not None:
        tracking.check(track)
    [job] = api.prepared([plan], out)
    if job.record is not None:
        say(f"{label(job)}: already there, not run again")
    with Live(1) as live:  # in this process, as torchrun and debuggers need
        record = run(plan, out, on_update=lambda update: live.watch(job, ("update", update)), cpu=cpu, track=track)
    if json:
        print_json(as_json(record))
        return
    say(f"{plan.task_name} {method} seed {seed}: {outcome(record)}", console)
    folder = out / record.name
    say(f"record: {folder}.json", console)
    say(f"model: {folder}{'' if folder.is_dir() else ' is missing: use another --out to train it again'}", console)


@command
def tune(
    task: str,
    *,
    method: str = "ga-sam",
    size: str | None = None,
    quantity: str | None = None,
    trials: int | None = None,
    space: list[str] | None = None,
    seeds: int = 1,
    seed: int = 0,
    data: Origin,
    settings: Settings,
    place: Place,
    jobs: int | None = None,
    out: Path = RUNS,
    cpu: bool = False,
    json: bool = False,
) -> None:
    """Choose a method's budget or epsilon, or the settings of training, on the validation split.

    `optuna-dashboard` shows the journal of a search. Examples: `gasam tune imdb`, then `gasam compare imdb --tuned`;
    `gasam tune imdb --method baseline`, then `gasam compare imdb --settings-from runs/search/NAME.json`

    Args:
        method: Name of a method; baseline searches the settings of plain training.
        space: Range of a setting, or of norm, budget, epsilon or cap: NAME=LOW..HIGH, NAME=LOW..HIGH,log, a JSON list
            such as NAME=[0,0.1], or NAME=null to leave it out.
    """
    ranges, changed = assignments("--space", space), settings.changed(task, size)
    options = {"size": size, "quantity": quantity, "trials": trials, "seeds": seeds, "seed": seed, "origin": data}
    asked = checked(Search, task=task, method=method, space=ranges, settings=changed, **options)
    with place.engine(cpu, jobs) as engine:
        found = api.find(asked, out, engine, cpu=cpu)
    file = out / FOLDER / f"{found.name}.json"
    if json:
        print_json(found.model_dump(mode="json") | {"file": str(file)})
    else:
        print_table(found.table(), [file, file.with_suffix(".journal")])
        say(found.sentence, console)
