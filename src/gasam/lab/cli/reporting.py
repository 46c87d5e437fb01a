"""The command `gasam report`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gasam.lab.cli import options as opt
from gasam.lab.errors import InputError


def report(
    folder: Annotated[Path, typer.Argument(help="Folder with records.")] = opt.RUNS,
    html: Annotated[Path | None, typer.Option(help="File to write. Default: report.html in the folder.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the list of runs as CSV with all columns.")] = False,
    json: opt.Json = False,
) -> None:
    """List the runs in a folder, and write an HTML page about them with charts and tables. Nothing is trained.

    Examples: `gasam report runs --html results.html`, `gasam report runs --csv`
    """
    from gasam.lab.cli.display import console, errors, print_json, print_table
    from gasam.lab.report import html as page
    from gasam.lab.report.comparison import run_list

    if csv and json:
        raise InputError("give either --csv or --json")
    file = folder / page.PAGE if html is None else html
    with errors.status("writing the report"):
        comparisons, runs, faults = page.write_folder(folder, file)
    for fault in faults:
        errors.print(f"not listed: {fault}", style="red", soft_wrap=True)
    table = run_list(runs, f"Runs in {folder}")
    if csv:
        sys.stdout.write(table.csv())
    elif json:
        answers = [{"title": each.title, "answer": each.answer, "standing": each.standing} for each in comparisons]
        print_json({"file": str(file), "answers": answers, "runs": list(table.values)})
    else:
        print_table(table)
        for each in comparisons:
            console.print(f"{each.title}: {each.answer}", soft_wrap=True)
        console.print(f"saved: {file}", soft_wrap=True)
