"""The doctor on this machine's CPU: it passes here, notices what is wrong, and survives crashes."""

import os
import signal

import pytest

from gasam import doctor, reference


def crash(name, device):
    os.kill(os.getpid(), signal.SIGILL)


def test_everything_is_fine_on_the_cpu():
    assert doctor.in_own_process(doctor.of_type, "bfloat16", "cpu")[0]
    for name in ("float64", "float32", "float16"):
        assert "weights restored; error " in doctor.of_type(name, "cpu")
    assert doctor.synchronisation("", "cpu")


def test_a_crash_is_reported_with_its_cure():
    fine, text = doctor.in_own_process(crash, "bfloat16", "cpu")
    assert not fine
    assert "illegal instruction" in text
    assert "ONEDNN_MAX_CPU_ISA" in text


def test_another_walk_fails(monkeypatch):
    original = reference.walk
    monkeypatch.setattr(reference, "walk", lambda *args, **options: original(*args, **options | {"cap": 1e-4}))
    with pytest.raises(ArithmeticError, match="against the float64 reference"):
        doctor.of_type("float32", "cpu")


def test_an_unknown_device_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--device", "abacus"])
    assert ended.value.code == 2
    assert "can't be used" in capsys.readouterr().err
