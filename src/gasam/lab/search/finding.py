"""What a search found: every trial, the walk to use, its gain and its cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasam.lab import tasks
from gasam.lab.errors import InputError
from gasam.lab.families import Metric
from gasam.lab.search.journal import Journal
from gasam.lab.search.strategy import NORMS, Candidate, TwoStages, best_of
from gasam.lab.search.trial import Worth
from gasam.lab.training.plan import Plan

if TYPE_CHECKING:
    from gasam.lab.search.question import Question

SCHEMA = 1
GRID = "-grid"
"""Ends the name of a full grid, which is there to judge searches by and chooses nothing."""


@dataclass(frozen=True)
class Finding:
    """Everything a search has measured.

    `baseline` and each of `tries` hold valid, error, worthless, curve, gradient_evaluations and seconds; a trial that
    diverged or was given up has no valid. `quantity` is what was searched: budget or epsilon. `walk` holds the other
    options of the walk, such as its cap. `repeats` holds the finalists and the baseline again, each with another seed.
    """

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
    quantity: str = "epsilon"
    walk: dict[str, Any] | None = None
    repeats: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, question: Question, journal: Journal, data: str, repeats: tuple[dict[str, Any], ...] = ()) -> Finding:
        baseline = journal.baseline
        if baseline is None or baseline["valid"] is None:
            raise InputError(f"the baseline of {question.task} diverges: change its settings before you tune a walk")
        tries = tuple(_described(each) | outcome for each, outcome in journal.tries().items())
        settings = question.plan(None).config()["settings"]
        names = question.task, question.size, question.method, question.seed
        found = cls(
            SCHEMA, journal.name, *names, settings, data, question.exponents, question.tolerance, baseline, tries
        )
        return replace(found, quantity=question.quantity, walk=question.fixed(), repeats=repeats)

    @property
    def metric(self) -> Metric:
        return tasks.find(self.task).family.metric

    @property
    def worth(self) -> Worth:
        return Worth(self.metric, self.baseline["worthless"])

    @property
    def error(self) -> float:
        """The standard error of a difference between two scores on the validation split, in units of the metric.

        It is that of independent splits, an upper bound: here both scores are of the same examples.
        """
        return math.sqrt(2) * (self.baseline.get("error") or 0.0)

    @property
    def noise(self) -> float:
        """The same as a share of the baseline's worth."""
        return self.error / self.worth.of(self.baseline["valid"])

    def gains(self, norms: Sequence[float] = NORMS) -> dict[Candidate, float]:
        """Over the baseline; of a finalist the mean over its seeds."""
        found = self.gains_of_first_seed(norms)
        for candidate in self.repeated():
            if candidate in found:
                gains = [self._gain(ours, plain) for ours, plain in self.pairs(candidate)]
                found[candidate] = sum(gains) / len(gains)
        return found

    def gains_of_first_seed(self, norms: Sequence[float] = NORMS) -> dict[Candidate, float]:
        found = {candidate_of(one): self._gain(one["valid"], self.baseline["valid"]) for one in self.tries}
        return {candidate: gain for candidate, gain in found.items() if candidate.norm in norms}

    def pairs(self, candidate: Candidate) -> list[tuple[float | None, float]]:
        """The scores of a candidate and of the baseline, seed by seed; seeds whose baseline diverged are left out."""
        plain = {one["seed"]: one["valid"] for one in self.repeats if "norm" not in one}
        again = [(one["valid"], plain[one["seed"]]) for one in self.repeats if _is(one, candidate)]
        every = [(self.one(candidate)["valid"], self.baseline["valid"]), *again]
        return [(ours, baseline) for ours, baseline in every if baseline is not None]

    def repeated(self) -> list[Candidate]:
        return list(dict.fromkeys(candidate_of(one) for one in self.repeats if "norm" in one))

    def chosen(self, norms: Sequence[float] = NORMS) -> Candidate | None:
        """The best of the finalists, if they were repeated with other seeds and did not all diverge, else of all."""
        gains = self.gains(norms)
        finalists = {each: gains[each] for each in self.repeated() if each in gains}
        return best_of(finalists) or best_of({each: gain for each, gain in gains.items() if each not in finalists})

    def _gain(self, value: float | None, baseline: float) -> float:
        return -math.inf if value is None else self.worth.gain(value, baseline)

    def means(self, candidate: Candidate) -> tuple[float, float]:
        """The mean score of a candidate and of the baseline, over the seeds that the candidate has."""
        pairs = [(ours, plain) for ours, plain in self.pairs(candidate) if ours is not None]
        return sum(ours for ours, _ in pairs) / len(pairs), sum(plain for _, plain in pairs) / len(pairs)

    @property
    def seeds(self) -> list[int]:
        return [self.seed, *dict.fromkeys(one["seed"] for one in self.repeats)]

    def by_norm(self) -> list[Finding]:
        """What was found in each norm, as if it alone had been searched; the one to use comes first."""
        norms = dict.fromkeys(candidate_of(one).norm for one in self.tries)
        parts = [self._in_norm(norm) for norm in norms]
        best = self.chosen()
        return sorted(parts, key=lambda part: part.chosen() != best) or [self]

    def _in_norm(self, norm: float) -> Finding:
        tries = tuple(one for one in self.tries if candidate_of(one).norm == norm)
        repeats = tuple(one for one in self.repeats if "norm" not in one or candidate_of(one).norm == norm)
        return replace(self, tries=tries, repeats=repeats)

    def one(self, candidate: Candidate) -> dict[str, Any]:
        return next(one for one in self.tries if _is(one, candidate))

    def serves(self, plan: Plan, data_hash: str) -> bool:
        """Whether it was found for what the plan trains, and with seeds that the plan does not test."""
        ours = (self.task, self.size, self.method, self.settings, self.data)
        config = plan.config()
        theirs = (plan.task, plan.size, plan.choice.method, config["settings"], data_hash)
        return ours == theirs and plan.seed not in self.seeds and not self.full_grid

    @property
    def full_grid(self) -> bool:
        return self.name.endswith(GRID)

    @property
    def finished(self) -> bool:
        """Whether the search would try nothing more, in the norms that it began with."""
        norms = tuple(dict.fromkeys(candidate_of(one).norm for one in self.tries if "cap" not in one))
        search = TwoStages(norms, *self.exponents, self.tolerance, self.noise)
        return bool(norms) and not search.propose(self.gains_of_first_seed(norms))

    @property
    def tried(self) -> str:
        return "1 try" if len(self.tries) == 1 else f"{len(self.tries)} tries"

    @property
    def gradient_evaluations(self) -> int:
        return sum(one["gradient_evaluations"] for one in (self.baseline, *self.tries, *self.repeats))

    @property
    def never_walked(self) -> bool:
        """Whether no trial needed more gradients than the baseline: the schedule never let the walk begin."""
        return all(one["gradient_evaluations"] <= self.baseline["gradient_evaluations"] for one in self.tries)

    def options(self, candidate: Candidate) -> dict[str, Any]:
        """The size of a walk, with the options that all of them have."""
        own = {} if candidate.cap is None else {"cap": candidate.cap}
        return {"norm": candidate.norm, self.quantity: candidate.value} | (self.walk or {}) | own

    def at_guessing_level(self, one: dict[str, Any]) -> bool:
        """Whether a trial, or the baseline, is no better than guessing; False if its error is not known."""
        if one["valid"] is None or one.get("error") is None:
            return False
        return Worth(self.metric, one["worthless"]).is_guessing(one["valid"], one["error"])

    def as_json(self) -> dict[str, Any]:
        best = self.chosen()
        found = None if best is None else self.options(best) | {"norm": in_words(best.norm)}
        return asdict(self) | {"chosen": found, "gradient_evaluations": self.gradient_evaluations}


