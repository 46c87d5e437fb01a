"""DDP, FSDP2 and the family in several processes: one start under torchrun, whose findings the tests read."""

import pytest
from processes import TESTS, findings, start

from tolerances import EXACT

WORLDS = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=WORLDS)
def found(request, tmp_path_factory):
    """With four processes, DDP and those checks of FSDP2 in which some shards are empty, and shards have replicas."""
    return findings(request.param, tmp_path_factory.mktemp("distributed") / "found.json")


@pytest.fixture
def two(request, found):
    if "family, ddp" not in found:
        pytest.skip("two processes show it")
    return found


class TestDDP:
    def test_shared_walk_equals_one_process_on_the_joint_batch(self, found):
        assert found["ddp, shared"] < EXACT
        assert found["ddp, closure"] < EXACT

    def test_own_walks_equal_the_mean_of_the_workers_folds(self, found):
        assert found["ddp, per worker"] < EXACT
        assert found["ddp, closure, per worker, final"] < EXACT

    def test_own_walks_need_one_all_reduce_however_many_steps(self, found):
        assert found["ddp, all-reduces, per worker"] == [1, 1, 1]
        assert found["ddp, all-reduces, shared"] == [2, 3, 4]

    def test_accumulation_in_no_sync(self, found):
        """Shared, the first micro-batch has K all-reduces and the second K + 1."""
        error, all_reduces = found["ddp, accumulated, shared"]
        assert error < EXACT
        assert all_reduces == [3, 5, 7]
        error, all_reduces = found["ddp, accumulated, per worker"]
        assert error < EXACT
        assert all_reduces == [1, 1, 1]
        # Without a word about it, what is not synchronised is each worker's own, as the guide says.
        assert found["ddp, accumulated, nothing said"][0] < EXACT

    def test_weights_are_the_same_bits_in_all_processes_after_every_step(self, found):
        assert found["ddp, weights agree"] == [True] * 20

    def test_what_can_not_be_right_is_refused_with_the_cure(self, found):
        assert "use SharpBackward" in found["refused: closure, per worker, mean"]
        assert "run the first step with sharp.enabled = False" in found["refused: static graph"]


class TestFSDP:
    def test_shards_walk_as_one_process_does(self, found):
        """24 walks over uneven shards, or empty ones with four processes."""
        assert found["fsdp, walks"] < EXACT
        assert max(found.get(f"fsdp, {name}", 0) for name in ("hybrid", "accumulated", "displaced", "closure")) < EXACT

    def test_tensors_that_are_whole_walk_along(self, two):
        assert two["fsdp, whole and sharded"] < EXACT

    def test_gathered_weights_are_never_out_of_date(self, two):
        assert two["fsdp, stale"] < EXACT

    def test_mixed_precision_policy(self, two):
        """float32 against float32, the same roundings to bfloat16."""
        assert two["fsdp, mixed precision"] < 1e-6

    def test_one_collective_has_all_norms_of_a_pass(self, two):
        """One for all sums over a pass's gradient; with K > 1 one more in each step, for the length of the position."""
        assert two["fsdp, collectives"] == {"2.0": [1, 4], "inf": [1, 4]}

    def test_all_processes_have_the_same_bits_and_resume_from_a_distributed_checkpoint(self, found):
        assert found["fsdp, weights agree"] == [True] * 5
        assert found["fsdp, resumed"]

    def test_loss_that_is_not_finite_in_one_process_keeps_all_at_home(self, two):
        assert two["fsdp, doubt"]

    def test_what_can_not_be_right_is_refused_by_name(self, two):
        assert "set_requires_gradient_sync(False) keeps FSDP from reducing" in two["refused: not reduced"]
        assert "parameter 'some.weight' is a DTensor placed as (Shard(dim=1),)" in two["refused: columns"]


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
class TestBoth:
    def test_schedule_follows_the_mean_loss_of_all_workers(self, two, engine):
        assert two[f"{engine}, schedule"] < EXACT

    def test_walk_on_every_third_step_has_its_weight_and_its_passes(self, two, engine):
        assert two[f"{engine}, weighted walk"] < EXACT

    def test_no_process_waits_for_ever_for_one_that_failed(self, two, engine):
        failure = two[f"{engine}, failure"]
        assert "imed out" in failure["said"]
        assert failure["passes"] == 2
        assert failure["home"]

    def test_methods_equal_one_process_on_the_joint_batch(self, two, engine):
        assert len(two[f"family, {engine}"]) == 5
        assert max(two[f"family, {engine}"].values()) < EXACT


class TestFamily:
    def test_a_method_gets_reduced_gradients_in_no_sync_too(self, two):
        assert two["family, ddp, state agrees"] == [True, True]
        assert max(two["family, ddp, accumulation"].values()) < EXACT

    def test_with_per_worker_each_worker_has_its_own_running_mean(self, two):
        assert two["family, ddp, own means"] < EXACT
        assert "per_worker can't be used with" in two["refused: method, per worker"]

    def test_state_is_sharded_like_the_weights_and_resumes_bit_equal(self, two):
        assert two["family, fsdp, state"] == {"friendly_sam": [True, True], "look_sam": [True, True]}


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_example_runs_in_two_processes(name):
    """Each under a torchrun of its own: two groups one after the other in one process may wait for each other."""
    done = start(str(TESTS.parent / "examples" / f"{name}.py"), 2)
    assert done.returncode == 0, done.stderr[-4000:]
    for worker in range(2):
        assert done.stdout.count(f"worker {worker}: fine") == 1
