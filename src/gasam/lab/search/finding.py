"""The finding of a search: every trial, the chosen walk, its gain and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from gasam.lab import tasks
from gasam.lab.record import Metric, read_as
from gasam.lab.search.outcome import Outcome, Trial
from gasam.lab.search.strategy import NORMS, Candidate, TwoStages, best_of
from gasam.lab.search.worth import BehindBaseline, Worth
from gasam.lab.tasks import Task
from gasam.lab.tasks.own_model import TaskFile, recorded_task

SCHEMA = 1
GRID = "-grid"
"""The end of the name of a full grid. Searches are compared with it; it chooses no walk."""


@dataclass(frozen=True)
class Finding:
    """Everything a search has measured. Files of older searches lack the fields that have defaults.

    Args:
        schema: The version of the format of the file.
        name: The name of the search and its file.
        task: The name of the task.
        size: The name of the size.
        method: The name of the method.
        seed: The seed of the search.
        settings: The settings of the task.
        data: The hash of the data.
        exponents: The smallest and the largest power of ten that were searched.
        tolerance: The loss of worth at which a trial has collapsed, see `Question`.
        baseline: Plain training with the seed of the search.
        tries: The trials with the seed of the search.
        quantity: The searched quantity, "budget" or "epsilon".
        walk: The options that all trials share, such as the cap.
        repeats: The finalists and the baseline with other seeds.
        task_file: The user's file that defines the task; None for a built-in task.
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
    baseline: Outcome
    tries: tuple[Trial, ...]
    quantity: str = "epsilon"
    walk: dict[str, Any] | None = None
    repeats: tuple[Trial | Outcome, ...] = ()
    task_file: TaskFile | None = None

    @classmethod
    def read(cls, file: Path) -> Finding:
        return read_as(cls, "what a search found", file)

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = TypeAdapter(Finding).dump_python(self, mode="json", exclude_unset=True)
        best = self.chosen()
        walk = None if best is None else self.options(best) | {"norm": f"{best.norm:g}"}
        return fields | {"chosen": walk, "gradient_evaluations": self.gradient_evaluations}

    @property
    def definition(self) -> Task:
        return recorded_task(self.task, self.task_file) if self.task_file else tasks.find(self.task)

    @property
    def metric(self) -> Metric:
        return self.definition.family.metric

    @property
    def worth(self) -> Worth:
        return Worth(self.metric, self.baseline.worthless)

    def pruner(self, tolerance: float) -> BehindBaseline:
        """The rule that stops trials early. It uses the metric of the curves, which may differ from the scores'."""
        followed = self.definition.family.followed
        return BehindBaseline(Worth(followed, self.baseline.worthless), self.baseline.curve, tolerance)

    @property
    def baseline_score(self) -> float:
        """The baseline's score with the seed of the search. `tune` raises if this baseline diverges."""
        assert self.baseline.valid is not None
        return self.baseline.valid

    @property
    def error(self) -> float:
        """The standard error of a difference between two scores on the validation split, in units of the metric.

        It assumes independent splits, so it is an upper bound: here both scores are of the same examples.
        """
        return math.sqrt(2) * (self.baseline.error or 0.0)

    @property
    def noise(self) -> float:
        """`error` as a share of the baseline's worth."""
        return self.error / self.worth.of(self.baseline_score)

    def gains(self, norms: Sequence[float] = NORMS) -> dict[Candidate, float]:
        """The gain of each candidate over the baseline; for a finalist, the mean over its seeds."""
        found = {}
        for candidate in self.gains_of_first_seed(norms):
            gains = [self._gain(ours, plain) for ours, plain in self.pairs(candidate)]
            found[candidate] = sum(gains) / len(gains)
        return found

    def gains_of_first_seed(self, norms: Sequence[float] = NORMS) -> dict[Candidate, float]:
        return {one.candidate: self._gain(one.valid, self.baseline_score) for one in self.tries if one.norm in norms}

    def _gain(self, value: float | None, baseline: float) -> float:
        return -math.inf if value is None else self.worth.gain(value, baseline)

    def pairs(self, candidate: Candidate) -> list[tuple[float | None, float]]:
        """Pairs of scores, the candidate's and the baseline's, by seed, without seeds whose baseline diverged."""
        baselines = {one.seed: one.valid for one in self.repeats if not isinstance(one, Trial)}
        found = [(self.one(candidate).valid, self.baseline_score)]
        for one in self._repeated_trials():
            baseline = baselines[one.seed]
            if one.candidate == candidate and baseline is not None:
                found.append((one.valid, baseline))
        return found

    def means(self, candidate: Candidate) -> tuple[float, float]:
        """The mean scores of a candidate and of the baseline, over the candidate's seeds."""
        pairs = [(ours, plain) for ours, plain in self.pairs(candidate) if ours is not None]
        return sum(ours for ours, _ in pairs) / len(pairs), sum(plain for _, plain in pairs) / len(pairs)

    def repeated(self) -> list[Candidate]:
        return list(dict.fromkeys(one.candidate for one in self._repeated_trials()))

    def _repeated_trials(self) -> list[Trial]:
        return [one for one in self.repeats if isinstance(one, Trial)]

    def chosen(self, norms: Sequence[float] = NORMS) -> Candidate | None:
        """The best of the repeated finalists; the best of the others if no finalist was repeated or all diverged."""
        gains = self.gains(norms)
        finalists = {each: gains[each] for each in self.repeated() if each in gains}
        return best_of(finalists) or best_of({each: gain for each, gain in gains.items() if each not in finalists})

    def one(self, candidate: Candidate) -> Trial:
        return next(one for one in self.tries if one.candidate == candidate)

    def options(self, candidate: Candidate) -> dict[str, Any]:
        return candidate.options(self.quantity, self.walk or {})

    def by_norm(self) -> list[Finding]:
        """The finding of each norm, as if only this norm had been searched; the norm of the chosen walk is first."""
        parts = []
        for norm in dict.fromkeys(one.norm for one in self.tries):
            tries = tuple(one for one in self.tries if one.norm == norm)
            repeats = tuple(one for one in self.repeats if not isinstance(one, Trial) or one.norm == norm)
            parts.append(replace(self, tries=tries, repeats=repeats))
        best = self.chosen()
        return sorted(parts, key=lambda part: part.chosen() != best) or [self]

    @property
    def seeds(self) -> list[int]:
        return [self.seed, *dict.fromkeys(one.seed for one in self.repeats if one.seed is not None)]

    @property
    def full_grid(self) -> bool:
        return self.name.endswith(GRID)

    @property
    def finished(self) -> bool:
        """Whether the search has no more trials to propose, in the norms that it began with."""
        norms = tuple(dict.fromkeys(one.norm for one in self.tries if one.cap is None))
        search = TwoStages(norms, *self.exponents, self.tolerance, self.noise)
        return bool(norms) and not search.propose(self.gains_of_first_seed(norms))

    @property
    def tried(self) -> str:
        return "1 try" if len(self.tries) == 1 else f"{len(self.tries)} tries"

    @property
    def gradient_evaluations(self) -> int:
        return sum(one.gradient_evaluations for one in (self.baseline, *self.tries, *self.repeats))

    @property
    def never_walked(self) -> bool:
        """Whether no trial needed more gradients than the baseline, because the schedule never started the walk."""
        return all(one.gradient_evaluations <= self.baseline.gradient_evaluations for one in self.tries)

    def at_guessing_level(self, one: Outcome) -> bool:
        """Whether a trial or the baseline is no better than guessing; False if its standard error is not known."""
        if one.valid is None or one.error is None:
            return False
        return Worth(self.metric, one.worthless).is_guessing(one.valid, one.error)


def read_all(folder: Path) -> Iterator[Finding]:
    """Read the searches in a folder of records, in the order of their names."""
    return map(Finding.read, files(folder))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "tuning").glob("*.json"))
