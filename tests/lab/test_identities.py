"""Committed records keep their identity: new options enter a configuration only where they are used."""

import pytest

from gasam import ga_sam, recommended, sam
from gasam.lab.cli.option_values import steps_or_share
from gasam.lab.errors import InputError
from gasam.lab.training.plan import make
from gasam.lab.walks import choose


def test_new_options_make_another_run():
    plain = make("docstrings", "ga-sam", "paper")
    changed = [
        {"budget": 0.1, "norm": 2.0},
        {"cap": 0.01},
        {"walk_progress": 0.2},
        {"walk_start": 10},
        {"walk_start": 0.1},
        {"walk_warmup": 10},
        {"walk_every": 4},
        {"walk_every": 4, "walk_weight": 2.0},
    ]
    plans = [plain, *(make("docstrings", "ga-sam", "paper", walk=walk) for walk in changed)]
    assert len({plan.identity("data") for plan in plans}) == len(plans)


def test_options_reach_the_walk():
    walk = {"budget": 0.1, "cap": 0.01, "walk_progress": 0.2, "walk_start": 5, "walk_warmup": 0.1}
    walk |= {"walk_every": 4, "walk_weight": 2}
    choice = make("docstrings", "ga-sam", "paper", walk=walk).choice
    perturbation, schedule = choice.perturbation(), choice.schedule()
    assert (perturbation.budget, perturbation.cap, perturbation.epsilon) == (0.1, 0.01, None)
    assert (schedule.progress, schedule.start, schedule.warmup) == (0.2, 5, 0.1)
    assert (schedule.every, schedule.weight, choice.passes(1)) == (4, 2.0, 1.25)
    assert make("docstrings", "ga-sam", "paper").choice.schedule() is None


@pytest.mark.parametrize(("walk", "words"), [
    ({"budget": 0.1, "epsilon": 0.1}, "either --epsilon or --budget"),
    ({"budget": -0.1}, "budget must be a finite number >= 0"),
    ({"cap": 0.0}, "cap must be a finite number > 0"),
    ({"walk_start": 1.5}, "start must be a number of steps"),
    ({"walk_progress": -1.0}, "progress must be a finite number > 0"),
    ({"walk_every": 0}, "every must be a whole number of steps >= 1"),
    ({"walk_weight": 0.0}, "weight must be a number from 0.001 to 1000"),
])  # fmt: skip
def test_bad_options_are_named(walk, words):
    with pytest.raises(InputError, match=words):
        make("docstrings", "ga-sam", "paper", walk=walk)


def test_own_data_has_the_recommended_setting():
    perturbation, schedule = recommended()
    for task in ("classify", "lm", "translate"):
        choice = choose("ga-sam", task, 10)
        assert choice.perturbation() == perturbation
        assert choice.schedule() == schedule
        assert choice.start_epoch == 1
        assert choose("sam", task, 10).perturbation() == sam(budget=perturbation.budget, cap=perturbation.cap)
    given = choose("ga-sam", "classify", 10, {"epsilon": 1e-3, "norm": 2.0})
    assert given.perturbation() == ga_sam(1e-3, 2.0)
    assert given.schedule() is None


def test_steps_and_shares_are_told_apart():
    assert steps_or_share("--walk-start", "10") == 10
    assert isinstance(steps_or_share("--walk-start", "10"), int)
    assert steps_or_share("--walk-start", "0.1") == 0.1
    assert steps_or_share("--walk-start", None) is None
    with pytest.raises(InputError, match="--walk-start must be a number of steps or a share below 1, got 'soon'"):
        steps_or_share("--walk-start", "soon")


def test_the_default_weight_is_not_another_run():
    usual, said = (
        make("docstrings", "ga-sam", "paper", walk=walk)
        for walk in ({"walk_every": 4}, {"walk_every": 4, "walk_weight": 4})
    )
    assert usual.identity("data") == said.identity("data")


def test_messages_name_the_options_of_the_command_line():
    with pytest.raises(InputError, match="leave out --every"):
        make("docstrings", "baseline", walk={"walk_every": 4})
