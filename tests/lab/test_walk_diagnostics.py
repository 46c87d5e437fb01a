"""The walks of each epoch in a run's curve: the means of the traces, only where there were walks."""

from statistics import fmean

import pytest
import torch
from accelerate import Accelerator

from gasam import SharpBackward
from gasam.lab.training import walk_diagnostics
from gasam.lab.training.plan import make
from gasam.lab.training.run import run
from gasam.lab.training.walk_diagnostics import WalkDiagnostics
from gasam.trace import CLIMBED, NOT_FINITE, Trace

NAMES = {
    "perturbation_ratio": "ratio",
    "largest_ratio": "largest_ratio",
    "capped": "capped",
    "predicted_rise": "predicted_rise",
    "rise": "rise",
    "strength": "strength",
}


@pytest.mark.parametrize("together", [1, 5, 1000])
@pytest.mark.parametrize(
    "walk", [{"budget": 0.05, "cap": 0.02, "walk_warmup": 0.5, "walk_every": 2}, {"epsilon": 1e-3, "steps": 2}]
)
def test_a_row_holds_the_means_of_its_epochs_traces(tmp_path, monkeypatch, walk, together):
    """However many walks are computed together."""
    monkeypatch.setattr(walk_diagnostics, "TOGETHER", together)
    seen, call = [], SharpBackward.__call__

    def noting(self, function):
        returned = call(self, function)
        seen.append((len(self.last.losses), self.last.metrics()))
        return returned

    monkeypatch.setattr(SharpBackward, "__call__", noting)
    record = run(make("digits", "ga-sam", "tiny", walk=walk), tmp_path, cpu=True)
    steps = record.updates // len(record.curve)
    found = 0
    for number, row in enumerate(record.curve):
        walks = [metrics for passes, metrics in seen[number * steps : (number + 1) * steps] if passes > 1]
        assert ("walk" in row) == bool(walks)
        if walks:
            found += 1
            wanted = {NAMES[name]: fmean(each[name] for each in walks) for name in NAMES}
            if "cap" not in walk:
                del wanted["capped"]
            assert row["walk"] == pytest.approx(wanted | {"walks": len(walks)}, rel=1e-5)
    assert found


def test_plain_training_has_no_walks_and_noise_on_embeddings_has_a_rise_only(tmp_path):
    settings = {"epochs": 1, "rows": 60}
    plain = run(make("pydoc", "baseline", "tiny", settings=settings), tmp_path, cpu=True)
    assert plain.curve[0].keys() == {"epoch", "loss", "valid", "gradient_evaluations", "seconds"}
    noisy = run(make("pydoc", "freelb", "tiny", settings=settings), tmp_path, cpu=True)
    assert noisy.curve[0]["walk"].keys() == {"walks", "rise"}
    assert noisy.curve[0]["walk"]["walks"] == noisy.updates


def test_walks_that_were_not_finite_are_counted_but_not_averaged():
    walks, accelerator = WalkDiagnostics(False, torch.device("cpu")), Accelerator(cpu=True)

    def trace(last, outcome):
        losses = torch.tensor(1.0), torch.tensor(last)
        return Trace(losses, (torch.tensor(0.0), torch.tensor(0.5)), torch.tensor(outcome))

    walks.add(trace(1.25, CLIMBED))
    walks.add(trace(float("nan"), NOT_FINITE))
    assert walks.end_epoch(accelerator) == {"walk": {"walks": 2, "rise": 0.25}}
    walks.add(trace(float("inf"), NOT_FINITE))
    assert walks.end_epoch(accelerator) == {"walk": {"walks": 1}}, "a mean of nothing is absent"
    assert walks.end_epoch(accelerator) == {}
