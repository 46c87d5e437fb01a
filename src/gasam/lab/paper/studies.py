"""The paper's tables as studies: which rows are run on which tasks, and what the paper found there."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from gasam.lab.errors import InputError
from gasam.lab.paper import figures
from gasam.lab.records import EpsilonSource
from gasam.lab.search.tuned_walk import with_tuned_walk
from gasam.lab.tasks import Origin, find
from gasam.lab.training import plan
from gasam.lab.training.plan import Plan
from gasam.lab.walks import WALK

Walk = Mapping[str, Any]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Expected:
    """A result of the paper, as printed: mean ± standard deviation over its four runs.

    `slip` is the difference to the baseline that the paper prints, where its own means give another.
    """

    text: str
    slip: str | None = None

    @property
    def mean(self) -> Decimal:
        return Decimal(self.text.split(" ± ")[0])

    @property
    def std(self) -> Decimal:
        return Decimal(self.text.split(" ± ")[1])

    def difference(self, baseline: Expected) -> Decimal:
        """Of the printed means, with no more digits than either of them has."""
        coarser = max(self.mean, baseline.mean, key=lambda mean: mean.as_tuple().exponent)
        return (self.mean - baseline.mean).quantize(coarser)


@dataclass(frozen=True)
class Row:
    """A method, and by task what it sets in the method's walk and what the paper found; `own` is the part of the walk
    that is another for every task. `best` is, for a rung of a ladder of radii, the one that the paper found best."""

    label: str
    method: str
    walk: Mapping[str, Walk]
    own: Mapping[str, Walk]
    expected: Mapping[str, Expected]
    best: Mapping[str, float]

    def plan(
        self, study: str, task: str, size: str, seed: int, *, origin: Origin | None = None, tuned: Path | None = None
    ) -> Plan:
        """`tuned` is a folder whose searches say how far to walk, instead of the paper."""
        made = plan.make(task, self.method, size, seed, origin=origin, walk=self.walk[task])
        rung = "epsilon" in self.walk[task]
        if tuned is not None:
            return with_tuned_walk(made, tuned, self.times(task) if rung else None)
        return (
            replace(made, choice=replace(made.choice, epsilon_source=EpsilonSource(kind="paper", remark=study)))
            if rung
            else made
        )

    def times(self, task: str) -> float:
        """Which multiple of its ladder's best radius a rung is: a tuned radius is the best one here."""
        return float(self.walk[task]["epsilon"] / self.best[task])


class Budget(NamedTuple):
    """Runs, and how many of the baseline's would need as many gradient evaluations."""

    runs: int
    baseline_runs: float

    def __str__(self) -> str:
        return f"{self.runs} runs that cost as much as {self.baseline_runs:.0f} of the baseline"


@dataclass(frozen=True)
class Study:
    """A table of the paper; its first row is the baseline."""

    name: str
    title: str
    cost: str
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]

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
        unknown = sorted(set(chosen) - set(self.tasks))
        if unknown:
            raise InputError(f"{self.name} has no task {unknown[0]!r}: it has {', '.join(self.tasks)}")
        unique: dict[str, Plan] = {}
        for task, row, seed in product(chosen, self.rows, self.seeds if seeds is None else seeds):
            run = row.plan(self.name, task, size, seed, origin=origin, tuned=tuned)
            unique.setdefault(json.dumps([run.config(), run.seed], sort_keys=True), run)
        return list(unique.values())

    def budget(self, size: str) -> Budget:
        plans = self.plans(size)
        return Budget(len(plans), sum(map(relative_cost, plans)))

    def difference(self, row: Row, task: str) -> Decimal | None:
        """To the baseline, from the paper's means; none for the baseline itself and where the paper has no number."""
        baseline = self.rows[0].expected.get(task)
        if row is self.rows[0] or baseline is None or task not in row.expected:
            return None
        return row.expected[task].difference(baseline)

    def slips(self) -> Iterator[tuple[Row, str]]:
        """Rows and tasks whose printed difference is not the one of the printed means."""
        return ((row, task) for row in self.rows for task in row.expected if row.expected[task].slip)


def names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@cache
def load(name: str) -> Study:
    if name not in names():
        known = sorted((*names(), *figures.STUDIES))
        raise InputError(f"study must be one of {', '.join(known)}, got {name!r}")
    with (FOLDER / f"{name}.toml").open("rb") as stream:
        try:
            return parse(name, tomllib.load(stream))
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{name} is not TOML: {error}") from None


