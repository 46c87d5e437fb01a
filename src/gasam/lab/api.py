"""The Python functions of the lab, which `gasam.lab` exports: what the commands do, with pandas frames as results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pandas import DataFrame

from gasam.lab.cli.sessions import run_many, search
from gasam.lab.comparisons import comparison_plans
from gasam.lab.engines import opened
from gasam.lab.errors import checked
from gasam.lab.report.comparison import run_list
from gasam.lab.report.html import read_runs
from gasam.lab.search import Search
from gasam.lab.tasks import Origin

__all__ = ["Origin", "RunFailedError", "compare", "runs", "tune"]


class RunFailedError(RuntimeError):
    """A run failed. The other runs were finished first; calling `compare` again repeats only the failed ones."""


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
        task: The name of a task, or the path of a Python file that defines one.
        methods: The names of the methods.
        seeds: The number of runs of each method, with the seeds 1, 2, ...
        out: The folder for records and models.
        size: The size; by default `small`, or the only size of a task file.
        data: Where the data is: a data folder, or your own files.
        settings: Settings of the task to change, such as {"epochs": 3}.
        walks: Options of walks to change, by method, such as {"ga-sam": {"cap": 0.02}}.
        tuned: Use the walks that `tune` chose with the same `out`.
        on: Where to run: "local", or a Ray cluster, see `gasam compare --help`.
        jobs: The number of parallel runs; by default the number of cores, or 1 with a GPU.
        cpu: Use the CPU even if there is a GPU.

    Raises:
        RunFailedError: If a run fails. The message names its log file.
    """
    folder = Path(out)
    plans = comparison_plans(
        task,
        methods,
        seeds=seeds,
        size=size,
        origin=data,
        settings=settings,
        walks=walks,
        tuned=folder if tuned else None,
    )
    with opened(on, parallel=jobs, cpu=cpu) as place:
        done = run_many(plans, folder, place, cpu)
    failed = [f"{job.name}: {job.error} ({job.log})" for job in done if job.record is None]
    if failed:
        raise RunFailedError("; ".join(failed))
    return DataFrame(run_list([job.record for job in done], "").values)


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
        task: The name of a task, or the path of a Python file that defines one.
        method: The name of the method.
        out: The folder for records and models.
        size: The size; by default `small`, or the only size of a task file.
        data: Where the data is: a data folder, or your own files.
        settings: Settings of the task to change.
        quantity: "budget", the default; "epsilon"; "settings", the default for the baseline; or "joint".
        trials: The largest number of trials; by default as many as the search for a walk needs, and 20 for settings.
        space: Ranges of settings by name, as in `--space`: "0..0.5", "1e-4..1e-2,log", a tuple of choices, or None.
        seeds: Repeat the baseline and the finalists with this many seeds, and choose by the mean.
        seed: The seed of the trials. Use other seeds for results.
        on: Where to run: "local", or a Ray cluster, see `gasam compare --help`.
        jobs: The number of parallel trials; by default the number of cores, or 1 with a GPU.
        cpu: Use the CPU even if there is a GPU.
    """
    asked = checked(
        Search,
        task=str(task),
        method=method,
        size=size,
        quantity=quantity,
        space=dict(space or {}),
        trials=trials,
        seeds=seeds,
        seed=seed,
        settings=dict(settings or {}),
        origin=data or Origin(),
    )
    with opened(on, parallel=jobs, cpu=cpu) as place:
        found = search(asked, Path(out), place, cpu)
    rows = []
    for each in found.trials:
        valid = [score for score in each["valid"] if score is not None]
        mean = fmean(valid) if valid else None
        rows.append({"method": found.method} | each["values"] | {"valid": mean, "chosen": each["chosen"]})
    frame = DataFrame(rows)
    frame.attrs = {"settings": found.changes, "walk": found.walk, "plain": found.plain, "sentence": found.sentence}
    return frame


def runs(folder: str | Path = "runs") -> DataFrame:
    """The finished runs of a folder as a frame, with the columns of `gasam report --csv`."""
    found, _ = read_runs(Path(folder))
    return DataFrame(run_list(list(found.values()), "").values)
