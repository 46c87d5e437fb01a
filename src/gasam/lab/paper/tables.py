"""The paper's tables: the runs that each row needs, and the printed numbers beside ours with a verdict."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.methods import Walks
from gasam.lab.output import FEW, Table
from gasam.lab.paper import figures
from gasam.lab.paper.verdicts import Verdict, judge
from gasam.lab.record import Record
from gasam.lab.report import comparison
from gasam.lab.report.comparison import Comparison, Difference, described
from gasam.lab.search import with_tuned_walk
from gasam.lab.tasks import Origin
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan

FOLDER = Path(__file__).parent
RUNS_OF_THE_PAPER = 4
SIZE = {"epsilon", "budget", "cap", "norm", "walk_progress", "source"}
"""What a search for the size of a walk may set."""
TRIALS = 4
"""The trials of a search that a tuned epsilon of these tables comes from."""


class Printed(NamedTuple):
    """A result of the paper: mean and standard deviation over four runs."""

    mean: Decimal
    std: Decimal

    @classmethod
    def of(cls, text: str) -> Printed:
        mean, _, std = text.split()
        return cls(Decimal(mean), Decimal(std))

    def __str__(self) -> str:
        return f"{self.mean} ± {self.std}"

    def minus(self, baseline: Printed) -> Decimal:
        """The difference of the means, rounded to the fewer digits of the two."""
        coarser = max(self.mean, baseline.mean, key=lambda mean: mean.as_tuple().exponent)
        return (self.mean - baseline.mean).quantize(coarser)

    def claim(self, baseline: Printed) -> Difference:
        """The difference with Welch's 95% interval."""
        from scipy import stats  # type: ignore[import-untyped]

        ours, theirs = (float(each.std) ** 2 / RUNS_OF_THE_PAPER for each in (self, baseline))
        freedom = (ours + theirs) ** 2 / (ours**2 + theirs**2) * (RUNS_OF_THE_PAPER - 1)
        reach = float(stats.t.ppf(0.975, freedom)) * math.sqrt(ours + theirs)
        mean = float(self.mean - baseline.mean)
        return Difference(mean, mean - reach, mean + reach, RUNS_OF_THE_PAPER)


