"""Every analysis leaves the model as it was, bit for bit, also when it is interrupted."""

import itertools

import pytest
import torch
from curvature import uneven
from torch import nn

from gasam import ga_sam
from gasam.analysis import (
    CrossEntropy,
    Objective,
    attack,
    line,
    mean_loss,
    plain,
    plane,
    pruned,
    quantised,
    robustness,
    sharpness,
    spectral_density,
    top_eigenvalues,
)
from problems import network
from tolerances import same_bits


def along_ones(model, objective, batches):
    direction = {name: torch.ones_like(weight) for name, weight in model.named_parameters()}
    return line(model, objective, batches, [0.0, 1.0, 2.0], direction=direction)


def towards_another(model, objective, batches):
    ends = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    return line(model, objective, batches, [0.0, 0.7, 2.0], other=ends)


def curve(model, *given):
    objective = Objective(lambda m, b: m(b[0]), CrossEntropy())
    metric = lambda model: mean_loss(model, objective, uneven(torch.bfloat16))  # noqa: E731
    return robustness(model, *given, metric, [0.1], higher_is_better=False, steps=2)


def compressed(model, *given):
    with quantised(model, 4), pruned(model, 0.5):
        mean_loss(model, *given)


MOVES = {
    "quantised and pruned": compressed,
    "attack": lambda *given: attack(*given, ga_sam(0.5, steps=3), restarts=2),
    "sharpness": lambda *given: sharpness(*given, plain(0.5, steps=3), draws=3),
    "robustness": curve,
    "line": along_ones,
    "line to another model": towards_another,
    "plane": lambda *given: plane(*given, points=3),
}
SPECTRA = {
    "gram": lambda *given: top_eigenvalues(*given, 5, method="gram"),
    "lanczos": lambda *given: top_eigenvalues(*given, 5, method="lanczos"),
    "dense": lambda *given: top_eigenvalues(*given, 5, "hessian", method="dense"),
    "density": lambda *given: spectral_density(*given, probes=2, steps=5),
}


@pytest.mark.parametrize("name", MOVES | SPECTRA)
def test_model_is_as_before_also_when_interrupted(name):
    dtype = torch.bfloat16 if name in MOVES else torch.float64
    model = nn.Sequential(network(dtype), nn.Dropout(0.5), nn.BatchNorm1d(3).to(dtype))
    model[1].eval()
    model[0][0].weight.grad = kept = torch.ones_like(model[0][0].weight)
    home, modes = [t.clone() for t in model.state_dict().values()], [m.training for m in model.modules()]

    def run(stop=None):
        calls = itertools.count()

        def forward(model, batch):
            assert not model.training
            if next(calls) == stop:
                raise KeyboardInterrupt
            return model(batch[0])

        (MOVES | SPECTRA)[name](model, Objective(forward, CrossEntropy()), uneven(dtype))
        return next(calls)

    def check():
        assert same_bits(model.state_dict().values(), home)
        assert [m.training for m in model.modules()] == modes
        assert model[0][0].weight.grad is kept
        assert torch.equal(kept, torch.ones_like(kept))
        assert model[0][2].weight.grad is None

    total = run()
    check()
    for stop in (0, total // 2, total - 1):
        with pytest.raises(KeyboardInterrupt):
            run(stop)
        check()
