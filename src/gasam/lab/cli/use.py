"""The commands that train nothing: `gasam predict`, `report`, `tasks`, `methods` and `data`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import tee
from pathlib import Path
from typing import Any, TextIO

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gasam.lab.cli import INTERRUPTED
from gasam.lab.cli.options import RUNS, command
from gasam.lab.data import published
from gasam.lab.data.corpus import data_directory
from gasam.lab.data.files import STANDARD_INPUT
from gasam.lab.display import console, errors, print_json, print_table, say
from gasam.lab.errors import InputError
from gasam.lab.methods import METHODS
from gasam.lab.output import Table
from gasam.lab.report import html as page
from gasam.lab.report.comparison import counted, run_list
from gasam.lab.storage import replaced
from gasam.lab.tasks import TASKS, find
from gasam.lab.training.finished import load
from gasam.lab.training.plan import make


@command
def predict(
    run: Path,
    file: str = "-",
    *,
    text_column: str | None = None,
    words: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    out: Path | None = None,
    cpu: bool = False,
    json: bool = False,
) -> None:
    """Use a trained model: print one line for each input.

    Text classification and images: the class, and the probabilities of the most likely classes. Translation: the
    translation. Language models: the perplexity of the line, and words that may follow it.

    Example: `gasam predict runs/NAME.json reviews.csv --text-column review --json --out classes.jsonl`

    Args:
        run: Record of a finished run, runs/NAME.json, or its folder.
        file: File with one input per line, or .csv, .tsv or .jsonl with a column of texts; .gz too. For images: lines
            of pixels from 0 to 255, or an idx file. - is standard input.
        text_column: Column with the text. Default: the column that the run used.
        words: For language models: add at most this many words to each line; 0 for none. Default: 10.
        temperature: Draw the words at this temperature. Default: take the most likely ones.
        seed: Draw the words with this seed, at temperature 1 unless --temperature is given.
        out: Write the predictions to this file. Default: print them.
        json: Print JSON lines, with the line number of each input.
    """
    if out is not None and out.is_dir():
        raise InputError(f"--out must name a file, but {out} is a folder")
    columns = SpinnerColumn(), TextColumn("inputs done: {task.completed:,}"), TimeElapsedColumn()
    hidden = not errors.is_terminal or (out is None and sys.stdout.isatty())
    # Standard output is left alone, because it holds the predictions.
    progress = Progress(*columns, console=errors, transient=True, redirect_stdout=False, disable=hidden)
    bar, done, blank = progress.add_task("predicting", total=None), 0, 0
    try:
        with errors.status("loading the model"):
            trained = load(run, cpu=cpu)
        options = trained.prediction_options(words=words, temperature=temperature, seed=seed)
        path = None if file == "-" else Path(file).expanduser()
        inputs = trained.family.read_inputs(path, text_column or trained.description.origin.text_column)
        if typed := path is None and sys.stdin.isatty():
            say("type one input per line; Ctrl-D ends")
        inputs, texts = tee(inputs) if trained.family.continues_text else (inputs, iter(()))
        with opened(out) as stream, progress:
            for line, found in trained.answers(inputs, options, at_once=1 if typed else None):
                done, blank = done + 1, blank + (found is None)
                progress.advance(bar)
                if not json:  # a blank line stays blank, so that lines keep their numbers
                    print("" if found is None else trained.family.line(found), file=stream, flush=typed)
                elif found is not None:
                    print(json_line({"line": line} | found), file=stream, flush=typed)
            if done == blank:
                raise InputError(f"{path or STANDARD_INPUT} has no inputs: give at least one line that is not blank")
            given = [text for _, text in texts if text is not None]
            total = trained.family.whole_input(trained.model, given) if given else None
            if total is not None and json:
                print(json_line({"whole_input": total}), file=stream)
    except KeyboardInterrupt:
        say(f"gasam: interrupted after {done:,} inputs")
        sys.exit(INTERRUPTED)
    if total is not None and not json:
        say(f"perplexity of the whole input: {trained.family.line(total)}")
    left_out = f"; {counted(blank, 'blank line')} without one" if blank else ""
    say(counted(done - blank, "prediction") + left_out + ("" if out is None else f"; saved: {out}"))


@contextmanager
def opened(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when everything is written."""
    if out is None:
        yield sys.stdout
        return
    with replaced(out) as partial, partial.open("w", encoding="utf-8") as stream:
        yield stream


def json_line(value: Any) -> str:
    return json_format.dumps(value, ensure_ascii=False, allow_nan=False)


