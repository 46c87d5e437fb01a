"""The command `gasam report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gasam.lab.cli import options as opt


def report(
    folder: Annotated[Path, typer.Argument(help="Folder with records.")] = opt.RUNS,
    html: Annotated[Path | None, typer.Option(help="File to write. Default: report.html in the folder.")] = None,
    json: opt.Json = False,
) -> None:
    """Write one HTML page about all runs in a folder, with charts and tables. Nothing is trained or downloaded.

    Example: `gasam report runs --html results.html`
    """
    from gasam.lab.cli.display import console, errors, print_json
    from gasam.lab.report import html_page

    file = folder / html_page.PAGE if html is None else html
    with errors.status("writing the report"):
        found = html_page.of_folder(folder)
        html_page.write(found, file)
    if json:
        answers = [{"task": each.task, "size": each.size, "answer": each.answer.sentence} for each in found]
        print_json({"file": str(file), "answers": answers})
        return
    for each in found:
        console.print(f"{each.title}: {each.answer.sentence}", soft_wrap=True)
    console.print(f"saved: {file}", soft_wrap=True)
