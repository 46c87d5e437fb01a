"""DistributedDataParallel: one walk for all workers, or each its own; the checks run in processes of their own."""

import pytest
from processes import findings

from tolerances import EXACT


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def found(request, tmp_path_factory):
    return findings("ddp_checks.py", request.param, tmp_path_factory.mktemp("ddp") / "found.json")


def test_shared_walk_equals_one_process_on_the_joint_batch(found):
    assert found["shared"] < EXACT
    assert found["closure"] < EXACT


def test_own_walks_equal_the_mean_of_the_workers_folds(found):
    assert found["per worker"] < EXACT
    assert found["closure, per worker, final"] < EXACT


def test_own_walks_need_one_all_reduce_however_many_steps(found):
    assert found["all-reduces, per worker"] == [1, 1, 1]
    assert found["all-reduces, shared"] == [2, 3, 4]


def test_schedule_follows_the_mean_loss_of_all_workers(found):
    assert found["schedule"] < EXACT


def test_overflow_of_one_worker_gives_all_of_them_the_clean_gradient(found):
    assert found["overflow"]


def test_walk_on_every_third_step_has_its_weight_and_its_passes(found):
    assert found["weighted walk"] < EXACT


def test_accumulation_in_no_sync(found):
    """16 perturbations, 6 with K = 1, 6 with K = 2 and 4 with K = 3.

    Shared, the first micro-batch has K all-reduces and the second K + 1.
    """
    error, all_reduces = found["accumulated, shared"]
    assert error < EXACT
    assert all_reduces == 6 * 3 + 6 * 5 + 4 * 7
    error, all_reduces = found["accumulated, per worker"]
    assert error < EXACT
    assert all_reduces == 16
    # Without a word about it, what is not synchronised is each worker's own, as the guide says.
    assert found["accumulated, nothing said"][0] < EXACT


def test_weights_are_the_same_bits_in_all_processes_after_every_step(found):
    assert found["weights agree"] == [True] * 20


def test_what_can_not_be_right_is_refused_with_the_cure(found):
    assert "use SharpBackward" in found["refused: closure, per worker, mean"]
    assert "run the first step with sharp.enabled = False" in found["refused: static graph"]
    assert "needs a DistributedDataParallel model, got Sequential" in found["refused: not DDP"]
