"""The command `gasam runs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gasam.lab.cli import option_values
from gasam.lab.cli import options as opt
from gasam.lab.errors import InputError

Folder = Annotated[Path, typer.Argument(help="Folder with runs, the --out of train and compare.")]
Tasks = Annotated[str | None, typer.Option("--task", help="Only runs of these tasks, separated by commas.")]
Methods = Annotated[str | None, typer.Option("--method", help="Only runs of these methods, separated by commas.")]
Seeds = Annotated[str | None, typer.Option("--seed", help="Only runs with these seeds, separated by commas.")]
Best = Annotated[
    bool, typer.Option("--best", help="Only the best run of each task, size and data on the validation split.")
]
Sort = Annotated[str, typer.Option(help="Column to sort by, with the name that it has in --csv; best scores first.")]
Csv = Annotated[bool, opt.option(opt.RUN, "Print CSV with all columns.", "--csv")]


def runs(
    folder: Folder = opt.RUNS,
    task: Tasks = None,
    method: Methods = None,
    seed: Seeds = None,
    best: Best = False,
    sort: Sort = "path",
    csv: Csv = False,
    json: opt.Json = False,
) -> None:
    """List the finished runs of a folder with their settings, scores and costs.

    Examples: `gasam runs --task imdb --sort test`, `gasam runs results --best`, `gasam runs --csv > runs.csv`
    """
    from gasam.lab.cli.display import console, errors, print_json, print_table, say
    from gasam.lab.cli.narrow import in_blocks
    from gasam.lab.cli.run_lines import run_lines
    from gasam.lab.report.run_list import RunFilter, read_runs, run_table, runs_as_csv, sorted_runs

    if csv and json:
        raise InputError("give either --csv or --json")
    wanted = RunFilter(_names("--task", task), _names("--method", method), _seeds(seed), best)
    found, faults = read_runs(folder)
    for fault in faults:
        errors.print(f"not listed: {fault}", style="red", soft_wrap=True)
    shown = sorted_runs(wanted.applied(found), sort)
    table = run_table(shown, folder)
    if csv:
        sys.stdout.write(runs_as_csv(table))
    elif json:
        print_json(list(table.values))
    elif not shown:
        say(f"none of the {len(found)} runs in {folder} fits these conditions")
    elif len(in_blocks(table, console.width)) == 1:
        print_table(table)
    else:
        console.print("\n".join(run_lines(shown, console.width)), soft_wrap=True)


def _names(option: str, text: str | None) -> list[str]:
    return [] if text is None else option_values.listed(option, text)


def _seeds(text: str | None) -> list[int]:
    try:
        return [int(part) for part in _names("--seed", text)]
    except ValueError:
        raise InputError(f"--seed must be whole numbers separated by commas, got {text!r}") from None
