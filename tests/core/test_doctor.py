"""The doctor on this machine's CPU: it passes here, notices what is wrong, and survives crashes."""

import os
import signal

import pytest
import torch
from torch import nn

from gasam import doctor, reference

ORIGINAL = doctor.problem


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


class Changing(nn.Module):
    """Writes to its weights, or reads a value, in each pass."""

    def __init__(self, model, how):
        super().__init__()
        self.model, self.how = model, how

    def forward(self, x):
        with torch.no_grad():
            if self.how == "writes":
                self.model[0].weight.mul_(1.01)
            else:
                self.model[0].weight.sum().item()
        return self.model(x)


def with_model(how):
    def problem(dtype, device):
        model, x, y = ORIGINAL(dtype, device)
        return Changing(model, how), x, y

    return problem


def test_other_bits_fail(monkeypatch):
    monkeypatch.setattr(doctor, "problem", with_model("writes"))
    with pytest.raises(ArithmeticError, match="other bits"):
        doctor.of_type("float32", "cpu")


def test_another_walk_fails(monkeypatch):
    original = reference.walk
    monkeypatch.setattr(reference, "walk", lambda *args, **options: original(*args, **options | {"cap": 1e-4}))
    with pytest.raises(ArithmeticError, match="against the float64 reference"):
        doctor.of_type("float32", "cpu")


def test_a_step_that_synchronises_fails(monkeypatch):
    monkeypatch.setattr(doctor, "problem", with_model("reads"))
    with pytest.raises(RuntimeError):
        doctor.synchronisation("", "cpu")


def test_an_unknown_device_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--device", "abacus"])
    assert ended.value.code == 2
    assert "can't be used" in capsys.readouterr().err
