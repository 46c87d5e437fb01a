"""The paper's figures and its table of robustness as studies: what is trained, what is measured, what is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

Watch = Callable[[str], None]


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
class Setting:
    """Where a study works, and how it tells that it does."""

    size: str
    out: Path
    origin: Origin
    cpu: bool
    watch: Watch


class FigureStudy(ABC):
    """`tasks` are those of the paper; any others may be named instead. `otherwise` is for where their data is not."""

    title: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]]
    otherwise: ClassVar[tuple[str, ...]] = ()
    methods: ClassVar[tuple[str, ...]] = ("baseline", "ga-sam")
    gradient_norms: ClassVar[bool] = False

    def usual_tasks(self, origin: Origin) -> tuple[str, ...]:
        try:
            for task in self.tasks:
                tasks.find(task).source(origin)
        except InputError:
            if self.otherwise:
                return self.otherwise
            raise
        return self.tasks

    def plans(self, size: str, names: Sequence[str], seeds: Sequence[int], origin: Origin) -> list[Plan]:
        """The runs that it is about, by the one training loop."""
        return [
            plan.make(task, method, size, seed, origin=origin)
            for task in names
            for seed in seeds
            for method in self.methods
        ]

    @abstractmethod
    def find(self, runs: Sequence[Path], found: Sequence[RunRecord], setting: Setting) -> Finding:
        """`runs` are the files of the records `found`."""


def analysed(analysis: Analysis, runs: Sequence[Path], setting: Setting) -> list[AnalysisRecord]:
    return [
        analyses.run(
            analysis,
            run,
            setting.out / "analysis",
            setting.origin,
            cpu=setting.cpu,
            watch=lambda text, run=run: setting.watch(f"{analysis.kind} of {run.stem}: {text}"),  # type: ignore[misc]
        )
        for run in runs
    ]


def finding(title: str, analysis: Analysis, measured: Sequence[AnalysisRecord]) -> Finding:
    """What an analysis shows of some runs."""
    from gasam.lab.report.labels import run_labels

    labels = run_labels(measured)
    shown = analysis.draw(measured, labels), analysis.sentence(measured, labels), (analysis.table(measured, labels),)
    return Finding(title, {"records": [records.as_json(each) for each in measured]}, *shown)


def rows_for(size: str, paper: int, small: int, tiny: int) -> int:
    """How many examples a study takes in a size."""
    return {"paper": paper, "small": small, "tiny": tiny}[size]


def study(name: str) -> FigureStudy:
    from gasam.lab.paper.figures.gradients import Figure4, Figure5
    from gasam.lab.paper.figures.robustness import Table4
    from gasam.lab.paper.figures.shifts import Figure1, Figure2
    from gasam.lab.paper.figures.spectra import Figure3
    from gasam.lab.paper.figures.substitutions import OverTraining

    studies: dict[str, type[FigureStudy]] = {
        "figure1": Figure1,
        "figure2": Figure2,
        "figure3": Figure3,
        "figure4": Figure4,
        "figure5": Figure5,
        "table4": Table4,
        "substitutions": OverTraining,
    }
    assert tuple(studies) == NAMES
    if name not in studies:
        raise InputError(f"study must be one of {', '.join(NAMES)}, got {name!r}")
    return studies[name]()


NAMES = ("figure1", "figure2", "figure3", "figure4", "figure5", "table4", "substitutions")
