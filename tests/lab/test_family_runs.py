"""The methods of gasam.family in runs: their options, what they cost, and comparisons of the whole family."""

import json
import math
import signal

import pytest
import torch
from killed_processes import exit_code, killed_at
from safetensors.torch import load_file
from test_training import timeless

from gasam.family import members
from gasam.lab.cli.option_values import methods_of
from gasam.lab.errors import InputError
from gasam.lab.methods import FAMILY, METHODS, TABLE1
from gasam.lab.training.plan import family_on, make
from gasam.lab.training.run import run
from gasam.lab.walks import choose

FOUND = [name for name, method in METHODS.items() if method.make is not None]


def test_every_file_of_the_family_is_a_method():
    assert [name.replace("_", "-") for name in members()] == FOUND
    assert (*TABLE1, *FOUND) == FAMILY
    assert METHODS["gsam"].title == "GSAM"
    assert METHODS["gsam"].about.startswith("SAM without")


@pytest.mark.parametrize("method", FOUND)
def test_every_method_trains_and_counts_its_gradients(method, tmp_path):
    task = "numerals" if method == "sam-on" else "pydoc"
    walk = {"epsilon": 1e-3, "start_epoch": 1}
    plan = make(task, method, "tiny", settings={"epochs": 1, "rows": 60}, walk=walk)
    record = run(plan, tmp_path, cpu=True)
    every = 5 if method == "look-sam" else 1
    assert record.gradient_evaluations == record.updates + math.ceil(record.updates / every)
    assert plan.choice.passes(1) == 1 + 1 / every
    assert record.diverged is False
    assert record.config["method"] | METHODS[method].options == record.config["method"]


def test_options_of_a_method_make_another_run():
    plans = [make("pydoc", "gsam", walk=walk) for walk in ({}, {"alpha": 0.2}, {"alpha": 0.3}, {"alpha": 0.4})]
    assert plans[0] == plans[3]
    assert len({plan.identity("data") for plan in plans}) == 3
    assert plans[1].choice.perturbation().risk.alpha == 0.2
    assert make("pydoc", "wsam", walk={"gamma": 0.5}).choice.perturbation().risk.gamma == 0.5
    friendly = make("pydoc", "friendly-sam", walk={"sigma": 2, "risk": "mean"}).choice
    assert (friendly.perturbation().ascent.sigma, friendly.perturbation().risk) == (2.0, "mean")


def test_a_walk_from_a_record_is_the_same_walk():
    """The configuration of a record has the options by their names."""
    for method in FOUND:
        choice = choose(method, "numerals", 10, {"epsilon": 0.1})
        walk = {name: value for name, value in choice.identity().items() if name not in ("method", "moved")}
        again = choose(method, "numerals", 10, walk | {"norm": float(walk["norm"])})
        assert again == choice


@pytest.mark.parametrize("method", FOUND)
def test_methods_start_from_the_radius_of_sam(method):
    """So that a comparison of the family has the same radius for all of them; in other sizes all have one budget."""
    ours, plain = make("en-vi", method, "paper").choice, make("en-vi", "sam", "paper").choice
    if method == "sam-on":
        assert ours.epsilon_source.kind == "recommended"
        return
    assert (ours.epsilon, ours.norm, ours.start_epoch) == (plain.epsilon, plain.norm, plain.start_epoch)
    assert str(ours.epsilon_source) == f"{plain.epsilon_source.kind}, the radius of SAM"


def test_scale_norm_and_schedule_reach_the_walk():
    given = {"budget": 0.2, "cap": 0.05, "norm": math.inf, "scale": "weight", "granularity": "layer", "walk_every": 3}
    choice = choose("look-sam", "imdb", 10, given)
    walk, schedule = choice.perturbation(), choice.schedule()
    assert (walk.budget, walk.cap, walk.norm, walk.scale, walk.granularity) == (0.2, 0.05, math.inf, "weight", "layer")
    assert (schedule.every, schedule.weight) == (3, 1.0)


