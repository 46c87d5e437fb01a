"""Searches as Optuna studies: what Optuna loads equals the search, and exporting again changes nothing."""

import json
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from synthetic import finding_of, response

from gasam.lab.families.spaces import Span
from gasam.lab.search.finding import Finding
from gasam.lab.search.optuna_studies import export_studies
from gasam.lab.search.outcome import Outcome, Trial
from gasam.lab.search.settings_finding import SettingsFinding, SettingsTrial, read_all
from gasam.lab.storage import write_json

RESULTS = Path(__file__).parents[2] / "results"


def studies(file):
    storage = JournalStorage(JournalFileBackend(str(file)))
    return {name: optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)}


def parsed(*tries):
    return tuple(Trial.model_validate(one) for one in tries)


@pytest.fixture
def search():
    tries = parsed(
        response(81.5, exponent=-3),
        response(82.5, exponent=-3, mantissa=5, norm="2"),
        response(60.0, exponent=-2, end=3) | {"valid": None},
        response(None, exponent=-1, end=4),
    )
    baseline = Outcome.model_validate(response(80.0, norm=None, seed=1_000_000))
    repeats = parsed(response(82.0, exponent=-3, mantissa=5, norm="2", seed=1_000_000))
    return finding_of("imdb", "ga-sam", tries, repeats=(baseline, *repeats))


def written(search, folder):
    write_json(folder / "tuning" / f"{search.name}.json", search.as_json())


def test_a_search_is_a_study_with_a_trial_for_each_walk(command, tmp_path, search):
    written(search, tmp_path)
    shown = command("export", tmp_path, "--to", "optuna")
    assert shown.code == 0
    assert f"open it: optuna-dashboard {tmp_path}/optuna.journal" in shown.out
    [study] = studies(tmp_path / "optuna.journal").values()
    assert study.study_name == search.name
    assert study.direction == optuna.study.StudyDirection.MAXIMIZE
    states = [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.COMPLETE]
    assert [trial.state for trial in study.trials] == states
    assert [trial.params for trial in study.trials] == [
        {"norm": "inf", "epsilon": 1e-3},
        {"norm": "2", "epsilon": 5e-3},
        {"norm": "inf", "epsilon": 1e-2},
        {"norm": "inf", "epsilon": 1e-1},
        {"norm": "2", "epsilon": 5e-3},
    ]
    assert [trial.value for trial in study.trials] == [81.5, 82.5, None, None, 82.0]
    assert study.trials[2].intermediate_values == {1: 60.0, 2: 60.0, 3: 60.0}
    assert study.trials[3].intermediate_values == {1: 50.0, 2: 50.0, 3: 50.0}
    assert [trial.user_attrs["seed"] for trial in study.trials] == [0, 0, 0, 0, 1_000_000]
    assert study.trials[0].duration.total_seconds() == 9.0
    assert study.best_params == {"norm": "2", "epsilon": 5e-3}
    assert study.metric_names == ["accuracy on validation"]
    assert study.user_attrs["baseline"] == 80.0
    assert study.user_attrs["chosen"] == search.as_json()["chosen"]


def test_exporting_again_adds_only_what_is_new(command, tmp_path, search):
    file = tmp_path / "optuna.journal"
    written(replace(search, tries=search.tries[:3], repeats=()), tmp_path)
    assert json.loads(command("export", tmp_path, "--to", "optuna", "--json").out)["added"] == {search.name: 3}
    before = file.read_text()
    assert json.loads(command("export", tmp_path, "--to", "optuna", "--json").out)["added"] == {search.name: 0}
    assert [trial.number for trial in studies(file)[search.name].trials] == [0, 1, 2]
    assert len(file.read_text()) - len(before) < 1000
    written(search, tmp_path)
    assert json.loads(command("export", tmp_path, "--to", "optuna", "--json").out)["added"] == {search.name: 2}
    assert len(studies(file)[search.name].trials) == 5


def test_a_trial_that_was_completed_later_replaces_the_earlier_one(command, tmp_path, search):
    written(search, tmp_path)
    assert command("export", tmp_path, "--to", "optuna").code == 0
    [completed] = parsed(response(79.0, exponent=-2))
    written(replace(search, tries=(*search.tries[:2], completed, search.tries[3])), tmp_path)
    assert command("export", tmp_path, "--to", "optuna").code == 0
    [study] = studies(tmp_path / "optuna.journal").values()
    assert [trial.value for trial in study.trials] == [81.5, 82.5, 79.0, None, 82.0]


def test_a_search_of_a_budget_has_the_cap_of_each_trial(command, tmp_path, search):
    """The recommended walk has a cap of its own, and may be outside of the searched range."""
    tries = parsed(response(81.0, exponent=-1, cap=0.01), response(82.0, exponent=-2, mantissa=2))
    walk = {"cap": 0.1, "walk_progress": 0.2}
    budgets = replace(search, quantity="budget", walk=walk, exponents=(-3, -2), tries=tries, repeats=())
    written(budgets, tmp_path)
    assert command("export", tmp_path, "--to", "optuna").code == 0
    [study] = studies(tmp_path / "optuna.journal").values()
    assert [trial.params for trial in study.trials] == [
        {"norm": "inf", "budget": 0.1, "cap": 0.01},
        {"norm": "inf", "budget": 0.02, "cap": 0.1},
    ]


@pytest.mark.parametrize("name", ["ptb-small-ga-sam-0-abe03dd3", "docstrings-small-ga-sam-0-ae14b166-grid"])
def test_searches_of_the_results_are_studies(command, tmp_path, name):
    search = Finding.read(RESULTS / "tuning" / f"{name}.json")
    written(search, tmp_path)
    assert command("export", tmp_path, "--to", "optuna").code == 0
    [study] = studies(tmp_path / "optuna.journal").values()
    assert [trial.value for trial in study.trials] == [one.valid for one in search.tries]
    assert [list(trial.intermediate_values.values()) for trial in study.trials] == [
        [score for score in one.curve if score is not None] for one in search.tries
    ]
    assert study.best_value == (max if search.metric.higher_is_better else min)(
        one.valid for one in search.tries if one.valid is not None
    )


def test_search_for_settings_is_a_study_with_its_values(tmp_path):
    measured = {"worthless": 10.0, "diverged": False, "gradient_evaluations": 8, "seconds": 1.0}
    trials = (
        SettingsTrial(values={}, valid=80.0, curve=(70.0, 80.0), **measured),
        SettingsTrial(values={"dropout": 0.2, "schedule": "linear"}, valid=82.0, curve=(75.0, 82.0), **measured),
        SettingsTrial(values={"dropout": 0.5, "schedule": "linear"}, valid=None, curve=(30.0,), **measured),
    )
    found = SettingsFinding(
        schema=1, name="imdb-small-baseline-0-abc", task="imdb", size="small", method="baseline", joint=False,
        seed=0, settings={"epochs": 2}, shared={}, data="hash", trials=trials,
        space={"dropout": Span(0.0, 0.6), "schedule": ("constant", "linear")},
    )  # fmt: skip
    write_json(tmp_path / "settings" / f"{found.name}.json", found.as_json())
    assert list(read_all(tmp_path)) == [found]
    assert export_studies([found], tmp_path / "journal") == {found.name: 3}
    assert export_studies([found], tmp_path / "journal") == {found.name: 0}
    study = studies(tmp_path / "journal")[found.name]
    assert [trial.params for trial in study.trials] == [one.values for one in trials]
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED]
    assert study.best_trial.params == study.user_attrs["chosen"] == trials[1].values
