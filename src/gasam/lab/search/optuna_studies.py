"""The export of searches to Optuna: one study for each search, so that optuna-dashboard can show them."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gasam.lab.errors import InputError
from gasam.lab.search.finding import Finding
from gasam.lab.search.outcome import Trial
from gasam.lab.search.strategy import NORMS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

JOURNAL = "optuna.journal"


def check() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise InputError("optuna is not installed: run `pip install optuna optuna-dashboard`")


def export_studies(findings: list[Finding], file: Path) -> dict[str, int]:
    """Write searches as studies into a journal file; gives the number of new trials for each study.

    Trials that the file has already are not added again. A study with a trial that the search no longer has, such as
    one that was stopped early and later run to completion, is written anew.
    """
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    file.parent.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(file)))
    return {finding.name: _export(finding, storage) for finding in findings}


def _export(finding: Finding, storage: BaseStorage) -> int:
    import optuna
    from optuna.exceptions import ExperimentalWarning
    from optuna.study import StudyDirection

    direction = StudyDirection.MAXIMIZE if finding.metric.higher_is_better else StudyDirection.MINIMIZE
    wanted = list(_trials(finding))
    names = {study.study_name for study in optuna.get_all_study_summaries(storage, include_best_trial=False)}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if finding.name in names:
            known = [_content(trial) for trial in optuna.load_study(study_name=finding.name, storage=storage).trials]
            if any(content not in map(_content, wanted) for content in known):
                optuna.delete_study(study_name=finding.name, storage=storage)
                known = []
            wanted = [trial for trial in wanted if _content(trial) not in known]
        study = optuna.create_study(storage=storage, study_name=finding.name, direction=direction, load_if_exists=True)
        if study.metric_names != [metric := f"{finding.metric.name} on validation"]:
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                study.set_metric_names([metric])
        for name, value in _about(finding).items():
            if study.user_attrs.get(name) != value:
                study.set_user_attr(name, value)
        study.add_trials(wanted)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return len(wanted)


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


def _trials(finding: Finding) -> Iterator[FrozenTrial]:
    for trial in (*finding.tries, *(one for one in finding.repeats if isinstance(one, Trial))):
        yield _frozen(finding, trial)


def _frozen(finding: Finding, trial: Trial) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    state = TrialState.COMPLETE if trial.valid is not None else TrialState.PRUNED
    options = finding.options(trial.candidate) | {"norm": f"{trial.norm:g}"}
    space = _space(finding, options)
    frozen = create_trial(
        state=TrialState.FAIL if trial.diverged else state,
        value=trial.valid,
        params={name: options[name] for name in space},
        distributions=space,
        user_attrs={
            "seed": finding.seed if trial.seed is None else trial.seed,
            "standard_error": trial.error,
            "diverged": trial.diverged,
            "gradient_evaluations": trial.gradient_evaluations,
            "seconds": trial.seconds,
            "commit": trial.commit,
        },
        intermediate_values={epoch: score for epoch, score in enumerate(trial.curve, 1) if score is not None},
    )
    # The files of a search hold durations only: every trial ends now, so that the dashboard shows its duration.
    frozen.datetime_complete = datetime.now()
    frozen.datetime_start = frozen.datetime_complete - timedelta(seconds=trial.seconds)
    return frozen


def _space(finding: Finding, options: dict[str, Any]) -> dict[str, BaseDistribution]:
    """The searched range of each parameter that the walk has."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

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
