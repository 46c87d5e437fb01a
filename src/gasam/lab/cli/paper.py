"""The command `gasam reproduce`."""

from __future__ import annotations

from pathlib import Path

import typer

from gasam.lab import api
from gasam.lab.cli.measuring import measured
from gasam.lab.cli.options import RUNS, Place, command, listed
from gasam.lab.cli.training import show
from gasam.lab.display import console, print_json, print_table, say
from gasam.lab.errors import InputError
from gasam.lab.methods import Walks
from gasam.lab.paper import tables
from gasam.lab.paper.figures import FIGURES
from gasam.lab.tasks import SIZE_NAMES, Origin

WALKS = ("paper", "recommended", "tuned")


@command
def reproduce(
    study: str,
    *,
    size: str = "small",
    tasks: str | None = None,
    seeds: int | None = None,
    walks: str | None = None,
    data_dir: Path | None = None,
    place: Place,
    jobs: int | None = None,
    out: Path = RUNS,
    cpu: bool = False,
    json: bool = False,
) -> None:
    """Run a table or figure of the paper, and show the results next to the paper's. Finished runs are skipped.

    Args:
        study: table1 to table5, or figure1 to figure5.
        size: paper (the paper's settings), small (minutes) or tiny (seconds).
        tasks: Tasks, separated by commas: some of a table's tasks, or any tasks for a figure.
        seeds: Number of runs of each row. Default: 4 as in the paper, 1 for figures and table4.
        walks: Walks of a table's rows: paper (the appendix's epsilons; the default at size paper), recommended (the
            default elsewhere), or tuned (chosen by `gasam tune --quantity epsilon` with the same --out).
    """
    if size not in SIZE_NAMES:
        raise InputError(f"the paper's tables and figures are run in the sizes paper, small and tiny, got {size}")
    if seeds is not None and seeds < 1:
        raise InputError(f"--seeds must be a whole number >= 1, got {seeds}")
    if walks not in (None, *WALKS):
        raise InputError(f"--walks must be {', '.join(WALKS)}, got {walks!r}")
    if study in FIGURES and walks is not None:
        raise InputError(f"--walks is for tables: leave it out for {study}")
    chosen, numbers = None if tasks is None else listed("--tasks", tasks), None if seeds is None else range(1, seeds + 1)
    origin = Origin(data_dir)
    if study not in FIGURES:
        usual: Walks = "paper" if size == "paper" else "recommended"
        source: Walks | Path = out if walks == "tuned" else "paper" if walks == "paper" else usual