def read(file: Path) -> Finding:
    """Older files lack the newer fields, which have defaults."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        names = [each.name for each in fields(Finding) if each.name in raw or each.default is MISSING]
        values = {name: raw[name] for name in names}
        values |= {name: tuple(values[name]) for name in ("exponents", "tries", "repeats") if name in values}
        return Finding(**values)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a search found ({error}): delete it and tune again") from None


def read_all(folder: Path) -> Iterator[Finding]:
    """Of a folder of results, in the order of their names."""
    return map(read, files(folder))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "tuning").glob("*.json"))


def in_words(norm: float) -> str:
    return "inf" if math.isinf(norm) else f"{norm:g}"


def candidate_of(one: dict[str, Any]) -> Candidate:
    return Candidate(float(one["norm"]), one["exponent"], one["mantissa"], one.get("cap"))


def described(candidate: Candidate | None, seed: int, outcome: dict[str, Any]) -> dict[str, Any]:
    """A repetition as `Finding.repeats` holds it; None is the baseline's."""
    return ({} if candidate is None else _described(candidate)) | {"seed": seed} | outcome


def _described(candidate: Candidate) -> dict[str, Any]:
    cap = {} if candidate.cap is None else {"cap": candidate.cap}
    return {"norm": in_words(candidate.norm), "exponent": candidate.exponent, "mantissa": candidate.mantissa} | cap


def _is(one: dict[str, Any], candidate: Candidate | None) -> bool:
    return (candidate_of(one) if "norm" in one else None) == candidate
