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

from gasam.analysis.values import plain_value
from gasam.lab import provenance, records
from gasam.lab.analyses.subjects import Subject, checked, load, read_run
from gasam.lab.errors import InputError
from gasam.lab.records import AnalysedRun, AnalysisRecord, RunRecord, RunSummary
from gasam.lab.storage import replaced, write_json
from gasam.lab.tables import Table, as_json, markdown
from gasam.lab.tasks import Origin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = dict[str, Any]
Watch = Callable[[str], None]
"""Told in a few words how far a measurement is."""

OF_THE_RUN = ("identity", *(name for name in RunSummary.model_fields if name != "epsilon_source"))


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
    def table(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Table: ...

    @abstractmethod
    def draw(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> Figure: ...

    @abstractmethod
    def sentence(self, found: Sequence[AnalysisRecord], labels: Sequence[str]) -> str:
        """What it shows, with its number."""

    def measures(self, each: AnalysisRecord) -> Sequence[Measure]:
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
) -> AnalysisRecord:
    """The record of an analysis of a run: read if it is there, else measured, going on from what was kept."""
    place, known_run = read_run(run)
    file = folder / f"{name(analysis, place.stem, known_run)}.json"
    if file.exists():
        return records.read_analysis(file)
    subject = load(run, origin, cpu=cpu)
    unfinished = folder / f".{file.name}"
    known = json.loads(unfinished.read_text(encoding="utf-8")) if unfinished.exists() else {}
    begun, before = time.perf_counter(), known.pop("seconds", 0.0)

    def seconds() -> float:
        return float(round(before + time.perf_counter() - begun, 2))

    code = provenance.code()
    try:
        found = analysis.measure(
            subject, known, lambda part: write_json(unfinished, plain_value(part) | {"seconds": seconds()}), watch
        )
    except ValueError as error:  # of the analysis: one sentence
        raise InputError(str(error)) from None
    records.write(file, record(analysis, subject, found, seconds(), code))
    unfinished.unlink(missing_ok=True)
    return records.read_analysis(file)


def name(analysis: Analysis, run: str, record: RunRecord) -> str:
    text = json.dumps([analysis.options(), record.identity], sort_keys=True)
    return f"{analysis.kind}-{run}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def record(
    analysis: Analysis, subject: Subject, found: Found, seconds: float, code: Mapping[str, Any]
) -> AnalysisRecord:
    run = records.as_json(subject.record) | {"name": subject.name}
    return AnalysisRecord(
        kind=analysis.kind,
        options=analysis.options(),
        run=AnalysedRun.model_validate({key: run[key] for key in ("name", *OF_THE_RUN)}),
        examples=subject.count(analysis.split, analysis.rows),
        found=plain_value(found),
        seconds=seconds,
        machine=provenance.machine(next(subject.model.parameters()).device),
        versions=provenance.versions(),
        **code,
    )


def save(analysis: Analysis, found: Sequence[AnalysisRecord], labels: Sequence[str], folder: Path) -> list[str]:
    """The table as JSON and Markdown and the picture as PNG and SVG, under one name."""
    from gasam.analysis import pictures

    table = analysis.table(found, labels)
    tasks = dict.fromkeys(f"{each.run.task}-{each.run.size}" for each in found)
    place = folder / "-".join((analysis.filed, *tasks))
    numbers, text = (place.with_name(f"{place.name}.{kind}") for kind in ("json", "md"))
    write_json(numbers, as_json(table) | {"sentence": analysis.sentence(found, labels)})
    with replaced(text) as partial:
        partial.write_text(markdown(table), encoding="utf-8")
    return [str(file) for file in (numbers, text, *pictures.save(analysis.draw(found, labels), place))]
