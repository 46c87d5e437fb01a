"""The step time of every walk that has records, relative to plain training, for comparisons at equal time.

Runs with other settings than those of the size are left out, unless they are only longer.

The configurations take turns in one process with one thread, four steps each, so that other programs slow all of them
equally. The result is the median over the rounds. Steps in which a schedule left the walk out count as plain ones.

    python -m benchmarks.step_times imdb small@3 --data DIR       # writes results/step-times/imdb-small@3.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from gasam.lab import provenance, records
from gasam.lab.engines.jobs import Job
from gasam.lab.engines.step_time import mean_step_times
from gasam.lab.errors import InputError
from gasam.lab.records import RunRecord
from gasam.lab.report.contents import STEP_TIMES
from gasam.lab.report.frame import DURATION, groups_of
from gasam.lab.report.group import Group
from gasam.lab.storage import write_json
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import Plan, make

RESULTS = Path(__file__).parents[1] / "results"
EFFORT = 10
"""How many times as long as after `gasam compare`."""


def plan_of(group: Group, origin: Origin) -> Plan:
    """A plan of the group's configuration, from what sets it apart from the usual one of its size."""
    walk = group.other_walk()
    if "norm" in walk:
        walk["norm"] = float(walk["norm"])  # records write "inf"
    return make(group.task, group.method, group.size, origin=origin, settings=group.other_settings, walk=walk)


def measure(task: str, size: str, origin: Origin, folder: Path = RESULTS, effort: int = EFFORT) -> Path:
    """Measure the step times of all configurations of a task and size, and write them into the folder of records."""
    every = groups_of(records.read_all(folder), task, size)
    groups = [group for group in every if not group.other_settings.keys() - DURATION]
    if len(groups) < 2:
        raise InputError(f"{folder} has no methods to compare on {task} in size {size!r}: check both names")
    jobs = [Job(plan_of(group, origin), "", record=_completed(group)) for group in groups]
    times = mean_step_times(jobs, None, effort=effort)
    about = provenance.code() | {"machine": provenance.machine(torch.device("cpu"))}
    file = folder / STEP_TIMES / f"{task}-{size}.json"
    write_json(file, {"task": task, "size": size, **about, "times": times})
    return file


def _completed(group: Group) -> RunRecord:
    """A run that did not diverge, because one that did may have stopped before the walks began."""
    return next((run for run in group.records if run.test is not None), group.records[0])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("size", help="as records hold it, such as small@3")
    parser.add_argument("--data", type=Path, help="folder with the paper's data")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"wrote {measure(given.task, given.size, Origin(given.data))}")


if __name__ == "__main__":
    main()
