"""Optuna's sampler and pruner for settings: what to try next, and which trials to stop early.

Both are functions of the trials so far. So a search continues after an interruption without a stored study, and a
pruner can be sent to the process of a trial, on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, PercentilePruner
from optuna.samplers import TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from gasam.lab.families.spaces import Space, Span
from gasam.lab.record import Metric
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.settings_finding import SettingsTrial

KEPT = 75.0
"""A trial is stopped early if it is not among this percentage of the trials after the same share of training."""
FIRST = 5
"""No trial is stopped before this many have ended."""


def propose(
    trials: Sequence[SettingsTrial], space: Space, metric: Metric, count: int, seed: int
) -> list[dict[str, Any]]:
    """Values for the next trials, from Optuna's tree-structured Parzen estimator.

    Args:
        trials: The trials so far. The one with the task's own settings is ignored, because it has no values.
        space: The ranges.
        metric: The metric of the trials' scores.
        count: How many to propose.
        seed: The proposals depend on this seed, on the trials and on `count` only.
    """
    distributions = {name: distribution(span) for name, span in space.items()}
    with quiet():
        sampler = TPESampler(seed=seed + len(trials), constant_liar=count > 1)
        study = study_of(metric, sampler=sampler)
        known = [one for one in trials if distributions.keys() <= one.values.keys()]
        study.add_trials([frozen(one, one.values, distributions) for one in known])
        asked = [study.ask(distributions).params for _ in range(count)]
    return [{name: rounded(space[name], value) for name, value in values.items()} for values in asked]


@dataclass(frozen=True)
class PercentileRule:
    """Stops a trial that is among the worst quarter after the same share of its epochs, by Optuna's pruner.

    No trial is stopped in the first half: much dropout or a rate that stays high makes a slow start and a good end.
    Curves are compared by share and not by epoch, because most schedules follow the number of epochs.

    Args:
        metric: The metric of the curves.
        curves: The curves of the trials that were completed.
    """

    metric: Metric
    curves: tuple[tuple[float | None, ...], ...]

    def hopeless(self, curve: Sequence[float | None], epochs: int) -> bool:
        now = len(curve)
        if 2 * now <= epochs:
            return False
        others = [other[max(1, now * len(other) // epochs) - 1] for other in self.curves]
        with quiet():
            study = study_of(self.metric, pruner=PercentilePruner(KEPT, n_startup_trials=FIRST, n_warmup_steps=0))
            for value in others:
                if value is not None:
                    study.add_trial(create_trial(value=value, intermediate_values={now: value}))
            trial = study.ask()
            for epoch, value in by_epoch(curve).items():
                trial.report(value, epoch)
            return bool(trial.should_prune())


def study_of(metric: Metric, sampler: TPESampler | None = None, pruner: BasePruner | None = None) -> Study:
    return optuna.create_study(direction=direction(metric), sampler=sampler, pruner=pruner)


def direction(metric: Metric) -> StudyDirection:
    return StudyDirection.MAXIMIZE if metric.higher_is_better else StudyDirection.MINIMIZE


def distribution(span: Span | tuple[Any, ...]) -> BaseDistribution:
    if not isinstance(span, Span):
        return CategoricalDistribution(span)
    if span.whole:
        return IntDistribution(int(span.low), int(span.high), log=span.log)
    return FloatDistribution(span.low, span.high, log=span.log)


def frozen(trial: Outcome, values: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """A trial as Optuna stores it.

    Args:
        trial: The outcome.
        values: What was tried, with a value for each distribution.
        distributions: The ranges.
    """
    stopped = TrialState.FAIL if trial.diverged else TrialState.PRUNED
    return create_trial(
        state=stopped if trial.valid is None else TrialState.COMPLETE,
        value=trial.valid,
        params={name: values[name] for name in distributions},
        distributions=dict(distributions),
        intermediate_values=by_epoch(trial.curve),
    )


def rounded(span: Span | tuple[Any, ...], value: Any) -> Any:
    return span.rounded(value) if isinstance(span, Span) else value


def by_epoch(curve: Sequence[float | None]) -> dict[int, float]:
    return {epoch: score for epoch, score in enumerate(curve, 1) if score is not None}


@contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's messages about every trial."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