def parse(name: str, raw: Mapping[str, Any]) -> Study:
    """A study from what its file holds; every plan is made once, so that nothing wrong is found only later."""
    _check(name, raw, {"title": str, "cost": str, "tasks": list, "seeds": int, "rows": list})
    rows = [_row(f"{name}, row {number}", raw["tasks"], row) for number, row in enumerate(raw["rows"], 1)]
    study = Study(
        name,
        raw["title"],
        raw["cost"],
        tuple(raw["tasks"]),
        tuple(range(1, raw["seeds"] + 1)),
        tuple(replace(row, best={task: _best(rows, row, task) for task in _ladders(row)}) for row in rows),
    )
    if not study.seeds:
        raise InputError(f"{name}: seeds must be a whole number >= 1, got {raw['seeds']}")
    if not study.rows or study.rows[0].method != "baseline":
        raise InputError(f"{name}: the first row must be the baseline, for the others are compared with it")
    try:
        study.plans("paper")
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return study


def relative_cost(run: Plan) -> float:
    """Gradient evaluations over those of plain training for as many epochs."""
    epochs = run.settings.epochs
    return math.fsum(run.choice.passes(epoch) for epoch in range(1, epochs + 1)) / epochs


def _row(where: str, tasks: Sequence[str], raw: Mapping[str, Any]) -> Row:
    _check(where, raw, {"label": str, "method": str, "paper": dict}, {"walk": dict, "slip": dict})
    given, slips = raw.get("walk", {}), raw.get("slip", {})
    shared = {key: value for key, value in given.items() if key not in tasks}
    own = {task: _floats(where, given.get(task, {})) for task in tasks}
    walk = {task: _floats(where, shared) | own[task] for task in tasks}
    stray = (raw["paper"].keys() | slips.keys()) - set(tasks)
    if stray:
        raise InputError(f"{where} names the task {min(stray)!r}, which is not among the study's tasks")
    for text in raw["paper"].values():
        if not re.fullmatch(r"\d+(\.\d+)? ± \d+(\.\d+)?", str(text)):
            raise InputError(f"{where}: a result of the paper looks like '84.42 ± 0.12', got {text!r}")
    expected = {task: Expected(text, slips.get(task)) for task, text in raw["paper"].items()}
    return Row(raw["label"], raw["method"], walk, own, expected, best={})


def _ladders(row: Row) -> list[str]:
    """The tasks in which a row is a rung of a ladder of radii, and has a result."""
    return [task for task, walk in row.walk.items() if "epsilon" in walk and task in row.expected]


def _best(rows: Sequence[Row], row: Row, task: str) -> float:
    """The radius of the best rung of the row's ladder: those of its method and norm, by the paper's means."""
    norm = row.walk[task].get("norm")
    ladder = [r for r in rows if r.method == row.method and task in _ladders(r) and r.walk[task].get("norm") == norm]
    choose = max if find(task).family.metric.higher_is_better else min
    return float(choose(ladder, key=lambda rung: rung.expected[task].mean).walk[task]["epsilon"])


def _floats(where: str, walk: Mapping[str, Any]) -> dict[str, Any]:
    """Radius and norm as floats: 2 and 2.0 must not make two runs of one."""
    if unknown := walk.keys() - WALK:
        raise InputError(f"{where}: a walk has no {min(unknown)!r}, it has {', '.join(sorted(WALK))}")
    return {key: float(value) if key in ("epsilon", "norm") else value for key, value in walk.items()}


def _check(where: str, raw: Any, needed: Mapping[str, type], possible: Mapping[str, type] | None = None) -> None:
    kinds = {**needed, **(possible or {})}
    if not isinstance(raw, Mapping):
        raise InputError(f"{where} must be a table, got {raw!r}")
    for key in needed.keys() - raw.keys():
        raise InputError(f"{where} lacks {key!r}")
    for key, value in raw.items():
        if key not in kinds:
            raise InputError(f"{where} has {key!r}, which is none of {', '.join(kinds)}")
        if not isinstance(value, kinds[key]):
            raise InputError(f"{where}: {key} must be of type {kinds[key].__name__}, got {value!r}")
