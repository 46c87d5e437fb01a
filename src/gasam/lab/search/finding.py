"""What a search found: every trial, the walk to use, its gain and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from gasam.lab import tasks
from gasam.lab.families import Metric
from gasam.lab.records import read_as
from gasam.lab.search.outcome import Outcome, Trial
from gasam.lab.search.strategy import NORMS, Candidate, TwoStages, best_of
from gasam.lab.search.worth import BehindBaseline, Worth

SCHEMA = 1
GRID = "-grid"
"""Ends the name of a full grid, which is there to judge searches by and chooses nothing."""


@dataclass(frozen=True)
class Finding:
    """Everything a search has measured. Files of older searches lack the fields that have defaults.

    Args:
        data: The hash of the data.
        baseline: Plain training with the seed of the search.
        tries: The trials with that seed.
        quantity: What was searched, budget or epsilon.
        walk: The options that all walks have, such as their cap.
        repeats: The finalists and the baseline again, each with another seed.
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

    @classmethod
    def read(cls, file: Path) -> Finding:
        return read_as(cls, "what a search found", file)

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = TypeAdapter(Finding).dump_python(self, mode="json", exclude_unset=True)
        best = self.chosen()
        walk = None if best is None else self.options(best) | {"norm": f"{best.norm:g}"}
        return fields | {"chosen": walk, "gradient_evaluations": self.gradient_evaluations}

    @property
    def metric(self) -> Metric:
        return tasks.find(self.task).family.metric

    @property
    def worth(self) -> Worth:
        return Worth(self.metric, self.baseline.worthless)

    def pruner(self, tolerance: float) -> BehindBaseline:
        """Follows the metric of the curves, which may differ from that of the scores."""
        followed = tasks.find(self.task).family.followed
        return BehindBaseline(Worth(followed, self.baseline.worthless), self.baseline.curve, tolerance)

    @property
    def baseline_score(self) -> float:
        """With the seed of the search, which is refused if its baseline diverges."""
        assert self.baseline.valid is not None
        return self.baseline.valid

    @property
    def error(self) -> float:
        """The standard error of a difference between two scores on the validation split, in units of the metric.

        It is that of independent splits, an upper bound: here both scores are of the same examples.
        """
        return math.sqrt(2) * (self.baseline.error or 0.0)

    @property
    def noise(self) -> float:
        """The same as a share of the baseline's worth."""
        return self.error / self.worth.of(self.baseline_score)

    def gains(self, norms: Sequence[float] = NORMS) -> dict[Candidate, float]:
        """The gain of each walk over the baseline; for a finalist it is the mean over its seeds."""
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
        """The scores of a candidate and of the baseline, seed by seed; seeds whose baseline diverged are left out."""
        baselines = {one.seed: one.valid for one in self.repeats if not isinstance(one, Trial)}
        found = [(self.one(candidate).valid, self.baseline_score)]
        for one in self._repeated_trials():
            baseline = baselines[one.seed]
            if one.candidate == candidate and baseline is not None:
                found.append((one.valid, baseline))
        return found

    def means(self, candidate: Candidate) -> tuple[float, float]:
        """The mean score of a candidate and of the baseline, over the seeds that the candidate has."""
        pairs = [(ours, plain) for ours, plain in self.pairs(candidate) if ours is not None]
        return sum(ours for ours, _ in pairs) / len(pairs), sum(plain for _, plain in pairs) / len(pairs)

    def repeated(self) -> list[Candidate]:
        return list(dict.fromkeys(one.candidate for one in self._repeated_trials()))

    def _repeated_trials(self) -> list[Trial]:
        return [one for one in self.repeats if isinstance(one, Trial)]

    def chosen(self, norms: Sequence[float] = NORMS) -> Candidate | None:
        """The best of the finalists, if they were repeated with other seeds and did not all diverge, else of all."""
        gains = self.gains(norms)
        finalists = {each: gains[each] for each in self.repeated() if each in gains}
        return best_of(finalists) or best_of({each: gain for each, gain in gains.items() if each not in finalists})

    def one(self, candidate: Candidate) -> Trial:
        return next(one for one in self.tries if one.candidate == candidate)

    def options(self, candidate: Candidate) -> dict[str, Any]:
        return candidate.options(self.quantity, self.walk or {})

    def by_norm(self) -> list[Finding]:
        """What was found in each norm, as if it alone had been searched; the one to use comes first."""
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
        """Whether the search would try nothing more, in the norms that it began with."""
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
        """Whether no trial needed more gradients than the baseline: the schedule never let the walk begin."""
        return all(one.gradient_evaluations <= self.baseline.gradient_evaluations for one in self.tries)

    def at_guessing_level(self, one: Outcome) -> bool:
        """Whether a trial, or the baseline, is no better than guessing; False if its error is not known."""
        if one.valid is None or one.error is None:
            return False
        return Worth(self.metric, one.worthless).is_guessing(one.valid, one.error)


def read_all(folder: Path) -> Iterator[Finding]:
    """The searches in a folder of records, in the order of their names."""
    return map(Finding.read, files(folder))


def files(folder: Path) -> list[Path]:
    return sorted((folder / "tuning").glob("*.json"))
