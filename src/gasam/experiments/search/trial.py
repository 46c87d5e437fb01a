"""One try: a run that is trained, judged on validation alone, and given up where it is hopeless."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import optuna
from accelerate import Accelerator

from gasam.experiments.checkpoints import Checkpoints
from gasam.experiments.families import Encoded, Metric
from gasam.experiments.plan import Plan
from gasam.experiments.progress import Watch
from gasam.experiments.search.journal import Journal
from gasam.experiments.train import Training

HOPELESS = 3
"""How many times the tolerance a try may be behind the baseline."""


class WithheldError(RuntimeError):
    """Tuning asked for the test split: the number it was to find would be worth nothing."""


class Withheld(dict[str, Any]):
    """Encoded data whose test split can not be read."""

    SECRET = ("test", "copied")

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__({key: Withheld(part) if isinstance(part, dict) else part for key, part in data.items()})

    def __getitem__(self, key: str) -> Any:
        return self._refuse(key) if key in self.SECRET else super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self._refuse(key) if key in self.SECRET else super().get(key, default)

    def _refuse(self, key: str) -> NoReturn:
        raise WithheldError(f"{key!r} belongs to the test split, which tuning must not see")


class Worth(NamedTuple):
    """What a number is worth beside the baseline's: 0 as much, -1 nothing (or, for a perplexity, twice as high)."""

    metric: Metric
    worthless: float

    def gain(self, value: float, baseline: float) -> float:
        if self.metric.higher_is_better:
            return (value - baseline) / max(abs(baseline - self.worthless), 1e-12)
        return (baseline - value) / abs(baseline)


class BehindBaseline(optuna.pruners.BasePruner):
    """Gives a try up that, after a third of the epochs, is far behind where the baseline was after as many."""

    def __init__(self, worth: Worth, baseline: Sequence[float | None], tolerance: float) -> None:
        self.worth, self.baseline, self.tolerance = worth, baseline, tolerance

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        return self.hopeless([trial.intermediate_values[step] for step in sorted(trial.intermediate_values)])

    def hopeless(self, curve: Sequence[float]) -> bool:
        """Whether a try with these numbers, one an epoch, should be given up now."""
        epochs = len(curve)
        then = [value for value in self.baseline[:epochs] if value is not None]
        if 3 * epochs < len(self.baseline) or not then:
            return False
        best = max if self.worth.metric.higher_is_better else min
        return self.worth.gain(best(curve), best(then)) < -HOPELESS * self.tolerance


def try_out(
    plan: Plan, folder: Path, watch: Watch, journal: Journal, number: int | None, cpu: bool = False
) -> dict[str, Any]:
    """Train and judge on validation. The outcome is in the journal before anything is deleted; `number` None is the
    baseline's run."""
    data: Encoded = Withheld(plan.data())
    checkpoints = Checkpoints(folder / plan.name(data))
    with checkpoints.alone():
        family = plan.family(data)
        training = Training(plan, family, checkpoints, watch, Accelerator(cpu=cpu))
        worth = Worth(family.followed, family.worthless("valid") if family.followed.higher_is_better else 0.0)
        trial = None if number is None else journal.trial(number, worth)
        if trial is not None:
            training.give_up = Reporter(trial)
        training.resume()
        training.train()
        given_up = training.progress.diverged or training.progress.epoch < plan.settings.epochs
        outcome = {
            "valid": None if given_up else training.scores("valid")["valid"],
            "worthless": family.worthless("valid") if family.metric.higher_is_better else 0.0,
            "diverged": training.progress.diverged,
            "curve": [row["valid"] for row in training.progress.curve],
            "gradient_evaluations": training.progress.passes,
            "seconds": round(training.progress.seconds, 2),
            **training.code,
        }
        journal.tell(trial, outcome)
    shutil.rmtree(checkpoints.folder)
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
