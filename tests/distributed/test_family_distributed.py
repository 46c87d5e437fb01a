"""The methods of the family with DDP and FSDP2; the checks run in processes of their own."""

import pytest
from processes import findings

from tolerances import EXACT


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return findings("family_checks.py", 2, tmp_path_factory.mktemp("family") / "found.json")


def test_ddp_equals_one_process_on_the_joint_batch(found):
    assert max(found["ddp"].values()) < EXACT
    assert found["ddp, state agrees"] == [True, True]


def test_a_risk_function_gets_reduced_gradients_in_no_sync_too(found):
    assert max(found["ddp, accumulation"].values()) < EXACT


def test_with_per_worker_each_worker_has_its_own_running_mean(found):
    assert found["ddp, own means"] < EXACT
    assert "per_worker can't be used with a risk function" in found["refused: per worker"]


def test_shards_equal_one_process(found):
    assert len(found["fsdp"]) == 10
    assert max(found["fsdp"].values()) < EXACT


def test_state_is_sharded_like_the_weights_and_resumes_bit_equal(found):
    assert found["fsdp, state"] == {"friendly_sam": [True, True], "look_sam": [True, True]}
