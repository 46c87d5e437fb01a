"""The driver of a search for settings: it runs rounds of trials until their number or their cost is reached."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from gasam.lab import tasks
from gasam.lab.engines.engine import Engine, OnEvent
from gasam.lab.engines.local import LocalEngine
from gasam.lab.search.driver import Runner, locked
from gasam.lab.search.outcome import Outcome
from gasam.lab.search.sampling import PercentileRule, propose
from gasam.lab.search.settings_finding import FOLDER, SCHEMA, SettingsFinding, SettingsTrial
from gasam.lab.search.settings_question import SettingsQuestion, Values
from gasam.lab.storage import write_json


def tune_settings(
    question: SettingsQuestion,
    out: Path,
    *,
    engine: Engine | None = None,
    watch: OnEvent = lambda job, event: None,
    cpu: bool = False,
) -> SettingsFinding:
    """Search for settings on the validation split, and continue the search if an earlier call was interrupted.

    The first trial has the task's own settings. The finding is written to `out/settings/NAME.json` after every round.

    Args:
        question: The task, the method, the ranges, and when to stop.
        out: The folder of records.
        engine: Where to run the trials. Default: one process at a time on this machine.
        watch: Called with each job and its events, see `engines.jobs.OnEvent`.
        cpu: Use the CPU even if there is a GPU.

    Raises:
        TrialFailedError: If a trial fails. Its message names the log file.
    """
    folder = out / FOLDER
    runner = Runner(question, folder / "tries", engine or LocalEngine(), watch, cpu)
    data_hash = question.plan({}).data().hash
    file = folder / f"{question.name(data_hash)}.json"
    with locked(file):
        if file.exists():
            found = SettingsFinding.read(file)
        else:
            found = _without_trials(question, file.stem, data_hash, runner.engine.parallel)
        found = _search(runner, question, found, file)
        found = _repeat_finalists(runner, question, found)
        write_json(file, found.as_json())
        return found


def _without_trials(question: SettingsQuestion, name: str, data_hash: str, parallel: int) -> SettingsFinding:
    return SettingsFinding(
        schema=SCHEMA,
        name=name,
        task=tasks.name_of(question.task),
        size=question.size,
        method=question.method,
        joint=question.joint,
        seed=question.seed,
        settings=question.plan({}).config()["settings"],
        shared=dict(question.settings),
        data=data_hash,
        space=question.ranges(),
        parallel=parallel,
        **tasks.file_field(question.task),
    )


def _search(runner: Runner, question: SettingsQuestion, found: SettingsFinding, file: Path) -> SettingsFinding:
    while len(found.trials) < question.trials and not _spent(question, found):
        count = min(runner.engine.parallel, question.trials - len(found.trials))
        wanted = _next(question, found, count)
        with runner.shared_lock("own") if {} in wanted else nullcontext():
            outcomes = runner.outcomes([(values, 0) for values in wanted], _pruner(found))
        trials = (_trial(values, outcome) for values, outcome in zip(wanted, outcomes, strict=True))
        found = replace(found, trials=(*found.trials, *trials))
        write_json(file, found.as_json())
    return found


def _spent(question: SettingsQuestion, found: SettingsFinding) -> bool:
    return question.evaluations is not None and found.gradient_evaluations >= question.evaluations


def _next(question: SettingsQuestion, found: SettingsFinding, count: int) -> list[Values]:
    """The next trials, at most `count`, each of another run. The task's own settings come first."""
    own: list[Values] = [] if found.trials else [{}]
    sampled = propose(found.trials, question.ranges(), found.metric, count, question.seed)
    wanted: list[Values] = []
    for values in map(question.distinct, [*own, *sampled]):
        if values not in wanted:
            wanted.append(values)
    return wanted[:count]


def _pruner(found: SettingsFinding) -> PercentileRule:
    completed = tuple(one.curve for one in found.trials if one.valid is not None)
    return PercentileRule(found.definition.family.followed, completed)


def _repeat_finalists(runner: Runner, question: SettingsQuestion, found: SettingsFinding) -> SettingsFinding:
    """Repeat the finalists and the task's own settings with as many seeds as asked for now or by an earlier call."""
    values = [found.own.values, *(one.values for one in found.finalists() if one.values)]
    wanted = [(each, repetition) for repetition in range(1, max(question.seeds, found.seeds)) for each in values]
    with runner.shared_lock("repeats"):
        outcomes = runner.outcomes(wanted)
    repeats = tuple(
        _trial(each, outcome, question.plan({}, repetition).seed)
        for (each, repetition), outcome in zip(wanted, outcomes, strict=True)
    )
    return replace(found, repeats=repeats)


def _trial(values: Values, outcome: Outcome, seed: int | None = None) -> SettingsTrial:
    measured = outcome.model_dump(exclude_unset=True) | ({} if seed is None else {"seed": seed})
    return SettingsTrial(values=dict(values), **measured)
