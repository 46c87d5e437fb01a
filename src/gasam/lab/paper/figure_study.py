"""What a study of one of the paper's figures is: runs that are trained, what is measured on them, what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gasam.lab import analyses, records, tasks
from gasam.lab.analyses import Analysis
from gasam.lab.errors import InputError
from gasam.lab.records import AnalysisRecord, RunRecord
from gasam.lab.storage import write_json
from gasam.lab.tables import Table
from gasam.lab.tasks import Origin
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDIES: dict[str, FigureStudy] = {}
"""Every study by its name. A class with a `name` puts itself here."""


@dataclass(frozen=True)
class Finding:
    """What a study found: its numbers, its picture, and one sentence that says what they show."""

    title: str
    data: dict[str, Any]
    figure: Figure
    sentence: str
    tables: tuple[Table, ...] = ()

    def save(self, place: Path) -> list[Path]:
        from gasam.analysis import pictures

        numbers = place.with_name(f"{place.name}.json")
        write_json(numbers, {"title": self.title, "sentence": self.sentence} | self.data)
        return [numbers, *pictures.save(self.figure, place)]


@dataclass(frozen=True)
class TrainedRuns:
    """The finished runs of a study, and how they are analysed.

    Args:
        size: The size that they were run in.
        files: Their records' files.
        records: Their records.
        folder: Where the records of analyses are.
        origin: Where their data is.
        cpu: Use the CPU even if there is a GPU.
        labels: Names analysed runs in tables and pictures.
        report: Called with a few words that say how far a measurement is.
    """

    size: str
    files: Sequence[Path]
    records: Sequence[RunRecord]
    folder: Path
    origin: Origin
    cpu: bool
    labels: Callable[[Sequence[AnalysisRecord]], Sequence[str]]
    report: Callable[[str], None]

    def analysed(self, analysis: Analysis, files: Sequence[Path] | None = None) -> list[AnalysisRecord]:
        """Of all runs, unless some are named."""
        found = []
        for file in self.files if files is None else files:
            report = partial(self._report, f"{analysis.kind} of {file.stem}")
            found.append(analyses.run(analysis, file, self.folder, self.origin, cpu=self.cpu, report=report))
        return found

    def _report(self, what: str, text: str) -> None:
        self.report(f"{what}: {text}")


class FigureStudy:
    """A figure of the paper, by default one analysis of its runs. A subclass with a `name` registers itself.

    `tasks` are those of the paper; users may name others. `substitutes` are taken if the data of `tasks` is missing.
    `analyses` has an analysis for each size. `gradient_norms` says whether training records them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    substitutes: ClassVar[tuple[str, ...]] = ()
    methods: ClassVar[tuple[str, ...]] = ("baseline", "ga-sam")
    gradient_norms: ClassVar[bool] = False
    analyses: ClassVar[Mapping[str, Analysis]] = {}

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            STUDIES[cls.name] = cls()

    def usual_tasks(self, origin: Origin) -> tuple[str, ...]:
        try:
            for task in self.tasks:
                tasks.find(task).source(origin)
        except InputError:
            if self.substitutes:
                return self.substitutes
            raise
        return self.tasks

    def plans(self, size: str, names: Sequence[str], seeds: Sequence[int], origin: Origin) -> list[Plan]:
        """The runs that the study trains."""
        return [
            plan.make(task, method, size, seed, origin=origin)
            for task in names
            for seed in seeds
            for method in self.methods
        ]

    def find(self, runs: TrainedRuns) -> Finding:
        analysis = self.analyses[runs.size]
        return self.shown(analysis, runs.analysed(analysis), runs)

    def shown(self, analysis: Analysis, found: Sequence[AnalysisRecord], runs: TrainedRuns) -> Finding:
        """What an analysis shows of the runs."""
        labels = runs.labels(found)
        return Finding(
            self.title,
            {"records": [records.as_json(each) for each in found]},
            analysis.draw(found, labels),
            analysis.sentence(found, labels),
            (analysis.table(found, labels),),
        )