@dataclass(frozen=True)
class Row:
    """A row of a table on one task."""

    task: str
    label: str  # the row's label in the paper
    method: str
    walk: Mapping[str, Any]  # the options that the row sets; one that sets an epsilon is about this radius only
    paper: Printed
    baseline: Printed | None = None  # the paper's result of plain training; None for its own row

    def plan(self, size: str, seed: int, walks: Walks | Path = "paper", origin: Origin | None = None) -> Plan:
        """The plan of this row; see `PaperTable.plans` for the arguments."""
        source = "paper" if isinstance(walks, Path) else walks
        made = plan.make(self.task, self.method, size, seed, origin=origin, walk=self.walk, walks=source)
        if "epsilon" in self.walk:
            return replace(made, walk=made.walk.model_copy(update={"source": "paper"}))
        return with_tuned_walk(made, walks) if isinstance(walks, Path) else made

    def ours(self, runs: Comparison, size: str, walks: Walks | Literal["tuned"]) -> comparison.Row | None:
        """Our configuration of this row, with the task's own settings and this walk; the paper's if none was tuned."""
        settings = self.plan(size, 1).settings.model_dump(mode="json")
        usual = [each for each in runs.rows if each.first.settings == settings and each.method == self.method]
        if self.baseline is None:
            return usual[0] if usual else None
        if walks == "tuned" and "epsilon" not in self.walk:
            alike = self.plan(size, 1).walk.model_dump(exclude=SIZE)
            tuned = [each for each in usual if each.walk.source == "tuned" and each.walk.budget is None]
            if found := [each for each in tuned if each.walk.model_dump(exclude=SIZE) == alike]:
                return found[0]
        wanted = self.plan(size, 1, "paper" if walks == "tuned" else walks).walk.identity()
        return next((each for each in usual if each.walk.identity() == wanted), None)

    def beside(
        self, found: Comparison | None, size: str, walks: Walks | Literal["tuned"]
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """The texts and the values of this row: ours, and beside it the recommended walk."""
        ours = None if found is None else self.ours(found, size, walks)
        usual = None
        if found and self.baseline is not None and "epsilon" not in self.walk and walks != "recommended":
            usual = self.ours(found, size, "recommended")
        paper, told, verdict = str(self.paper), "", None  # the baseline has no verdict
        if self.baseline is not None:
            paper += f" ({self.paper.minus(self.baseline):+})"
            is_tuned = ours is not None and ours.walk.source == "tuned"
            lacks_search = walks == "tuned" and "epsilon" not in self.walk and not is_tuned
            verdict = judge(self.paper.claim(self.baseline), ours)
            if verdict.word == "contradicted" and lacks_search:
                verdict = Verdict("undecided", "epsilon not tuned")
            told, hours = str(verdict), self.missing_hours(found, ours, TRIALS if lacks_search else 0)
            told += f", {hours:.1f} core-hours missing" if hours else ""
        cost = None if ours is None else ours.relative_cost
        text = {
            "task": self.task,
            "row": self.label,
            "paper (minus baseline)": paper,
            "ours": "" if ours is None else ours.score,
            "minus baseline [95%]": "" if ours is None else ours.versus(ours.baseline),
            "passes": "" if cost is None else f"{cost:.2f}x",
            "verdict": told,
            "recommended walk": "" if usual is None else usual.versus(usual.baseline),
        }
        value: dict[str, Any] = {"task": self.task, "row": self.label, "paper": str(self.paper), "key": None}
        value |= {"verdict": None if verdict is None else verdict._asdict()} | ({} if ours is None else ours.values())
        return text, value | {"recommended": None if usual is None else usual.values()}

    def missing_hours(self, found: Comparison | None, ours: comparison.Row | None, trials: int) -> float:
        """Core-hours of a search and of what three seeds lack, from the time of plain training; 0 if unknown."""
        plain = next((each for each in (found.rows if found else ()) if each.method == "baseline"), None)
        missing = max(0, FEW - (0 if ours is None else len(ours.records))) + trials
        if not plain:
            return 0.0
        return missing * self.plan(plain.first.size, 1).walk.passes * plain.cost("seconds") / 3600


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, as its file holds it; the first row is the baseline.

    An entry is a row: the label, the method, a result for each task, and the options of the walk if the row sets some.
    An option that is a list has a value for each task.
    """

    title: str  # its number and what it compares
    tasks: Sequence[str]
    seeds: int  # the number of seeds
    entries: Sequence[Sequence[Any]]

    def rows(self, task: str) -> list[Row]:
        place, found = self.tasks.index(task), list[Row]()
        for label, method, *results in self.entries:
            options = results.pop() if len(results) > len(self.tasks) else {}
            walk = {name: value[place] if isinstance(value, list) else value for name, value in options.items()}
            baseline = found[0].paper if found else None
            found.append(Row(task, label, method, walk, Printed.of(results[place]), baseline))
        return found

    def plans(
        self,
        size: str,
        tasks: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        walks: Walks | Path = "paper",
        origin: Origin | None = None,
    ) -> list[Plan]:
        """Every run that the table, or some of its tasks, needs; rows with the same walk share their runs.

        `walks` says whose walk a row has that sets no epsilon itself: the paper's, the recommended one, or the one that
        the searches in this folder of records have found.
        """
        chosen = self.tasks if tasks is None else tasks
        if unknown := sorted(set(chosen) - set(self.tasks)):
            raise InputError(f"{self.title} has no task {unknown[0]!r}: it has {', '.join(self.tasks)}")
        unique: dict[str, Plan] = {}
        for task in chosen:
            for row, seed in product(self.rows(task), seeds or range(1, self.seeds + 1)):
                run = row.plan(size, seed, walks, origin)
                unique.setdefault(run.key("", run.seed), run)
        return list(unique.values())

    def beside(self, records: Sequence[Record], size: str, walks: Walks | Literal["tuned"] = "paper") -> Table:
        """The table with our runs of this size: those with these walks have a verdict."""
        found = {each.records[0].task: each for each in Comparison.of(run for run in records if run.size == size)}
        shown = [task for task in self.tasks if task in found] or self.tasks
        lines = [row.beside(found.get(task), size, walks) for task in shown for row in self.rows(task)]
        notes = [f"{task}: {described(tasks.find(task).family.metric)}." for task in shown]
        if left_out := [task for task in self.tasks if task not in shown]:
            notes.append(f"Not run in this size: {', '.join(left_out)}.")
        return Table(f"{self.title}, size {size}", [text for text, _ in lines], notes, [value for _, value in lines])


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@cache
def load(name: str) -> PaperTable:
    if name not in names():
        known = sorted((*names(), *figures.FIGURES))
        raise InputError(f"study must be one of {', '.join(known)}, got {name!r}")
    return PaperTable(**tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))
