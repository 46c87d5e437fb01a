"""The command `gasam predict`."""

from __future__ import annotations

import json as json_format
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from gasam.lab.cli import options as opt
from gasam.lab.errors import InputError, InterruptedWithoutResumeError

if TYPE_CHECKING:
    from rich.progress import Progress

    from gasam.lab.families.family import PredictionOptions
    from gasam.lab.training.finished import FinishedRun

TEXT = "The text of a language model"

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Record of a finished run, runs/NAME.json, or its folder.")]
Inputs = Annotated[
    str,
    typer.Argument(
        metavar="FILE|-",
        help="File with one input per line, or .csv, .tsv or .jsonl with a column of texts; .gz too. For images: lines "
        "of pixels from 0 to 255, or an idx file. Default: standard input.",
        show_default=False,
    ),
]
Column = Annotated[str | None, typer.Option(help="Column with the text. Default: the column that the run used.")]
Words = Annotated[int | None, opt.option(TEXT, "Add at most this many words to each line; 0 for none. Default: 10.")]
Temperature = Annotated[
    float | None, opt.option(TEXT, "Draw the words at this temperature. Default: take the most likely ones.")
]
Seed = Annotated[
    int | None, opt.option(TEXT, "Draw the words with this seed, at temperature 1 unless --temperature is given.")
]
JsonLines = Annotated[bool, opt.option(opt.RUN, "Print JSON lines, with the line number of each input.", "--json")]
Out = Annotated[Path | None, opt.option(opt.RUN, "Write the predictions to this file. Default: print them.")]

SECONDS_BETWEEN_REPORTS = 10


def predict(
    run: Run,
    file: Inputs = "-",
    text_column: Column = None,
    words: Words = None,
    temperature: Temperature = None,
    seed: Seed = None,
    json: JsonLines = False,
    out: Out = None,
    cpu: opt.Cpu = False,
) -> None:
    """Use a trained model: print one line for each input.

    Text classification and images: the class, and the probabilities of the most likely classes. Translation: the
    translation. Language models: the perplexity of the line, and words that may follow it.

    Example: `gasam predict runs/NAME.json reviews.csv --text-column review --json --out classes.jsonl`
    """
    from gasam.lab.cli.display import errors
    from gasam.lab.training.finished import load

    if out is not None and out.is_dir():
        raise InputError(f"--out must name a file, but {out} is a folder")
    counter = Counter(shown=out is not None or not sys.stdout.isatty())
    try:
        with errors.status("loading the model"):
            loaded = load(run, cpu=cpu)
        asked = loaded.prediction_options(words=words, temperature=temperature, seed=seed)
        path = None if file == "-" else Path(file).expanduser()
        column = text_column or loaded.description.origin.text_column
        with _opened(out) as stream, counter:
            total = _answer(loaded, path, column, asked, counter, stream, json)
    except KeyboardInterrupt:
        raise InterruptedWithoutResumeError(f"interrupted after {counter.done:,} inputs") from None
    if total is not None and not json:
        errors.print(f"perplexity of the whole input: {total}", soft_wrap=True)
    errors.print(counter.summary + ("" if out is None else f"; saved: {out}"), soft_wrap=True)


def _answer(
    run: FinishedRun,
    path: Path | None,
    column: str,
    asked: PredictionOptions,
    counter: Counter,
    stream: TextIO,
    json: bool,
) -> str | None:
    """Write the predictions of all inputs, and return what is said about all of them together."""
    from gasam.lab.cli.display import errors
    from gasam.lab.data.files import STANDARD_INPUT

    typed = path is None and sys.stdin.isatty()
    if typed:
        errors.print("type one input per line; Ctrl-D ends")
    whole = run.family.whole_input(run.model)
    numbered = run.family.read_inputs(path, column)
    for line, found in run.answers(numbered, asked, whole=whole, at_once=1 if typed else None):
        if json and found is not None:
            stream.write(_json_line({"line": line} | found))
        elif not json:  # a blank line stays blank, so that lines keep their numbers
            stream.write("\n" if found is None else f"{run.family.line(found)}\n")
        if typed:
            stream.flush()
        counter.add(blank=found is None)
    if counter.done == counter.blank:
        raise InputError(f"{path or STANDARD_INPUT} has no inputs: give at least one line that is not blank")
    total = None if whole is None else whole.result()
    if total is not None and json:
        stream.write(_json_line({"whole_input": total}))
    return None if total is None else run.family.line(total)


def _json_line(value: Any) -> str:
    return json_format.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears when everything is written."""
    from gasam.lab.storage import replaced

    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    with replaced(out) as partial, partial.open("w", encoding="utf-8") as stream:
        yield stream


class Counter:
    """The number of finished inputs on standard error: a live line on a terminal, else a line now and then.

    It is not `shown` if the predictions themselves appear on the terminal.
    """

    def __init__(self, shown: bool) -> None:
        self.done, self.blank, self.shown = 0, 0, shown
        self.reported = time.monotonic()
        self.live: Progress | None = None

    def __enter__(self) -> Counter:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        from gasam.lab.cli.display import errors

        self.reported = time.monotonic()
        if self.shown and errors.is_terminal:
            columns = (SpinnerColumn(), TextColumn("inputs done: {task.completed:,}"), TimeElapsedColumn())
            # Standard output is left alone, because it holds the predictions.
            self.live = Progress(*columns, console=errors, transient=True, redirect_stdout=False)
            self.live.add_task("predicting", total=None)
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.live.stop()

    def add(self, blank: bool) -> None:
        from gasam.lab.cli.display import errors

        self.done += 1
        self.blank += blank
        now = time.monotonic()
        if self.live is not None:
            self.live.update(self.live.task_ids[0], completed=self.done)
        elif self.shown and now - self.reported > SECONDS_BETWEEN_REPORTS:
            self.reported = now
            errors.print(f"inputs done: {self.done:,}")

    @property
    def summary(self) -> str:
        count = self.done - self.blank
        text = f"{count:,} {'prediction' if count == 1 else 'predictions'}"
        if self.blank:
            text += f"; {self.blank:,} blank {'line has' if self.blank == 1 else 'lines have'} none"
        return text
