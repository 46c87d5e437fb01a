"""The export of searches to Optuna: one study for each search, so that optuna-dashboard can show them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial

from gasam.lab.families.family import Metric
from gasam.lab.search.finding import Finding
from gasam.lab.search.outcome import Outcome, Trial
from gasam.lab.search.sampling import direction, distribution, frozen, quiet
from gasam.lab.search.settings_finding import SettingsFinding, SettingsTrial
from gasam.lab.search.strategy import NORMS

JOURNAL = "optuna.journal"


class Description(NamedTuple):
    """What a study holds: its name, the metric of its scores, attributes for the dashboard, and its trials."""

    name: str
    metric: Metric
    about: dict[str, Any]
    trials: list[FrozenTrial]


def export_studies(found: Sequence[Finding | SettingsFinding], file: Path) -> dict[str, int]:
    """Write searches as studies into a journal file; gives the number of new trials for each study.

    Trials that the file has already are not added again. A study with a trial that the search no longer has, such as
    one that was stopped early and later run to completion, is written anew.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(file)))
    with quiet():
        return {each.name: _export(_described(each), storage) for each in found}


def _export(study_of: Description, storage: BaseStorage) -> int:
    wanted, metric = study_of.trials, study_of.metric
    names = {study.study_name for study in optuna.get_all_study_summaries(storage, include_best_trial=False)}
    if study_of.name in names:
        known = [_content(trial) for trial in optuna.load_study(study_name=study_of.name, storage=storage).trials]
        if any(content not in map(_content, wanted) for content in known):
            optuna.delete_study(study_name=study_of.name, storage=storage)
            known = []
        wanted = [trial for trial in wanted if _content(trial) not in known]
    study = optuna.create_study(
        storage=storage, study_name=study_of.name, direction=direction(metric), load_if_exists=True
    )
    if study.metric_names != [name := f"{metric.name} on validation"]:
        with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
            study.set_metric_names([name])
    for name, value in study_of.about.items():
        if study.user_attrs.get(name) != value:
            study.set_user_attr(name, value)
    study.add_trials(wanted)
    return len(wanted)


def _described(found: Finding | SettingsFinding) -> Description:
    if isinstance(found, Finding):
        repeats = (one for one in found.repeats if isinstance(one, Trial))
        trials = [_of_walk(found, one) for one in (*found.tries, *repeats)]
        return Description(found.name, found.metric, _about(found), trials)
    trials = [_of_settings(found, one) for one in (*found.trials, *found.repeats)]
    kept = ("task", "size", "method", "joint", "seed", "settings", "chosen")
    about = {name: value for name, value in found.as_json().items() if name in kept}
    return Description(found.name, found.metric, about, trials)


def _about(finding: Finding) -> dict[str, Any]:
    """What the dashboard shows of a search beside its trials."""
    found = finding.as_json()
    kept = ("task", "size", "method", "seed", "quantity", "walk", "settings", "tolerance", "chosen")
    about = {name: found[name] for name in kept if found.get(name) is not None}
    return about | {
        "baseline": finding.baseline.valid,
        "baseline_curve": list(finding.baseline.curve),
        "metric_of_curves": finding.definition.family.followed.name,
    }


def _of_walk(finding: Finding, trial: Trial) -> FrozenTrial:
    options = finding.options(trial.candidate) | {"norm": f"{trial.norm:g}"}
    space = _space(finding, options)
    return _completed(frozen(trial, {name: options[name] for name in space}, space), trial, finding.seed)


def _of_settings(found: SettingsFinding, trial: SettingsTrial) -> FrozenTrial:
    space = {name: distribution(found.space[name]) for name in trial.values}
    return _completed(frozen(trial, trial.values, space), trial, found.seed)


def _completed(made: FrozenTrial, trial: Outcome, seed: int) -> FrozenTrial:
    """The trial with attributes and times.

    The files of a search hold durations only: every trial ends now, so that the dashboard shows its duration.
    """
    made.user_attrs = {
        "seed": seed if trial.seed is None else trial.seed,
        "standard_error": trial.error,
        "diverged": trial.diverged,
        "gradient_evaluations": trial.gradient_evaluations,
        "seconds": trial.seconds,
        "commit": trial.commit,
    }
    made.datetime_complete = datetime.now()
    made.datetime_start = made.datetime_complete - timedelta(seconds=trial.seconds)
    return made


def _space(finding: Finding, options: dict[str, Any]) -> dict[str, BaseDistribution]:
    """The searched range of each parameter that the walk has."""
    low, high = (10.0**exponent for exponent in finding.exponents)
    size = options[finding.quantity]  # the recommended walk may be outside of the range
    space: dict[str, BaseDistribution] = {
        "norm": CategoricalDistribution([f"{norm:g}" for norm in NORMS]),
        finding.quantity: FloatDistribution(min(low, size), max(8 * high, size), log=True),
    }
    return space | ({"cap": FloatDistribution(0.0, max(1.0, options["cap"]))} if "cap" in options else {})


def _content(trial: FrozenTrial) -> tuple[Any, ...]:
    """What makes two trials the same; their numbers and times may differ."""
    return trial.state, trial.value, trial.params, trial.intermediate_values, trial.user_attrs
