"""Sizes have versions: users get the newest, records keep theirs."""

from pathlib import Path

import pytest
import torch

from gasam import recommended
from gasam.lab.errors import InputError
from gasam.lab.families.encoded import Encoded
from gasam.lab.search.settings_finding import SettingsFinding
from gasam.lab.tasks import TASKS, asked_size, recorded_size
from gasam.lab.training.plan import make

RESULTS = Path(__file__).parents[2] / "results"


def test_users_get_the_newest_version():
    assert recorded_size("imdb", "small") == "small@3"
    assert recorded_size("ptb", "small") == "small@3"
    assert recorded_size("en-vi", "small") == "small@2"
    assert recorded_size("imdb", "small@2") == "small@2"
    assert recorded_size("imdb", "small@1") == "small"
    assert recorded_size("classify", "small") == "small"  # your own data: one version
    assert recorded_size("imdb", "paper") == "paper"
    assert recorded_size("ptb", "medium") == "medium"
    with pytest.raises(InputError, match=r"size must be one of paper, small@3, small@2, small@1, tiny, got 'medium'"):
        make("imdb", size="medium")


def test_unknown_sizes_and_tasks_are_left_to_the_plan():
    assert recorded_size("imdb", "small@9") == "small@9"
    assert recorded_size("imdb", "small@new") == "small@new"
    with pytest.raises(InputError, match=r"task must be one of .*, got 'unknown'"):
        recorded_size("unknown", "small")


def test_every_recorded_size_can_be_asked_for():
    for task in TASKS:
        for size in TASKS[task].sizes:
            assert recorded_size(task, asked_size(task, size)) == size


def test_versions_are_different_runs_and_the_first_is_as_it_was():
    first, second = make("imdb", "baseline", "small"), make("imdb", "baseline", "small@2")
    assert "embedding_scale" not in first.config()["settings"]
    assert second.config()["settings"]["embedding_scale"] == 0.1
    assert first.identity("data") != second.identity("data")


@pytest.mark.parametrize("task", ["imdb", "ptb"])
def test_third_version_has_the_settings_that_the_search_chose(task):
    [file] = (RESULTS / "settings").glob(f"{task}-small@2-baseline-0-*.json")
    found = SettingsFinding.read(file)
    assert TASKS[task].sizes["small@3"] == TASKS[task].settings("small@2", **found.settings_of(found.chosen()))


def test_initial_embeddings_have_the_scale_of_the_size():
    data = Encoded({"words": [str(i) for i in range(2000)], "classes": ["a", "b"]}, {}, "")
    scales = []
    for size in ("small", "small@2"):
        plan = make("docstrings", "baseline", size)
        torch.manual_seed(0)
        weight = plan.family(data).model().embedding.weight
        assert weight[0].abs().sum() == 0  # padding
        scales.append(weight[1:].std().item())
    assert abs(scales[0] - 1) < 0.01
    assert abs(scales[1] - 0.1) < 0.001


def test_paper_and_tiny_sizes_keep_torchs_scale():
    for task in ("imdb", "docstrings"):
        assert {TASKS[task].sizes[size].embedding_scale for size in ("paper", "small", "tiny")} == {1.0}
    assert {recipe.embedding_scale for recipe in TASKS["classify"].sizes.values()} == {0.1}


def test_newer_sizes_and_own_data_use_the_recommended_walk():
    perturbation, schedule = recommended()
    newer = (("imdb", "small@2"), ("numerals", "small@2"), ("ptb", "medium"))
    for task, size in (*newer, ("classify", "small"), ("lm", "paper")):
        choice = make(task, "ga-sam", size).choice
        assert choice.perturbation() == perturbation
        assert choice.schedule() == schedule
        assert choice.start_epoch == 1
    assert make("imdb", "ga-sam", "small").choice.epsilon == 1e-4
    assert make("imdb", "ga-sam", "small@2", walk={"epsilon": 1e-3}).choice.budget is None
