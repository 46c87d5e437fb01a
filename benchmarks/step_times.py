"""The step time of every configuration that has records, relative to plain training, for comparisons at equal time.

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
from gasam.lab.report.contents import STEP_TIMES
from gasam.lab.report.frame import groups_of
from gasam.lab.report.group import Group
from gasam.lab.storage import write_json
from gasam.lab.tasks import Origin
from gasam.lab.training.plan import Plan, make

RESULTS = Path(__file__).parents[1] / "results"
LONGER = 10
"""How many times as long as after `gasam compare`."""


def plan_of(group: Group, origin: Origin) -> Plan:
    """A plan of the group's configuration, from what sets it apart from the usual one of its size."""
    walk = group.other_walk()
    if "norm" in walk:
        walk["norm"] = float(walk["norm"])  # records write "inf"
    return make(group.task, group.method, group.size, origin=origin, settings=group.other_settings, walk=walk)


def measure(task: str, size: str, origin: Origin, folder: Path = RESULTS, longer: int = LONGER) -> Path:
    """Measure the step times of all configurations of a task and size, and write them into the folder of records."""
    groups = groups_of(records.read_all(folder), task, size)
    jobs = [Job(plan_of(group, origin), "", record=group.records[0]) for group in groups]
    times = mean_step_times(jobs, None, longer=longer)
    about = provenance.code() | {"machine": provenance.machine(torch.device("cpu"))}
    file = folder / STEP_TIMES / f"{task}-{size}.json"
    write_json(file, {"task": task, "size": size, **about, "times": times})
    return file


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
