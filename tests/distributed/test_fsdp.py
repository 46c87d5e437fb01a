"""FSDP2: the walk over shards equals that of one process; the checks run in processes of their own."""

import pytest
from processes import findings

from tolerances import EXACT

WORLDS = ["two", pytest.param("four", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return findings("fsdp_checks.py", 2, tmp_path_factory.mktemp("fsdp") / "found.json")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return findings("fsdp_checks.py", 4, tmp_path_factory.mktemp("fsdp") / "found.json")


def test_uneven_shards_walk_as_one_process_does(two):
    """Every scale at every granularity, for three norms and K = 2; layer by layer for K = 1."""
    assert two["walks"] < EXACT
    assert two["offsets"] < EXACT
    assert two["closure"] < EXACT


def test_shards_that_are_cut_walk_alike(two):
    assert two["cut"] < EXACT


@pytest.mark.slow
def test_empty_shards_walk_as_one_process_does(four):
    assert four["walks"] < EXACT


@pytest.mark.slow
def test_hybrid_shards_walk_as_one_process_does(four):
    assert four["hybrid"] < EXACT


def test_whole_tensors_walk_along_with_sharded_ones(two):
    assert two["whole and sharded"] < EXACT


def test_gathered_weights_are_never_out_of_date(two):
    assert two["stale"] < EXACT


def test_mixed_precision_policy(two):
    """float32 against float32, the same roundings to bfloat16."""
    assert two["mixed precision"] < 1e-6


def test_schedule_follows_the_mean_loss_of_all_processes(two):
    assert two["schedule"] < EXACT


def test_overflow_in_one_process_gives_all_of_them_the_clean_gradient(two):
    assert two["overflow"]


def test_walk_on_every_third_step_has_its_weight_and_its_passes(two):
    assert two["weighted walk"] < EXACT


def test_one_collective_has_all_norms_of_a_pass(two):
    """One for all sums over a pass's gradient.

    With K > 1 one more in each step, for the length of the position, and one at the end, for the predicted rise.
    """
    assert two["collectives"] == {"2.0": [1, 5], "inf": [1, 5]}


@pytest.mark.parametrize("world", WORLDS)
def test_all_processes_have_the_same_bits_after_every_step(world, request):
    assert request.getfixturevalue(world)["weights agree"] == [True] * 5


@pytest.mark.parametrize("world", WORLDS)
def test_resumed_from_a_distributed_checkpoint_equals_never_stopped(world, request):
    assert request.getfixturevalue(world)["resumed"]


def test_loss_that_is_not_finite_in_one_process_keeps_all_at_home(two):
    assert two["doubt"]


def test_what_can_not_be_right_is_refused_by_name(two):
    assert "set_requires_gradient_sync(False) keeps FSDP from reducing" in two["refused: not reduced"]
    assert "parameter 'some.weight' is a DTensor placed as (Shard(dim=1),)" in two["refused: columns"]
