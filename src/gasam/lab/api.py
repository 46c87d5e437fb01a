"""Questions to the lab: plans become runs, and runs a comparison or a search. `gasam.lab` exports what users call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gasam.lab import output, search
from gasam.lab.display import Live, errors, say
from gasam.lab.engines import Place
from gasam.lab.engines.engine import Engine, Job, do_all, prepare, raise_failed, train
from gasam.lab.engines.local import LocalEngine
from gasam.lab.errors import InputError, RunFailedError, checked
from gasam.lab.output import Table
from gasam.lab.record import Record
from gasam.lab.report.comparison import Comparison, counted, run_list
from gasam.lab.report.html import read_runs
from gasam.lab.search import Finding, Search, with_tuned_walk
from gasam.lab.tasks import Origin
from gasam.lab.training import tracking
from gasam.lab.training.plan import Plan, family_on, make

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Origin", "RunFailedError", "compare", "runs", "tune"]


def compare(
    task: str | Path,
    methods: Sequence[str] = ("baseline", "sam", "ga-sam"),
    *,
    seeds: int = 3,
    out: str | Path = "runs",
    size: str | None = None,
    data: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    walks: Mapping[str, Mapping[str, Any]] | None = None,
    tuned: bool = False,
    on: str = "local",
    jobs: int | None = None,
    cpu: bool = False,
) -> DataFrame:
    """Train several methods on one task in parallel, and return a frame with a row for each run.

    The same as the command `gasam compare`, without its table and pictures. Every run is a process of its own. Finished
    runs are read, and interrupted ones continue.

    Args:
        task: Name of a task, see `gasam tasks`, or a Python file with your own model, e.g. task.py.
        methods: Names of the methods; `family` stands for all of them.
        seeds: Number of runs of each method, with the seeds 1, 2, ...
        out: Folder for records, models and tables.
        size: paper (the paper's settings), small (default, minutes) or tiny (seconds). ptb also has medium (half an
            hour a run). A task file has only one.
        data: Where the data is: a data folder, or your own files.
        settings: Settings of the task to change, such as {"epochs": 3}.
        walks: Options of walks to change, by method, such as {"ga-sam": {"cap": 0.02}}.
        tuned: Use the walks that `tune` chose with the same `out`.
        on: Where to run: local, ray (the Ray cluster that runs on this machine), HOST:PORT or ray://HOST:PORT.
        jobs: Number of parallel runs. Default: the number of cores, 1 with a GPU, or all that a cluster has room for.
        cpu: Use the CPU even if there is a GPU.

    Raises:
        RunFailedError: If a run fails. The message names its log file.
    """
    folder = Path(out)
    plans = comparison_plans(task, methods, seeds, folder if tuned else None, size, data, settings, walks)
    with Place(on).engine(cpu, jobs) as engine:
        done = run_all(plans, folder, engine, cpu=cpu)
    raise_failed(done)
    return _frame(run_list([job.record for job in done], "").values)


def tune(
    task: str | Path,
    method: str = "ga-sam",
    *,
    out: str | Path = "runs",
    size: str | None = None,
    data: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    quantity: str | None = None,
    trials: int | None = None,
    space: Mapping[str, Any] | None = None,
    seeds: int = 1,
    seed: int = 0,
    on: str = "local",
    jobs: int | None = None,
    cpu: bool = False,
) -> DataFrame:
    """Choose a method's walk or the settings of training on validation, and return a frame with a row for each trial.

    The same as the command `gasam tune`; an interrupted search continues. The column `chosen` marks what to use, and
    the frame has the attributes `settings`, `walk`, `plain` (the scores of plain training or of the task's own
    settings) and `sentence`. `compare(..., tuned=True)` uses the chosen walk, and
    `compare(..., settings=frame.attrs["settings"])` the chosen settings.

    Args:
        task: As for `compare`, and so are `out`, `size`, `data`, `settings`, `on`, `jobs` and `cpu`.
        method: Name of the method; `baseline` searches the settings of plain training.
        quantity: What to search: budget (default, with a cap and the recommended schedule), epsilon (the paper's form),
            settings (of training; the default for baseline), or joint (settings, budget and cap).
        trials: Maximum number of trials. Default: 20 for settings and joint, else the paper's order.
        space: Ranges of settings, norm, budget, epsilon or cap by name: "0..0.5", "1e-4..1e-2,log", a list of choices,
            or None to leave it out.
        seeds: Run plain training and up to three best trials with this many seeds, and choose by the mean.
        seed: Seed of the trials. Use other seeds for results.
    """
    asked = checked(
        Search, task=str(task), method=method, size=size, quantity=quantity, space=dict(space or {}), trials=trials,
        seeds=seeds, seed=seed, settings=dict(settings or {}), origin=data or Origin(),
    )  # fmt: skip
    with Place(on).engine(cpu, jobs) as engine:
        found = find(asked, Path(out), engine, cpu=cpu)
    frame = _frame(
        {"method": found.method} | each["values"] | {"valid": fmean(each["valid"] or [nan]), "chosen": each["chosen"]}
        for each in found.trials
    )
    frame.attrs = {"settings": found.changes, "walk": found.walk, "plain": found.plain, "sentence": found.sentence}
    return frame


def runs(folder: str | Path = "runs") -> DataFrame:
    """The finished runs of a folder as a frame, with the columns of `gasam report --csv`."""
    found, _ = read_runs(Path(folder))
    return _frame(run_list(list(found.values()), "").values)


def _frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    from pandas import DataFrame

    return DataFrame([*rows])


def comparison_plans(
    task: str | Path,
    methods: Sequence[str],
    seeds: int,
    tuned: Path | None = None,
    size: str | None = None,
    data: Origin | None = None,
    settings: Mapping[str, Any] | None = None,
    walks: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Plan]:
    """The plans of a comparison, ordered by seed; `tuned` is the folder with the searches whose walks are used."""
    if seeds < 1:
        raise InputError(f"seeds must be a whole number >= 1, got {seeds}")
    plans = [
        make(str(task), method, size, seed, origin=data, settings=settings, walk=(walks or {}).get(method))
        for seed in range(1, seeds + 1)
        for method in expanded(str(task), methods)
    ]
    return plans if tuned is None else [with_tuned_walk(plan, tuned) for plan in plans]


def expanded(task: str, methods: Sequence[str]) -> list[str]:
    """The names of methods, with `family` replaced by all of its methods that the task's model allows."""
    names = list[str]()
    for name in methods:
        fitting, others = family_on(task) if name == "family" else ([name], [])
        names += fitting
        for left_out in others:
            say(f"- {left_out} is left out: the model of {task} has no normalisation layers")
    return list(dict.fromkeys(names))


def prepared(plans: Sequence[Plan], out: Path) -> list[Job]:
    """The jobs of plans, after their data was read and notes about it were printed."""
    with errors.status("preparing the data"):
        jobs = prepare(plans, out)
    for note in dict.fromkeys(note for job in jobs if job.data for note in job.data.notes):
        say(f"- {note}")
    return jobs


def run_all(plans: Sequence[Plan], out: Path, engine: Engine, *, track: str | None = None, **options: Any) -> list[Job]:
    """Execute plans, with progress on standard error; the options are those of `training.run.run`."""
    if track is not None:
        tracking.check(track)
        if not isinstance(engine, LocalEngine):
            raise InputError("--track follows runs on this machine: leave out --on, or --track")
    jobs = prepared(plans, out)
    missing = [job for job in jobs if job.record is None]
    if len(missing) < len(jobs):
        say(f"{len(jobs) - len(missing)} of {len(jobs)} runs are already there, not run again")
    if missing:
        hours = hours_of(missing, [job.record for job in jobs if job.record is not None])
        time = f"{hours:.1f} core-hours" if hours >= 1 else counted(ceil(60 * hours), "core-minute")
        estimate = f": about {time}, if they take as long as those" if hours else ""
        say(f"{counted(len(missing), 'run')} to do{estimate}")
    with Live(len(missing)) as live:
        do_all(jobs, out, engine, live.watch, partial(train, track=track, **options))
    return jobs


def hours_of(jobs: Sequence[Job], finished: Sequence[Record]) -> float:
    """An estimate from finished runs of the same tasks and sizes; 0 if there is no such run of one of the jobs."""
    seconds = 0.0
    for plan in (job.plan for job in jobs):
        alike = [run for run in finished if (run.task, run.size) == (plan.task_name, plan.size)]
        if not alike:
            return 0.0
        epochs = fmean(run.seconds / run.gradient_evaluations * run.updates / run.settings["epochs"] for run in alike)
        seconds += epochs * plan.settings.epochs * plan.walk.passes
    return seconds / 3600


def save(table: Table, records: Sequence[Record], file: Path) -> list[Path]:
    """Write a table of runs and their charts, with the name of the file and other endings; return the files."""
    charts = [
        replace(chart, title=f"{each.title}: {chart.title}")
        for each in Comparison.of(records)
        for chart in each.charts()
    ]
    return [*table.save(file), *output.save(charts, file, columns=2)]


def find(asked: Search, out: Path, engine: Engine, *, cpu: bool) -> Finding:
    """Run a search, or continue it, with a line for every trial on standard error."""
    prepared([asked.plan()], out)
    with Live(None) as live:
        return search.tune(asked, out, engine, live.watch, cpu)
