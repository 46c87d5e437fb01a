"""The base class of studies of the paper's figures: the runs to train, and the analysis of these runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gasam.lab import record as records
from gasam.lab import tasks
from gasam.lab.analyses import Analysis
from gasam.lab.errors import InputError
from gasam.lab.record import AnalysisRecord, Record
from gasam.lab.storage import write_json
from gasam.lab.tables import Table
from gasam.lab.tasks import Origin
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE_STUDIES: dict[str, FigureStudy] = {}
"""Every study by its name."""


@dataclass(frozen=True)
class FigureResult:
    """The result of a study: its numbers, its pictures, its tables, and one sentence that says what they show."""

    title: str
    data: dict[str, Any]
    figures: Sequence[Figure]
    sentence: str
    tables: tuple[Table, ...] = ()

    def save(self, place: Path) -> list[Path]:
        from gasam.analysis import pictures

        numbers = place.with_name(f"{place.name}.json")
        write_json(numbers, {"title": self.title, "sentence": self.sentence} | self.data)
        return [numbers, *pictures.save_all(self.figures, place)]


@dataclass(frozen=True)
class TrainedRuns:
    """The finished runs of a study.

    Args:
        size: The name of the size.
        files: The files of the records, `NAME.json`.
        records: The records.
        analyse: Runs an analysis on some of the files.
        labels: Gives the labels of analysed runs.
    """

    size: str
    files: Sequence[Path]
    records: Sequence[Record]
    analyse: Callable[[Analysis, Sequence[Path]], list[AnalysisRecord]]
    labels: Callable[[Sequence[AnalysisRecord]], Sequence[str]]


class FigureStudy:
    """A figure of the paper: by default one analysis of all runs. A subclass with a `name` registers itself.

    `tasks` are the paper's tasks; users may name others. `substitutes` are used if the data of `tasks` is missing.
    `analyses` has an analysis for each size. `gradient_norms` says whether training records gradient norms.
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
            FIGURE_STUDIES[cls.name] = cls()

    def usual_tasks(self, origin: Origin) -> tuple[str, ...]:
        """The paper's tasks, or the substitutes if the data of one of them is missing."""
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

    def find(self, runs: TrainedRuns) -> FigureResult:
        analysis = self.analyses[runs.size]
        return self.shown(analysis, runs.analyse(analysis, runs.files), runs)

    def shown(self, analysis: Analysis, found: Sequence[AnalysisRecord], runs: TrainedRuns) -> FigureResult:
        """The result of one analysis of the runs."""
        labels = runs.labels(found)
        data = {"records": [records.as_json(each) for each in found]}
        table = analysis.table(found, labels)
        return FigureResult(self.title, data, analysis.draw(found, labels), analysis.sentence(found, labels), (table,))
