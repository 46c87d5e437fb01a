"""The examples of distributed training under torchrun; tests/test_docs.py runs them as a world of one."""

import pytest
from processes import TESTS, start


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_example_runs_in_two_processes(name):
    """Each under a torchrun of its own: two groups one after the other in one process may wait for each other."""
    done = start(str(TESTS.parent / "examples" / f"{name}.py"), 2)
    assert done.returncode == 0, done.stderr[-4000:]
    for worker in range(2):
        assert done.stdout.count(f"worker {worker}: fine") == 1
