"""The paper's tables as studies: the runs that each row needs, and the results that the paper prints."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gasam.lab.errors import InputError
from gasam.lab.methods import Walks
from gasam.lab.paper import figures
from gasam.lab.search.finding import with_tuned_walk
from gasam.lab.tasks import Origin, find
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan

Walk = Mapping[str, Any]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Expected:
    """A result of the paper.

    Args:
        text: The result as printed: mean ± standard deviation over four runs.
        baseline: The result of the baseline in the same table.
        slip: The difference to the baseline as printed, if the printed means give another one.
    """

    text: str
    baseline: Expected | None = None
    slip: str = ""

    @property
    def mean(self) -> Decimal:
        return Decimal(self.text.split(" ± ")[0])

    @property
    def std(self) -> Decimal:
        return Decimal(self.text.split(" ± ")[1])

    @property
    def difference(self) -> Decimal | None:
        """The printed mean minus the baseline's, rounded to the fewer digits of the two; None for the baseline."""
        if self.baseline is None:
            return None
        coarser = max(self.mean, self.baseline.mean, key=lambda mean: mean.as_tuple().exponent)
        return (self.mean - self.baseline.mean).quantize(coarser)


@dataclass(frozen=True)
class Row:
    """A row of a table on one task.

    Args:
        study: The name of the study.
        task: The name of the task.
        label: The row's label in the paper.
        method: The name of the method.
        walk: The options of the walk that the row sets.
        own: Those of these options that are set for this task only.
        expected: The paper's result.
        times: For a row that sets a radius: its ratio to the radius with the best mean in the paper among the rows of
            the same method and norm. With tuned radii, the tuned one takes the place of the best.
    """

    study: str
    task: str
    label: str
    method: str
    walk: Walk
    own: Walk
    expected: Expected
    times: float | None = None

    def plan(
        self,
        size: str,
        seed: int,
        *,
        origin: Origin | None = None,
        tuned: Path | None = None,
        walks: Walks = "paper",
    ) -> Plan:
        """The plan of this row.

        Args:
            size: The name of the size as records hold it.
            seed: The seed of the run.
            origin: Where the data is.
            tuned: A folder of records; the size of the walk is taken from its searches instead of the paper.
            walks: "paper" or "recommended": whose walk a row has that sets no epsilon itself.
        """
        made = plan.make(self.task, self.method, size, seed, origin=origin, walk=self.walk, walks=walks)
        if tuned is not None:
            return with_tuned_walk(made, tuned, self.times)
        if self.times is None:
            return made
        return replace(made, walk=made.walk.model_copy(update={"source": "paper"}))


class RowInFile(BaseModel):
    """A row in a study's file, for all tasks.

    `walk` holds options of the walk, and under the name of a task the options for this task only.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    label: str
    method: str
    paper: dict[str, Annotated[str, Field(pattern=r"^\d+(\.\d+)? ± \d+(\.\d+)?$")]]
    walk: dict[str, Any] = {}
    slip: dict[str, str] = {}


class Study(BaseModel):
    """A table of the paper, as its file holds it; the first row is the baseline. `seeds` is the number of seeds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    title: str
    cost: str
    tasks: list[str]
    seeds: Annotated[int, Field(ge=1)]
    rows: Annotated[list[RowInFile], Field(min_length=1)]

    @property
    def number(self) -> str:
        return self.title.partition(":")[0]

    def rows_on(self, task: str) -> list[Row]:
        found: list[Row] = []
        for row in self.rows:
            own = row.walk.get(task, {})
            walk = {key: value for key, value in row.walk.items() if key not in self.tasks} | own
            expected = Expected(row.paper[task], found[0].expected if found else None, row.slip.get(task, ""))
            found.append(Row(self.name, task, row.label, row.method, walk, own, expected))
        return [replace(row, times=_times(row, found)) for row in found]

    def plans(
        self,
        size: str,
        tasks: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        *,
        origin: Origin | None = None,
        tuned: Path | None = None,
        walks: Walks = "paper",
    ) -> list[Plan]:
        """Every run that the table needs; rows with the same walk share their runs.

        Args:
            size: The name of the size.
            tasks: Some of the table's tasks; by default all.
            seeds: The seeds; by default 1 to `self.seeds`.
            origin: Where the data is.
            tuned: A folder of records; the sizes of the walks are taken from its searches instead of the paper.
            walks: "paper" or "recommended": whose walk a row has that sets no epsilon itself.
        """
        chosen = self.tasks if tasks is None else tasks
        if unknown := sorted(set(chosen) - set(self.tasks)):
            raise InputError(f"{self.name} has no task {unknown[0]!r}: it has {', '.join(self.tasks)}")
        unique: dict[str, Plan] = {}
        for task in chosen:
            for row, seed in product(self.rows_on(task), seeds or range(1, self.seeds + 1)):
                run = row.plan(size, seed, origin=origin, tuned=tuned, walks=walks)
                unique.setdefault(run.key("", run.seed), run)
        return list(unique.values())


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def every() -> list[Study]:
    return [load(name) for name in names()]


@cache
def load(name: str) -> Study:
    if name not in names():
        known = sorted((*names(), *figures.FIGURES))
        raise InputError(f"study must be one of {', '.join(known)}, got {name!r}")
    try:
        return parse(name, tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}") from None


def parse(name: str, raw: Mapping[str, Any]) -> Study:
    """Make a study from the content of its file. All plans are made once, so that mistakes are found here."""
    try:
        study = Study.model_validate({"name": name, **raw})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in fault["loc"])
        raise InputError(f"{name}: {place}: {fault['msg']}, got {fault['input']!r}") from None
    if study.rows[0].method != "baseline":
        raise InputError(f"{name}: the first row must be the baseline, because the others are compared with it")
    for number, row in enumerate(study.rows, 1):
        if row.paper.keys() != set(study.tasks):
            raise InputError(f"{name}: row {number} must have a result of the paper for {', '.join(study.tasks)}")
    try:
        study.plans("paper")
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return study


def relative_cost(run: Plan) -> float:
    """Gradient evaluations relative to plain training for the same number of epochs."""
    epochs = run.settings.epochs
    return math.fsum(run.walk.passes(epoch) for epoch in range(1, epochs + 1)) / epochs


def _times(row: Row, rows: Sequence[Row]) -> float | None:
    if "epsilon" not in row.walk:
        return None
    ladder = [
        other
        for other in rows
        if other.method == row.method and "epsilon" in other.walk and other.walk.get("norm") == row.walk.get("norm")
    ]
    best = find(row.task).family.metric.best(ladder, lambda rung: float(rung.expected.mean))
    return float(row.walk["epsilon"] / best.walk["epsilon"])
