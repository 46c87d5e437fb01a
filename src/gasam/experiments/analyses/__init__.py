"""Analyses of finished runs: measured once for each run, kept as records, shown side by side; one file a kind."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gasam.analysis.results import plain_value
from gasam.experiments import records
from gasam.experiments.errors import InputError
from gasam.experiments.records import Record
from gasam.experiments.report.tables import Table, as_json, markdown
from gasam.experiments.storage import replaced, write_json
from gasam.experiments.subjects import Subject, checked, load, read_run
from gasam.experiments.tasks import Origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = 1
Found = dict[str, Any]
Watch = Callable[[str], None]
"""Told in a few words how far a measurement is."""

OF_THE_RUN = (
    "task",
    "size",
    "method",
    "seed",
    "metric",
    "valid",
    "test",
    "gradient_evaluations",
    "config",
    "data",
    "identity",
)


class Measure(NamedTuple):
    """A number that says how flat the minimum of a run is: None where it was not reached, `text` says why."""

    name: str
    value: float | None
    text: str
    more_is_flatter: bool


@dataclass(frozen=True, kw_only=True)
class Analysis(ABC):
    """What is measured, and on which examples; the fields are all that decides the numbers."""

    split: str = "train"
    rows: int = 512
    seed: int = 0

    kind: ClassVar[str]

    @abstractmethod
    def measure(self, subject: Subject, known: Found, keep: Callable[[Found], None], watch: Watch) -> Found:
        """The numbers, as JSON holds them. `keep` saves what there is so far; an interrupted one gets it as `known`."""

    @abstractmethod
    def table(self, found: Sequence[Record]) -> Table: ...

    @abstractmethod
    def draw(self, found: Sequence[Record]) -> Figure: ...

    @abstractmethod
    def sentence(self, found: Sequence[Record]) -> str:
        """What it shows, with its number."""

    def measures(self, each: Record) -> Sequence[Measure]:
        """What it found of the flatness of one run, if it is about that."""
        return ()

    @property
    def filed(self) -> str:
        """What its tables and pictures are filed under."""
        return self.kind

    @property
    def manner(self) -> str:
        """How it is measured, in a few words: what sets two analyses of one kind apart."""
        return f"{self.split} split"

    def __post_init__(self) -> None:
        checked(self.split)
        if self.rows < 1:
            raise InputError(f"rows must be a whole number >= 1, got {self.rows}")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed must be a whole number from 0 to 2147483647, got {self.seed}")

    def options(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


def run(
    analysis: Analysis, run: Path, folder: Path, origin: Origin, *, cpu: bool = False, watch: Watch = lambda text: None
) -> Record:
    """The record of an analysis of a run: read if it is there, else measured, going on from what was kept."""
    place, known_run = read_run(run)
    file = folder / f"{name(analysis, place.stem, known_run)}.json"
    if file.exists():
        return read(file)
    subject = load(run, origin, cpu=cpu)
    unfinished = folder / f".{file.name}"
    known = json.loads(unfinished.read_text(encoding="utf-8")) if unfinished.exists() else {}
    begun, before = time.perf_counter(), known.pop("seconds", 0.0)

    def seconds() -> float:
        return float(round(before + time.perf_counter() - begun, 2))

    code = records.code()
    try:
        found = analysis.measure(
            subject, known, lambda part: write_json(unfinished, plain_value(part) | {"seconds": seconds()}), watch
        )
    except ValueError as error:  # of the analysis: one sentence
        raise InputError(str(error)) from None
    write_json(file, record(analysis, subject, found, seconds(), code))
    unfinished.unlink(missing_ok=True)
    return read(file)


def name(analysis: Analysis, run: str, record: Record) -> str:
    text = json.dumps([analysis.options(), record["identity"]], sort_keys=True)
    return f"{analysis.kind}-{run}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def record(analysis: Analysis, subject: Subject, found: Found, seconds: float, code: Mapping[str, Any]) -> Record:
    return {
        "schema": SCHEMA,
        "kind": analysis.kind,
        "options": analysis.options(),
        "run": {"name": subject.name} | {key: subject.record[key] for key in OF_THE_RUN},
        "examples": subject.count(analysis.split, analysis.rows),
        "found": plain_value(found),
        "seconds": seconds,
        **code,
        "machine": records.machine(next(subject.model.parameters()).device),
        "versions": records.versions(),
    }


def save(analysis: Analysis, found: Sequence[Record], folder: Path) -> list[str]:
    """The table as JSON and Markdown and the picture as PNG and SVG, under one name."""
    from gasam.analysis import pictures

    table = analysis.table(found)
    tasks = dict.fromkeys(f"{each['run']['task']}-{each['run']['size']}" for each in found)
    place = folder / "-".join((analysis.filed, *tasks))
    numbers, text = (place.with_name(f"{place.name}.{kind}") for kind in ("json", "md"))
    write_json(numbers, as_json(table) | {"sentence": analysis.sentence(found)})
    with replaced(text) as partial:
        partial.write_text(markdown(table), encoding="utf-8")
    return [str(file) for file in (numbers, text, *pictures.save(analysis.draw(found), place))]


def read(file: Path) -> Record:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        missing = [key for key in ("kind", "options", "run", "found") if key not in found]
    except (ValueError, TypeError) as error:
        raise InputError(f"{file} is not the record of an analysis: {error}; delete it and run again") from None
    if missing:
        raise InputError(f"{file} is not the record of an analysis: it lacks {', '.join(missing)}; delete it")
    return found  # type: ignore[no-any-return]
