"""The doctor on this machine's CPU: it passes here, notices what is wrong, and survives crashes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gasam import doctor, doctor_checks
from gasam.portions import Portion

SOURCE = str(Path(doctor.__file__).parents[1])


def test_everything_is_fine_on_the_cpu():
    command = [sys.executable, "-m", "gasam.doctor", "--device", "cpu", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": SOURCE}, timeout=240
    )
    found = json.loads(done.stdout)
    status = {each["check"]: each["status"] for each in found["findings"]}
    for name in doctor_checks.TYPES:
        assert status[f"{name} walk"] == doctor_checks.OK
        assert status[f"{name} restore"] == doctor_checks.OK
    assert status["no synchronisation"] == doctor_checks.OK
    assert found["machine"]["torch"] == torch.__version__


def test_a_crash_is_reported_with_its_cure(monkeypatch):
    """A real process that dies by the signal of an illegal instruction."""
    die = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"
    original = subprocess.run
    monkeypatch.setattr(
        doctor.subprocess, "run", lambda command, **options: original([sys.executable, "-c", die], **options)
    )
    (finding,) = doctor.in_own_process("bfloat16", "cpu")
    assert finding.status == doctor_checks.FAILED
    assert "illegal instruction" in finding.detail
    assert "ONEDNN_MAX_CPU_ISA" in finding.detail


def test_a_restore_that_loses_bits_fails(monkeypatch):
    monkeypatch.setattr(Portion, "restore", lambda self: None)
    findings = {each.check: each for each in doctor_checks.of_type("float32", "cpu")}
    assert findings["float32 restore"].status == doctor_checks.FAILED


def test_a_wrong_walk_fails(monkeypatch):
    original = Portion.displace
    monkeypatch.setattr(Portion, "displace", lambda self, values, factor: original(self, values, factor * 1.5))
    findings = {each.check: each for each in doctor_checks.of_type("float32", "cpu")}
    assert findings["float32 walk"].status == doctor_checks.FAILED


def test_a_step_that_synchronises_fails(monkeypatch):
    original = Portion.displace
    monkeypatch.setattr(
        Portion, "displace", lambda self, values, factor: original(self, values, factor * factor.sum().item())
    )
    finding = doctor_checks.guarded("no synchronisation", lambda: doctor_checks.synchronisation("cpu"))
    assert finding.status == doctor_checks.FAILED


def test_an_unknown_device_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--device", "abacus"])
    assert ended.value.code == 2
    assert "can't be used" in capsys.readouterr().err
