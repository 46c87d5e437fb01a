"""What a search found: every try, the radius to use, its gain and its cost; and finding it again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gasam.experiments import tasks
from gasam.experiments.errors import InputError
from gasam.experiments.families import Metric
from gasam.experiments.methods import choose
from gasam.experiments.plan import Plan
from gasam.experiments.search.journal import Journal
from gasam.experiments.search.strategy import NORMS, Candidate, TwoStages, best_of
from gasam.experiments.search.trial import Worth
from gasam.experiments.sizes import for_users

if TYPE_CHECKING:
    from gasam.experiments.search.tuning import Question

SCHEMA = 1
GRID = "-grid"
"""Ends the name of a full grid, which is there to judge searches by and chooses nothing."""


@dataclass(frozen=True)
class Finding:
    """`baseline` and each of `tries` hold valid, worthless, curve, gradient_evaluations, seconds; a try that diverged
    or was given up has no valid."""

    schema: int
    name: str
    task: str
    size: str
    method: str
    seed: int
    settings: dict[str, Any]
    data: str
    exponents: tuple[int, int]
    tolerance: float
    baseline: dict[str, Any]
    tries: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, question: Question, journal: Journal, data: str) -> Finding:
        baseline = journal.baseline
        if baseline is None or baseline["valid"] is None:
            raise InputError(f"the baseline of {question.task} diverges: mend its settings before anything is tuned")
        tries = tuple(
            {"norm": _norm(each.norm), "exponent": each.exponent, "mantissa": each.mantissa, **outcome}
            for each, outcome in journal.tries().items()
        )
        settings = question.plan(None).config()["settings"]
        names = question.task, question.size, question.method, question.seed
        return cls(
            SCHEMA, journal.name, *names, settings, data, question.exponents, question.tolerance, baseline, tries
        )

    @property
    def metric(self) -> Metric:
        return tasks.find(self.task).family.metric

    def gains(self, norms: Sequence[float] = NORMS) -> dict[Candidate, float]:
        worth = Worth(self.metric, self.baseline["worthless"])
        return {
            candidate: -math.inf if one["valid"] is None else worth.gain(one["valid"], self.baseline["valid"])
            for one in self.tries
            if (candidate := candidate_of(one)).norm in norms
        }

    def chosen(self, norms: Sequence[float] = NORMS) -> Candidate | None:
        return best_of(self.gains(norms))

    def by_norm(self) -> list[Finding]:
        """What was found in each norm, as if it alone had been searched; the one to use comes first."""
        norms = dict.fromkeys(candidate_of(one).norm for one in self.tries)
        parts = [replace(self, tries=tuple(one for one in self.tries if candidate_of(one).norm == n)) for n in norms]
        best = self.chosen()
        return sorted(parts, key=lambda part: part.chosen() != best) or [self]

    def one(self, candidate: Candidate) -> dict[str, Any]:
        return next(one for one in self.tries if candidate_of(one) == candidate)

    def serves(self, plan: Plan, data_hash: str) -> bool:
        """Whether it was found for what the plan trains, and with a seed that the plan does not test."""
        ours = (self.task, self.size, self.method, self.settings, self.data)
        config = plan.config()
        theirs = (plan.task, plan.size, plan.choice.method, config["settings"], data_hash)
        return ours == theirs and self.seed != plan.seed and not self.full_grid

    @property
    def full_grid(self) -> bool:
        return self.name.endswith(GRID)

    @property
    def finished(self) -> bool:
        """Whether the search would try nothing more, in the norms that it began with."""
        norms = tuple(dict.fromkeys(candidate_of(one).norm for one in self.tries))
        return not TwoStages(norms, *self.exponents, self.tolerance).propose(self.gains(norms))

    @property
    def tried(self) -> str:
        return "1 try" if len(self.tries) == 1 else f"{len(self.tries)} tries"

    @property
    def gradient_evaluations(self) -> int:
        return sum(one["gradient_evaluations"] for one in (self.baseline, *self.tries))

    def sentence(self) -> str:
        """The line at the end of a search."""
        best = self.chosen()
        spent = f"{self.tried} with {self.gradient_evaluations:,} gradient evaluations"
        if best is None:
            return f"every radius that was tried collapsed ({spent}): raise --budget, or give smaller --exponents"
        one, plain = self.one(best), self.baseline
        gain = one["valid"] - plain["valid"]
        cost = one["gradient_evaluations"] / plain["gradient_evaluations"]
        beaten = "" if self.gains()[best] > 0 else "; no radius is better than none"
        spent += "; the best of them, on the split that chose it"
        spent += "" if self.finished or self.full_grid else "; more --budget would try more"
        return (
            f"{self.method} on {self.task}: use --norm {_norm(best.norm)} --epsilon {best.epsilon:g}: "
            f"{self.metric.name} {one['valid']:.2f} on validation, {gain:+.2f} to the baseline's {plain['valid']:.2f}, "
            f"for {cost:.1f} times its gradient evaluations{beaten} ({spent})"
        )

    def as_json(self) -> dict[str, Any]:
        best = self.chosen()
        found = None if best is None else {"norm": _norm(best.norm), "epsilon": best.epsilon}
        return asdict(self) | {"chosen": found, "gradient_evaluations": self.gradient_evaluations}


def read(file: Path) -> Finding:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        names = list(Finding.__dataclass_fields__)
        values = {name: raw[name] for name in names}
        return Finding(**values | {"exponents": tuple(raw["exponents"]), "tries": tuple(raw["tries"])})
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a search found ({error}): delete it and tune again") from None


def read_all(folder: Path) -> Iterator[Finding]:
    """Of a folder of results, in the order of their names."""
    return map(read, _files(folder))


def with_tuned_radius(plan: Plan, folder: Path, times: float | None = None) -> Plan:
    """The plan with the radius that was found for its method with its settings and data; the baseline has none.

    `times` asks for a multiple of the radius that was found in the plan's own norm.
    """
    if plan.choice.moved == "nothing":
        return plan
    if times is None and plan.choice.epsilon_source == "command line":
        raise InputError(
            f"{plan.choice.method} is given a radius and is to use the tuned one: leave out one of the two"
        )
    norms = NORMS if times is None else (plan.choice.norm,)
    found = _found_for(plan, folder, norms)
    best = None if found is None else found.chosen(norms)
    if found is None or best is None:
        wanted = "" if times is None else f" --norms {_norm(plan.choice.norm)}"
        method, size = plan.choice.method, for_users(plan.task, plan.size)
        raise InputError(
            f"nothing in {folder / 'tuning'} says which epsilon {method} needs on {plan.task} in size {plan.size} with "
            f"these settings and this data: run `gasam tune {plan.task} --method {method} --size {size}{wanted} "
            f"--out {folder}` first, with the same --epochs, --set and files and another --seed"
        )
    tried = next(part.tried for part in found.by_norm() if part.chosen() == best)
    source = f"tuned on validation{_for_whom(plan)}, {tried if times is None else f'{times:g} x'}"
    epsilon = float(f"{best.epsilon * (times or 1):.6g}")
    return replace(plan, choice=replace(plan.choice, norm=best.norm, epsilon=epsilon, epsilon_source=source))


def _found_for(plan: Plan, folder: Path, norms: Sequence[float]) -> Finding | None:
    data_hash = plan.data()["hash"]
    for file in _files(folder):
        if read(file).serves(plan, data_hash):
            found = _at_its_end(file)
            if found.chosen(norms):
                return found
    return None


def _for_whom(plan: Plan) -> str:
    """A search is for the method's usual walk, with fresh noise: another one may borrow its radius, and says so."""
    radius = {"norm": plan.choice.norm, "epsilon": plan.choice.epsilon}
    usual = choose(plan.choice.method, plan.task, plan.settings.epochs, radius, plan.size)
    return "" if plan.choice.identity() == usual.identity() else " for the usual walk"


def _files(folder: Path) -> list[Path]:
    return sorted((folder / "tuning").glob("*.json"))


def _at_its_end(file: Path) -> Finding:
    """What a search has found so far is not yet what it will choose."""
    lock = file.with_suffix(".lock")
    if not lock.exists():
        return read(file)
    try:
        with FileLock(lock, timeout=1):
            return read(file)
    except Timeout:
        raise InputError(f"{file.stem} is still being tuned: wait for it, or use its radius with --epsilon") from None


def _norm(norm: float) -> str:
    return "inf" if math.isinf(norm) else f"{norm:g}"


def candidate_of(one: dict[str, Any]) -> Candidate:
    return Candidate(float(one["norm"]), one["exponent"], one["mantissa"])
