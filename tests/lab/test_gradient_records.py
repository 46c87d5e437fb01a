"""Gradient norms in the records of runs: of the folded, unclipped gradient, resumable, and no part of a run's name."""

import math
import os
import signal

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from gasam.analysis.gradients import transformer_layers
from gasam.lab.errors import InputError
from gasam.lab.training.checkpoints import Checkpoints
from gasam.lab.training.loop import Training
from gasam.lab.training.plan import make
from gasam.lab.training.run import run

KEYS = {"gradient_norm", "layer_gradient_norms", "gradient_norms"}


def timeless(record, without=frozenset({"seconds"})):
    kept = record.model_dump(exclude={"seconds", "evaluation_seconds", "curve"})
    return kept | {"curve": [{k: v for k, v in row.items() if k not in without} for row in record.curve]}


def test_norms_are_those_of_the_folded_gradient_before_clipping(tmp_path, monkeypatch):
    plan = make("ptb", "ga-sam", "tiny", walk={"epsilon": 1e-3})
    assert plan.settings.clip is not None
    clip, seen = Accelerator.clip_grad_norm_, []

    def noting(self, parameters, limit):
        parameters = list(parameters)
        seen.append([float(p.grad.double().norm()) for p in parameters])
        return clip(self, parameters, limit)

    monkeypatch.setattr(Accelerator, "clip_grad_norm_", noting)
    record = run(plan, tmp_path, cpu=True, gradient_norms=True)
    steps = record.updates // 2
    assert len(seen) == 2 * steps
    for epoch, row in enumerate(record.curve):
        norms = torch.tensor(seen[epoch * steps : (epoch + 1) * steps], dtype=torch.float64)
        assert list(row["gradient_norms"].values()) == pytest.approx(norms.mean(0).tolist(), rel=1e-5)
        assert row["gradient_norm"] == pytest.approx(float(norms.norm(dim=1).mean()), rel=1e-5)


def test_a_record_with_norms_is_otherwise_the_record_without(tmp_path):
    plan = make("numerals", "ga-sam", "tiny")
    plain = run(plan, tmp_path / "plain", cpu=True)
    watched = run(plan, tmp_path / "watched", cpu=True, gradient_norms=True)
    assert timeless(watched, KEYS | {"seconds"}) == timeless(plain)
    names = [name for name, _ in plan.family(plan.data()).model().named_parameters()]
    for row in watched.curve:
        norms = row["gradient_norms"]
        assert list(norms) == names
        absent = [name for name, norm in norms.items() if norm is None]
        assert absent == ["model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"]
        assert set(row["layer_gradient_norms"]) == {"embeddings", "encoder 1", "decoder 1"}
        for layer, norm in row["layer_gradient_norms"].items():
            parts = [n for name, n in norms.items() if transformer_layers(name) == layer and n is not None]
            assert norm >= math.hypot(*parts) * (1 - 1e-9)  # the mean of roots is above the root of means
    weights = [load_file(next(tmp_path.glob(f"{d}/*/model.safetensors"))) for d in ("plain", "watched")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


class CrashError(Exception):
    """As a kill would: nothing is saved any more."""


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("interrupted", [True, False])
def test_a_run_stopped_in_mid_epoch_goes_on_with_the_same_norms(interrupted, again, shared, tmp_path, monkeypatch):
    """From a checkpoint in mid-epoch, or from the one before; a run that has begun to record goes on recording."""
    plan = make("numerals", "ga-sam", "tiny")
    whole = run(plan, shared / "with-norms", cpu=True, gradient_norms=True)
    step, last = Training.train_step, whole.updates * 3 // 4

    def stopping(self, chosen):
        if self.progress.updates == last:
            if not interrupted:
                raise CrashError
            os.kill(os.getpid(), signal.SIGINT)
        step(self, chosen)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "train_step", stopping)
        with pytest.raises((KeyboardInterrupt, CrashError)):
            run(plan, tmp_path, cpu=True, gradient_norms=True)
    saved = torch.load(next(tmp_path.glob("*/last.pt")), weights_only=True)
    assert (saved["progress"]["step"] > 0) == interrupted
    record = run(plan, tmp_path, cpu=True, gradient_norms=again)
    assert timeless(record) == timeless(whole)


def test_norms_cannot_be_had_afterwards(tmp_path, command):
    plan = make("digits", "baseline", "tiny")
    data = plan.data()
    training = Training(
        plan, plan.family(data), Checkpoints(tmp_path / plan.name(data.hash)), print, Accelerator(cpu=True)
    )
    training.save()
    for kind in ("last.pt", ".json"):
        with pytest.raises(InputError, match=rf"{kind} has no gradient norms: choose another --out") as caught:
            run(plan, tmp_path, cpu=True, gradient_norms=True)
        assert "\n" not in str(caught.value)
        run(plan, tmp_path, cpu=True)
    words = ["train", "digits", "--size", "tiny", "--cpu", "--out", tmp_path, "--gradient-norms"]
    ended = command(*words)
    assert ended.code == 2
    assert "has no gradient norms" in ended.err
    assert "Traceback" not in ended.err
    ended = command(*words[:-2], tmp_path / "other", "--gradient-norms", "--json")
    assert ended.code == 0
    assert '"gradient_norms"' in ended.out
    assert command(*words[:-2], tmp_path / "other", "--gradient-norms").code == 0
