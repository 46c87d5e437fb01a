"""What all kinds of analyses share: options, continuation, tables, charts and files."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo

from gasam.analysis.objective import plain_value
from gasam.lab import output
from gasam.lab.errors import InputError, checked
from gasam.lab.output import Chart, Table, lines
from gasam.lab.record import AnalysisRecord, Summary
from gasam.lab.storage import read_json, write_json
from gasam.lab.training.finished import FinishedRun

Found = dict[str, Any]
Cells = dict[str, str]
Labels = Mapping[str, str]
"""The label of each configuration by its key, which all its seeds share."""
KINDS: dict[str, type[Analysis]] = {}
"""Every kind of analysis by its name in records."""


def as_numbers(value: Any, info: ValidationInfo) -> tuple[float, ...]:
    """Numbers from text or from a list."""
    try:
        return tuple(float(part) for part in (value.split(",") if isinstance(value, str) else value))
    except ValueError:
        raise ValueError(f"{info.field_name} must be numbers separated by commas, got {value!r}") from None


class Progress:
    """A measurement in progress.

    `say` shows the progress to the user. `kept` is the intermediate result of an interrupted measurement, from `file`.
    """

    def __init__(self, file: Path, say: Callable[[str], None]) -> None:
        self.file, self.say = file, say
        self.kept: Found = {}
        with suppress(OSError, ValueError):  # there is none, or it is damaged
            self.kept = dict(read_json(file))

    def counting(self, what: str) -> Callable[[int, int], None]:
        """A callback that shows the number of finished evaluations and their total."""
        return lambda done, of: self.say(f"{what} {done}/{of}")

    def keep(self, found: Found) -> None:
        """Save an intermediate result, so that an interrupted measurement can continue."""
        write_json(self.file, plain_value(found))


class Analysis(BaseModel, ABC):
    """A kind of analysis. Its fields are its options, which determine the numbers.

    A subclass that has a `kind` registers itself. If it also has a `command`, then `gasam` has a command of this name,
    whose options are the fields and whose help is the docstring of the class. `title` is the title of the table.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    kind: ClassVar[str]
    command: ClassVar[str | None] = None
    title: ClassVar[str]

    split: Literal["train", "valid", "test"] = Field(
        "train", description="Split on which to compute the loss: train, valid or test."
    )
    rows: int = Field(512, description="Number of examples of the split; always the same ones.", ge=1)
    seed: int = Field(0, description="Seed of all randomness.", ge=0, lt=2**31)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def options(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {name: plain_value(getattr(self, name)) for name in type(self).model_fields}

    def name(self, run: Summary) -> str:
        """The name of the record, which depends on the options and on the run."""
        text = json.dumps([self.options(), run.key, run.seed], sort_keys=True)
        return f"{self.kind}-{run.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @abstractmethod
    def measure(self, run: FinishedRun, progress: Progress) -> Found:
        """Measure a run and return the numbers."""

    def cells(self, record: AnalysisRecord) -> list[Cells]:
        """The rows of the table for one run, without its name."""
        return []

    def table_rows(self, found: Mapping[str, AnalysisRecord]) -> list[Cells]:
        """The rows of the table for runs by their names in the table."""
        return [{"run": name} | cells for name, each in found.items() for cells in self.cells(each)]

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        """A sentence below the table."""
        return ""

    def curve(self, record: AnalysisRecord) -> Iterable[tuple[float, float]]:
        """The points of the run's line in the chart."""
        return []

    def style(self, record: AnalysisRecord) -> dict[str, Any]:
        """Title, axes and marks of the chart, as arguments of `lines`."""
        return {}

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        values = [{"run": each.run.name} | each.found for each in found]
        return Table(self.title, self.table_rows(_named(found, labels)), list(filter(None, [self.note(found)])), values)

    def charts(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Chart]:
        """A chart for each task and size, with a line for each configuration."""
        charts = []
        for task, size in dict.fromkeys((each.run.task, each.run.size) for each in found):
            some = [each for each in found if (each.run.task, each.run.size) == (task, size)]
            points = [
                {"label": labels[each.run.key], "seed": each.run.seed, "x": x, "y": y}
                for each in some
                for x, y in self.curve(each)
            ]
            style = self.style(some[0])
            style["title"] = f"{task}, {size}: {style['title']}"
            charts.append(lines(points, {labels[each.run.key]: each.run.method for each in some}, **style))
        return charts

    def save(self, found: Sequence[AnalysisRecord], labels: Labels, folder: Path) -> list[Path]:
        """Write the table as JSON and Markdown and the charts as PNG and SVG; return the files."""
        tasks = dict.fromkeys(f"{each.run.task}-{each.run.size}" for each in found)
        names = sorted(self.name(each.run) for each in found)
        own = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]  # other runs or options are another table
        place = folder / "-".join((self.kind, *tasks, own))
        return [*self.table(found, labels).save(place), *output.save(self.charts(found, labels), place)]


def restored(each: AnalysisRecord) -> Analysis:
    """The analysis, with its options, that made a record."""
    if each.kind not in KINDS:
        raise InputError(f"the kind of an analysis must be one of {', '.join(KINDS)}, got {each.kind!r}")
    return checked(KINDS[each.kind], **each.options)


def _named(found: Sequence[AnalysisRecord], labels: Labels) -> dict[str, AnalysisRecord]:
    """The runs by their task if there are several, their configuration, and their seed if there are several."""
    several = len({each.run.task for each in found}) > 1
    keys = [each.run.key for each in found]
    named = {}
    for each in found:
        task = f"{each.run.task}: " if several else ""
        seed = f", seed {each.run.seed}" if keys.count(each.run.key) > 1 else ""
        named[task + labels[each.run.key] + seed] = each
    return named


def example_count(found: Sequence[AnalysisRecord]) -> str:
    """The number of examples that were used, which is smaller than `rows` if a split has fewer."""
    counts = [each.examples or each.options["rows"] for each in found]
    least, most = min(counts), max(counts)
    return f"{most} examples" if least == most else f"{least} to {most} examples"
