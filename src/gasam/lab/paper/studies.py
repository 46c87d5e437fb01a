"""The paper's tables as studies: which rows are run on which tasks, and what the paper found there."""

from __future__ import annotations

import json
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
from gasam.lab.paper import figures
from gasam.lab.records import EpsilonSource
from gasam.lab.search.tuned_walk import with_tuned_walk
from gasam.lab.tasks import Origin, find
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan

Walk = Mapping[str, Any]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Expected:
    """A result of the paper, as printed: mean ± standard deviation over its four runs.

    `baseline` is that of its table. `slip` is the difference to it that the paper prints, where its own means give
    another.
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
        """Of the printed means, with no more digits than either of them has; the baseline has none."""
        if self.baseline is None:
            return None
        coarser = max(self.mean, self.baseline.mean, key=lambda mean: mean.as_tuple().exponent)
        return (self.mean - self.baseline.mean).quantize(coarser)


@dataclass(frozen=True)
class Row:
    """A row of a table on one task: a method, what it sets in the method's walk, and what the paper found.

    Args:
        walk: The options that it sets; `own` are those of them that another task sets differently.
        times: Which multiple of the best radius of its ladder it is, for a row that sets a radius. The best is that of
            the paper's means among the rows of its method and norm; a tuned radius is the best one here.
    """

    study: str
    task: str
    label: str
    method: str
    walk: Walk
    own: Walk
    expected: Expected
    times: float | None = None

    def plan(self, size: str, seed: int, *, origin: Origin | None = None, tuned: Path | None = None) -> Plan:
        """`tuned` is a folder whose searches say how far to walk, instead of the paper."""
        made = plan.make(self.task, self.method, size, seed, origin=origin, walk=self.walk)
        if tuned is not None:
            return with_tuned_walk(made, tuned, self.times)
        if self.times is None:
            return made
        source = EpsilonSource(kind="paper", remark=self.study)
        return replace(made, choice=replace(made.choice, epsilon_source=source))


class RowInFile(BaseModel):
    """A row on all tasks: `walk` holds options of the walk, and under the name of a task those of its own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    label: str
    method: str
    paper: dict[str, Annotated[str, Field(pattern=r"^\d+(\.\d+)? ± \d+(\.\d+)?$")]]
    walk: dict[str, Any] = {}
    slip: dict[str, str] = {}


class Study(BaseModel):
    """A table of the paper, as its file holds it; the first row is the baseline. `seeds` is their number."""

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
    ) -> list[Plan]:
        """Every run that the table needs, each once, though two rows may be the same walk."""
        chosen = self.tasks if tasks is None else tasks
        if unknown := sorted(set(chosen) - set(self.tasks)):
            raise InputError(f"{self.name} has no task {unknown[0]!r}: it has {', '.join(self.tasks)}")
        unique: dict[str, Plan] = {}
        for task in chosen:
            for row, seed in product(self.rows_on(task), seeds or range(1, self.seeds + 1)):
                run = row.plan(size, seed, origin=origin, tuned=tuned)
                unique.setdefault(json.dumps([run.config(), run.seed], sort_keys=True), run)
        return list(unique.values())


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def every() -> list[Study]:
    return [load(name) for name in names()]


@cache
def load(name: str) -> Study:
    if name not in names():
        known = sorted((*names(), *figures.FIGURE_STUDIES))
        raise InputError(f"study must be one of {', '.join(known)}, got {name!r}")
    try:
        return parse(name, tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is not TOML: {error}") from None


def parse(name: str, raw: Mapping[str, Any]) -> Study:
    """A study from what its file holds; every plan is made once, so that nothing wrong is found only later."""
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
    """Gradient evaluations over those of plain training for as many epochs."""
    epochs = run.settings.epochs
    return math.fsum(run.choice.passes(epoch) for epoch in range(1, epochs + 1)) / epochs


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
