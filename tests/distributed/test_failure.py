"""A process that fails: the others do not wait for it for ever, and their weights are home."""

import json

import pytest
from processes import start


@pytest.mark.parametrize("engine", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_no_process_waits_for_ever_for_one_that_failed(engine, tmp_path):
    done = start("failing_process.py", 2, str(tmp_path / "found.json"), engine)
    found = json.loads((tmp_path / "found.json").read_text())["failure"]
    assert "imed out" in found["said"], done.stderr[-2000:]
    assert found["passes"] == 2
    assert found["home"]
