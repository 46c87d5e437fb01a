"""The base class of analyses of finished runs: options, measurement, table, picture and summary."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from gasam.analysis.objective import plain_value
from gasam.lab.analyses.comparing import Measure, Plotted, compared, panels
from gasam.lab.analyses.loading import LoadedRun, checked
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord
from gasam.lab.storage import write_json
from gasam.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = dict[str, Any]
Labels = Sequence[str]
Cells = dict[str, str]
"""A row of a table: the text of each column."""
KINDS: dict[str, type[Analysis]] = {}
"""Every kind of analysis by its name in records."""


class Measurement:
    """A measurement in progress.

    `report` shows the progress to the user. `kept` is the intermediate result of an interrupted measurement, from
    `file`.
    """

    def __init__(self, file: Path, report: Callable[[str], None]) -> None:
        self.file, self.report = file, report
        self.kept = _kept(file)
        self._begun: float = time.perf_counter() - self.kept.pop("seconds", 0.0)

    @property
    def seconds(self) -> float:
        """The time of the measurement, including interrupted attempts."""
        return round(time.perf_counter() - self._begun, 2)

    def counting(self, what: str) -> Callable[[int, int], None]:
        """A callback that reports the number of finished evaluations and their total."""
        return lambda done, of: self.report(f"{what} {done}/{of}")

    def keep(self, found: Found) -> None:
        """Save an intermediate result, so that an interrupted measurement can continue."""
        write_json(self.file, plain_value(found) | {"seconds": self.seconds})


def _kept(file: Path) -> Found:
    """What an interrupted measurement left; nothing if it is damaged."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) and isinstance(kept.get("seconds"), float) else {}


def option(
    default: Any = MISSING,
    *,
    help: str,  # noqa: A002
    flag: str = "",
    text: str = "",
    panel: str | None = None,
) -> Any:
    """A field of an analysis that is an option of its command.

    Args:
        default: Value of the field. Without it the option is required.
        help: Help text on the command line.
        flag: Name on the command line, if it is not the field's name.
        text: Default on the command line, if the option is text that `from_command` parses.
        panel: Heading of the group of options that it is listed under.
    """
    return field(default=default, metadata={"help": help, "flag": flag, "text": text, "panel": panel})


@dataclass(frozen=True, kw_only=True)
class Analysis(ABC):
    """A kind of analysis. Its fields are the options, which determine the numbers.

    A subclass that has a `kind` registers itself. If it also has a `command`, then `gasam` has a command of this name,
    whose options are the fields and whose help is the docstring of the class. Two kinds may share a command: the one
    with a required option is used if the user gives this option, and the other one if not.

    `title` is the title of the table. In the methods, `found` are records of this analysis, one for each run, and
    `labels` are the labels of these runs.
    """

    split: str = option("train", help="Split on which to compute the loss: train, valid or test.", panel="The examples")
    rows: int = option(512, help="Number of examples of the split; always the same ones.", panel="The examples")
    seed: int = option(0, help="Seed of all randomness.", panel="The run")

    kind: ClassVar[str]
    command: ClassVar[str | None] = None
    title: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        checked(self.split)
        if self.rows < 1:
            raise InputError(f"rows must be a whole number >= 1, got {self.rows}")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed must be a whole number from 0 to 2147483647, got {self.seed}")

    @classmethod
    def from_command(cls, **given: Any) -> Self:
        """Make the analysis from the options of the command line."""
        return cls(**given)

    def options(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {each.name: plain_value(getattr(self, each.name)) for each in fields(self)}

    @property
    def filed(self) -> str:
        """The beginning of the file names of its tables and pictures."""
        return self.kind

    @property
    def manner(self) -> str:
        """A few words about the options, which distinguish two analyses of one kind."""
        return f"{self.split} split"

    @abstractmethod
    def measure(self, run: LoadedRun, measurement: Measurement) -> Found:
        """Measure a run and return the numbers."""

    def cells(self, record: AnalysisRecord, label: str) -> list[Cells]:
        """The rows of the table for one run."""
        raise NotImplementedError(f"{type(self).__name__} must define `cells`, or a `table` of its own")

    def values(self, record: AnalysisRecord) -> Found | None:
        """The numbers of one run for the JSON of the table; None if the cells are enough."""
        return record.found

    def note(self, found: Sequence[AnalysisRecord]) -> str:
        """A sentence below the table."""
        return ""

    def plotted(self, record: AnalysisRecord) -> Plotted:
        """The line of one run in the picture."""
        raise NotImplementedError(f"{type(self).__name__} must define `plotted`, or `draw` a picture of its own")

    def measures(self, record: AnalysisRecord) -> Sequence[Measure]:
        """The measures of flatness of one run, if the analysis has any."""
        return ()

    def clause(self, record: AnalysisRecord, label: str) -> str:
        """The result of one run in words, for an analysis without measures of flatness."""
        return ""

    def table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        rows = [row for each, label in zip(found, labels, strict=True) for row in self.cells(each, label)]
        values = []
        for each in found:
            numbers = self.values(each)
            if numbers is not None:
                values.append({"run": each.run.name} | numbers)
        note = self.note(found)
        texts = tuple(tuple(row.values()) for row in rows)
        return Table(self.title, tuple(rows[0]), texts, (note,) if note else (), tuple(values))

    def page_table(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table:
        """The table for a page of results, without the numbers of `series`."""
        return self.table(found, labels)

    def series(self, found: Sequence[AnalysisRecord], labels: Labels) -> Table | None:
        """Numbers that are too many for a page, for a CSV file; None if the table has everything."""
        return None

    def draw(self, found: Sequence[AnalysisRecord], labels: Labels) -> list[Figure]:
        """The pictures, each with as many panels as a reader can see at once."""
        return panels(found, labels, self.plotted)

    def sentence(self, found: Sequence[AnalysisRecord], labels: Labels) -> str:
        """The result in one sentence, with its numbers."""
        if self.measures(found[0]):
            return compared(self.measures, found, labels)
        clauses = [self.clause(each, label) for each, label in zip(found, labels, strict=True)]
        return "; ".join(clause for clause in clauses if clause)