@command
def report(folder: Path = RUNS, *, html: Path | None = None, csv: bool = False, json: bool = False) -> None:
    """List the runs in a folder, and write an HTML page about them with charts and tables. Nothing is trained.

    Examples: `gasam report runs --html results.html`, `gasam report runs --csv`

    Args:
        folder: Folder with records.
        html: File to write. Default: report.html in the folder.
        csv: Print the list of runs as CSV with all columns.
    """
    if csv and json:
        raise InputError("give either --csv or --json")
    file = folder / page.PAGE if html is None else html
    with errors.status("writing the report"):
        comparisons, runs, faults = page.write_folder(folder, file)
    for fault in faults:
        say(f"not listed: {fault}", style="red")
    table = run_list(runs, f"Runs in {folder}")
    if csv:
        print(table.csv(), end="")
    elif json:
        answers = [{"title": each.title, "answer": each.answer, "standing": each.standing} for each in comparisons]
        print_json({"file": str(file), "answers": answers, "runs": list(table.values)})
    else:
        print_table(table)
        for each in comparisons:
            say(f"{each.title}: {each.answer}", console)
        say(f"saved: {file}", console)


@command
def tasks(*, json: bool = False) -> None:
    """List the tasks with their data and metrics; --json adds the settings of each size."""
    found = {name: {"about": t.about, "data": t.kind, "metric": t.family.metric.name} for name, t in TASKS.items()}
    if json:
        sizes = {name: {size: own.model_dump() for size, own in task.sizes.items()} for name, task in TASKS.items()}
        print_json({name: told | {"sizes": sizes[name]} for name, told in found.items()})
        return
    notes = (
        "Sizes: paper, small (default), tiny; ptb also has medium.",
        "A twin needs no download. `gasam data` shows the files that the paper's tasks need.",
    )
    print_table(Table("Tasks", [{"task": name} | told for name, told in found.items()], notes))


@command
def methods(*, task: str = "imdb", size: str | None = None, json: bool = False) -> None:
    """List the methods with the walk that each uses on a task, and the source of its size."""
    size = size or find(task).default_size
    find(task).settings(size)  # raises if there is no such size
    rows, found = list[dict[str, str]](), dict[str, dict[str, Any]]()
    for name, method in METHODS.items():
        try:
            walk = make(task, name, size).walk
            found[name] = {"about": method.about, "in_words": str(walk)} | walk.model_dump()
            told = f"{walk} ({walk.source})" if str(walk) else ""
        except InputError as error:  # the method cannot be used with this model
            told = str(error)
            found[name] = {"about": method.about, "source": told}
        rows.append({"method": name, "minimises": method.about, "walk (who chose its size)": told})
    if json:
        print_json(found)
    else:
        print_table(Table(f"Methods, as used for {task} in size {size}", rows))


@command
def data(*, get: str | None = None, data_dir: Path | None = None, json: bool = False) -> None:
    """Show the files that each task needs, and which of them exist, or download them.

    Args:
        get: Download the missing files of this task from the Hugging Face hub or the web. Needs gasam[download].
    """
    directory = data_directory(data_dir)
    known = {name: task.published for name, task in TASKS.items() if task.published}
    if get is not None:
        if get not in known:
            raise InputError(f"the data of {get!r} cannot be downloaded: name one of {', '.join(known)}")
        for file in published.get(get, known[get], directory):
            print(f"{file.path}: {file.size} bytes, content {file.checksum}")
        return
    states = {task: published.inspect(files, directory) for task, files in known.items()}
    if json:
        found = {task: [asdict(file) | {"path": str(file.path)} for file in files] for task, files in states.items()}
        print_json({"directory": str(directory), "tasks": found})
        return
    rows = list[dict[str, str]]()
    for task, file in ((task, file) for task, files in states.items() for file in files):
        size, checksum = "optional" if file.substitute else "missing", ""
        if file.size is not None:
            size = f"{file.size / 2**20:.1f} MB" if file.size >= 2**20 else f"{file.size / 2**10:.1f} kB"
            checksum = "not known" if file.checksum == "unknown" else file.checksum
        rows.append({"task": task, "file": file.name, "size": size, "checksum": checksum})
    notes = (
        f"searched in {directory}; --data-dir or GASAM_DATA sets another folder",
        "`gasam data --get TASK` downloads the files of a task; the twins and your own data do not need them",
    )
    print_table(Table("Data", rows, notes))
