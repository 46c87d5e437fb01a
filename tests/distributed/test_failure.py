"""A process that fails: the others do not wait for it for ever, and their weights are home."""

import json
import time

import pytest
from processes import start


@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_no_process_waits_for_ever_for_one_that_failed(engine, tmp_path):
    began = time.monotonic()
    done = start("failing_process.py", 2, str(tmp_path / "found.json"), engine)
    assert time.monotonic() - began < 120  # the default of torch is 1800
    found = json.loads((tmp_path / "found.json").read_text())["failure"]
    assert "imed out" in found["said"], done.stderr[-2000:]
    assert found["passes"] == 2
    assert found["home"]
