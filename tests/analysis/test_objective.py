"""What every analysis shares: the losses of examples, and a model that is left as it was, bit for bit."""

import itertools

import pytest
import torch
from curvature import OBJECTIVE, uneven
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import analysis, ga_sam
from gasam.analysis import CrossEntropy, Objective, SquaredError, line, mean_loss, plain, top_eigenvalues
from problems import batch, network
from tolerances import EXACT, error, same_bits


def test_mean_loss_is_over_examples_in_eval_mode():
    model, (x, y) = nn.Sequential(network(), nn.Dropout(0.5), nn.BatchNorm1d(3).double()), batch(rows=12)
    state = torch.get_rng_state()
    assert error(mean_loss(model, OBJECTIVE, uneven()), cross_entropy(model.eval()(x), y)) < EXACT
    assert torch.equal(torch.get_rng_state(), state)


def test_likelihoods_are_torch_losses_by_row():
    outputs, classes = torch.randn(4, 5, 3), torch.randint(3, (4, 5))
    classes[1, 2:] = -100
    classes[3] = -100
    found = CrossEntropy(label_smoothing=0.1)(outputs, (None, classes))
    expected = [cross_entropy(o, c, label_smoothing=0.1) for o, c in zip(outputs[:3], classes[:3], strict=True)]
    assert torch.allclose(found[:3], torch.stack(expected))
    assert found[3] == 0
    targets = torch.randn(4, 5, 3)
    squares = SquaredError()(outputs, (None, targets))
    assert torch.allclose(squares.mean(), nn.functional.mse_loss(outputs, targets))


def along_ones(model, objective, batches):
    direction = {name: torch.ones_like(weight) for name, weight in model.named_parameters()}
    return line(model, objective, batches, [0.0, 1.0, 2.0], direction=direction)


def towards_another(model, objective, batches):
    ends = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    return line(model, objective, batches, [0.0, 0.7, 2.0], other=ends)


def curve(model, *given):
    objective = Objective(lambda m, b: m(b[0]), CrossEntropy())
    metric = lambda model: mean_loss(model, objective, uneven(torch.bfloat16))  # noqa: E731
    return analysis.robustness(model, *given, metric, [0.1], higher_is_better=False, steps=2)


def compressed(model, *given):
    with analysis.quantised(model, 4), analysis.pruned(model, 0.5):
        mean_loss(model, *given)


MOVES = {
    "mean loss": mean_loss,
    "quantised and pruned": compressed,
    "attack": lambda *given: analysis.attack(*given, ga_sam(0.5, steps=3), restarts=2),
    "sharpness": lambda *given: analysis.sharpness(*given, plain(0.5, steps=3), draws=3),
    "robustness": curve,
    "line": along_ones,
    "line to another model": towards_another,
    "plane": lambda *given: analysis.plane(*given, points=3),
}
SPECTRA = {
    "gram": lambda *given: top_eigenvalues(*given, 5, method="gram"),
    "lanczos": lambda *given: top_eigenvalues(*given, 5, method="lanczos"),
    "dense": lambda *given: top_eigenvalues(*given, 5, "hessian", method="dense"),
    "density": lambda *given: analysis.spectral_density(*given, probes=2, steps=5),
}


@pytest.mark.parametrize("name", MOVES | SPECTRA)
def test_model_is_as_before_also_when_interrupted(name):
    dtype = torch.bfloat16 if name in MOVES else torch.float64
    model = nn.Sequential(network(dtype), nn.Dropout(0.5), nn.BatchNorm1d(3).to(dtype))
    model[1].eval()
    model[0][0].weight.grad = kept = torch.ones_like(model[0][0].weight)
    home = [tensor.clone() for tensor in model.state_dict().values()]
    modes = [module.training for module in model.modules()]

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
