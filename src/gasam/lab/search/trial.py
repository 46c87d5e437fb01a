"""One try: a run that is trained, judged on validation alone, and given up where it is hopeless."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import optuna
from accelerate import Accelerator

from gasam.lab.families import Metric
from gasam.lab.search.journal import Journal
from gasam.lab.storage import write_json
from gasam.lab.training.checkpoints import Checkpoints
from gasam.lab.training.loop import Training, finite
from gasam.lab.training.plan import Plan
from gasam.lab.training.progress import OnUpdate
from gasam.lab.training.run import scores

HOPELESS = 3
"""How many times the tolerance a try may be behind the baseline."""


class WithheldError(LookupError):
    """Tuning asked for the test split: the number it was to find would be worth nothing."""


class Withheld(dict[str, Any]):
    """Encoded data without its test split: asking for any part of that raises."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        open_parts = {key: part for key, part in data.items() if not _of_test_split(key)}
        super().__init__({key: Withheld(part) if isinstance(part, dict) else part for key, part in open_parts.items()})

    def __missing__(self, key: str) -> NoReturn:
        if not _of_test_split(key):
            raise KeyError(key)
        raise WithheldError(f"{key!r} belongs to the test split, which tuning must not see")


def _of_test_split(key: str) -> bool:
    """Parts of translation's are named test_0, test_1; its copied source is the test split's."""
    return key == "copied" or key.partition("_")[0] == "test"


class Worth(NamedTuple):
    """What a number is worth beside the baseline's: 0 as much, -1 nothing (or, for a perplexity, twice as high)."""

    metric: Metric
    worthless: float

    def gain(self, value: float, baseline: float) -> float:
        difference = value - baseline if self.metric.higher_is_better else baseline - value
        return difference / self.of(baseline)

    def is_guessing(self, value: float, error: float) -> bool:
        """Whether a score is no better than guessing by two standard errors."""
        better = value - self.worthless
        return bool((better if self.metric.higher_is_better else -better) <= 2 * error)

    def of(self, baseline: float) -> float:
        """What the baseline has learned: accuracy or BLEU above guessing, or its perplexity."""
        return max(abs(baseline - self.worthless), 1e-12) if self.metric.higher_is_better else abs(baseline)


class BehindBaseline(optuna.pruners.BasePruner):
    """Gives a try up that, once half of the epochs are over, is far behind where the baseline was after as many and
    does not catch up."""

    def __init__(self, worth: Worth, baseline: Sequence[float | None], tolerance: float) -> None:
        self.worth, self.baseline, self.tolerance = worth, baseline, tolerance

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        known = trial.intermediate_values
        return self.hopeless([known.get(epoch) for epoch in range(1, max(known, default=0) + 1)])

    def hopeless(self, curve: Sequence[float | None]) -> bool:
        """Whether a try with these numbers, one an epoch, should be given up now."""
        behind = [self._behind(curve[:epochs], self.baseline[:epochs]) for epochs in range(1, len(curve) + 1)]
        if 2 * len(curve) < len(self.baseline) or not behind or behind[-1] <= HOPELESS * self.tolerance:
            return False
        return len(behind) < 2 or behind[-1] >= behind[-2]

    def _behind(self, curve: Sequence[float | None], baseline: Sequence[float | None]) -> float:
        """How much less the best so far is worth."""
        best = max if self.worth.metric.higher_is_better else min
        ours, then = ([value for value in values if value is not None] for values in (curve, baseline))
        if not then:
            return 0.0
        return -self.worth.gain(best(ours), best(then)) if ours else math.inf


def try_out(
    plan: Plan, folder: Path, watch: OnUpdate, journal: Journal | None, number: int | None, cpu: bool = False
) -> dict[str, Any]:
    """Train and judge on validation. The outcome is stored before anything is deleted.

    Args:
        journal: Where the outcome goes; without one it goes into `folder/NAME.json`.
        number: The trial's number in the journal; None is the baseline's run.
    """
    data = plan.data().without_test()
    checkpoints = Checkpoints(folder / plan.name(data.hash))
    with checkpoints.alone():
        family = plan.family(data)
        training = Training(plan, family, checkpoints, watch, Accelerator(cpu=cpu))
        worth = Worth(family.followed, family.worthless("valid") if family.followed.higher_is_better else 0.0)
        trial = None if number is None or journal is None else journal.trial(number, worth)
        if trial is not None:
            training.give_up = Reporter(trial)
        training.resume()
        training.train()
        given_up = training.progress.diverged or training.progress.epoch < plan.settings.epochs
        found = {} if given_up else scores(training, "valid")
        outcome = {
            "valid": finite(found.get("valid", math.nan)),
            "error": found.get("valid_error"),
            "worthless": family.worthless("valid"),
            "diverged": training.progress.diverged,
            "curve": [row["valid"] for row in training.progress.curve],
            "gradient_evaluations": training.progress.passes,
            "seconds": round(training.progress.seconds, 2),
            **training.code,
        }
        if journal is None:
            write_json(folder / f"{plan.name(data.hash)}.json", outcome)
        else:
            journal.tell(trial, outcome)
        checkpoints.forget()
    return outcome


class Reporter:
    """Reports every epoch once, and says whether the try should be given up."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial, self.reported = trial, 0

    def __call__(self, curve: Sequence[Mapping[str, Any]]) -> bool:
        for row in curve[self.reported :]:
            if row["valid"] is not None:
                self.trial.report(row["valid"], row["epoch"])
        new, self.reported = len(curve) > self.reported, len(curve)
        return new and self.trial.should_prune()