@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("gsam", {"beta": 1}, "a walk has no option 'beta': it has alpha, budget,"),
        ("gsam", {"alpha": -1}, "alpha must be a finite number >= 0, got -1.0"),
        ("gsam", {"alpha": "x"}, "alpha must be a finite number >= 0, got 'x'"),
        ("wsam", {"gamma": 1}, "gamma must be a number in [0, 1), got 1.0"),
        ("gsam", {"risk": "mean"}, "gsam has its own risk: leave out --risk"),
        ("look-sam", {"steps": 2}, "ReusedComponent is defined for one ascent step, got steps=2"),
        ("look-sam", {"walk_every": 1}, "ReusedComponent changes the steps between walks"),
        ("look-sam", {"walk_weight": 2}, "ReusedComponent changes the steps between walks"),
        ("sam", {"alpha": 0.1}, "a walk has no option 'alpha': it has budget"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(method, given, told):
    with pytest.raises(InputError) as caught:
        choose(method, "imdb", 10, {"epsilon": 0.1} | given)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_normalisation_layers_must_be_there():
    with pytest.raises(InputError, match="sam-on moves normalisation layers, but the model of imdb has none"):
        make("imdb", "sam-on")
    assert family_on("imdb") == ([name for name in FAMILY if name != "sam-on"], ["sam-on"])
    assert family_on("en-vi") == (list(FAMILY), [])


@pytest.mark.parametrize("method", ["friendly-sam", pytest.param("look-sam", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_its_state_and_ends_bit_equal(method, tmp_path):
    plan = make("pydoc", method, "tiny", settings={"epochs": 3}, walk={"epsilon": 0.01})
    expected = run(plan, tmp_path / "whole", cpu=True)
    given = ("pydoc", method, "SIGKILL-step", 30, {"epsilon": 0.01})
    assert exit_code(killed_at, tmp_path / "killed", *given) == -signal.SIGKILL
    assert timeless(run(plan, tmp_path / "killed", cpu=True)) == timeless(expected)
    name = plan.name(plan.data().hash)
    folders = [tmp_path / folder / name / "model.safetensors" for folder in ("whole", "killed")]
    whole, again = (load_file(file) for file in folders)
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_family_stands_for_the_methods_that_the_model_allows(capsys):
    assert methods_of("imdb", "--methods", "ga-sam,family,gsam") == ["ga-sam", *(
        name for name in FAMILY if name not in ("ga-sam", "sam-on"))]  # fmt: skip
    assert "sam-on is left out: the model of imdb has no normalisation layers" in capsys.readouterr().err
    assert methods_of("numerals", "--methods", "family") == list(FAMILY)


@pytest.mark.slow
def test_the_whole_family_is_compared_with_its_costs(command, tmp_path):
    ended = command("compare", "digits", "--methods", "family", "--size", "tiny", "--epochs", "1", "--cpu", "--walk",
                    "gsam.alpha=0.2", "--out", tmp_path, "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    assert "sam-on is left out: the model of digits has no normalisation layers" in ended.err
    rows = json.loads(ended.out)["rows"]
    assert [row["method"] for row in rows] == [name for name in FAMILY if name != "sam-on"]
    assert all("step_time" in row and "passes" in row for row in rows)
    assert any("alpha 0.2" in str(row) for row in rows)
    [shown] = [file.read_text() for file in (tmp_path / "tables").glob("*.md")]
    assert all(METHODS[row["method"]].title in shown for row in rows)


def test_several_methods_need_the_same_number_of_trials(command):
    told = command("tune", "digits", "--method", "sam,gsam", "--size", "tiny").err
    assert "several methods need the same number of trials to be comparable: add --trials 5" in told


@pytest.mark.slow
def test_several_methods_are_tuned_with_the_same_number_of_trials(command, tmp_path):
    words = ("tune", "digits", "--method", "sam,gsam", "--size", "tiny", "--cpu", "--out", tmp_path)
    ended = command(*words, "--trials", "2", "--epochs", "1")
    assert ended.code == 0, ended.err
    found = [json.loads(file.read_text()) for file in sorted((tmp_path / "tuning").glob("*.json"))]
    assert {each["method"] for each in found} == {"sam", "gsam"}
    assert [len(each["tries"]) for each in found] == [2, 2]


def test_train_takes_the_options_of_a_method(command, tmp_path):
    ended = command("train", "digits", "--method", "gsam", "--option", "alpha=0.1", "--size", "tiny", "--epochs", "1",
                    "--cpu", "--out", tmp_path, "--json")  # fmt: skip
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["config"]["method"]["alpha"] == 0.1
