"""The examples of distributed training under torchrun; tests/test_docs.py runs them as a world of one."""

from processes import start


def test_examples_run_in_two_processes():
    done = start("run_examples.py", 2)
    assert done.returncode == 0, done.stderr[-4000:]
    for worker in range(2):
        assert done.stdout.count(f"worker {worker}: climbed") == 2
