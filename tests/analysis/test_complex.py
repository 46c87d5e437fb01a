"""Complex weights are refused by one sentence, wherever a model comes in, and its real form is analysed."""

import pytest
import torch
from classified import OBJECTIVE
from torch import nn

from gasam.analysis import (
    applied,
    attack,
    filter_normalised,
    fisher_substitution,
    gradient,
    line,
    mean_loss,
    norm_substitution,
    plain,
    plane,
    pruned,
    quantised,
    random_corruption,
    robustness,
    sharpness,
    spectral_density,
    top_eigenvalues,
)
from problems import batch
from tolerances import EXACT, error

DATA = [batch(rows=12)]


class Turned(nn.Module):
    """Its inner weights are complex, or pairs of real numbers."""

    def __init__(self, pairs=False, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        inner = torch.randn(6, 4, dtype=torch.complex128)
        self.inner = nn.Parameter(torch.view_as_real(inner).clone() if pairs else inner)
        self.outer = nn.Linear(4, 3).double()

    def forward(self, x):
        inner = self.inner if self.inner.is_complex() else torch.view_as_complex(self.inner)
        return self.outer((x.to(inner) @ inner).abs())


def entered(context):
    with context:
        pass


ASKED = {
    "attack": lambda m: attack(m, OBJECTIVE, DATA, plain(0.1)),
    "sharpness": lambda m: sharpness(m, OBJECTIVE, DATA, plain(0.1)),
    "robustness": lambda m: robustness(m, OBJECTIVE, DATA, lambda m: 1.0, [0.1], higher_is_better=True),
    "gradient": lambda m: gradient(m, OBJECTIVE, DATA),
    "hessian": lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 2, "hessian"),
    "fisher": lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 2, "fisher"),
    "empirical fisher": lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 2),
    "density": lambda m: spectral_density(m, OBJECTIVE, DATA, probes=2, steps=4),
    "norm substitution": lambda m: norm_substitution(m, OBJECTIVE, DATA),
    "fisher substitution": lambda m: fisher_substitution(m, OBJECTIVE, DATA, probes=2),
    "line": lambda m: line(m, OBJECTIVE, DATA, [1.0], other=m.state_dict()),
    "line to frozen": lambda m: line(m.requires_grad_(False), OBJECTIVE, DATA, [1.0], other=m.state_dict()),
    "direction": lambda m: line(m, OBJECTIVE, DATA, [1.0], direction={"inner": torch.ones_like(m.inner)}),
    "plane": lambda m: plane(m, OBJECTIVE, DATA, points=3),
    "random": lambda m: random_corruption(m, 0.1),
    "applied": lambda m: entered(applied(m, {"inner": torch.ones_like(m.inner)})),
    "quantised": lambda m: entered(quantised(m, 4)),
    "pruned": lambda m: entered(pruned(m, 0.5)),
    "filters": lambda m: filter_normalised(dict(m.named_parameters()), dict(m.named_parameters())),
}


@pytest.mark.parametrize("ask", ASKED)
def test_complex_weights_are_refused(ask):
    sentence = (
        "parameter 'inner' has type torch.complex128, but only real floating-point weights can be moved: "
        "make torch.view_as_real of it the parameter"
    )
    with pytest.raises(TypeError) as caught:
        ASKED[ask](Turned())
    assert str(caught.value) == sentence


@pytest.mark.parametrize("ask", [ask for ask in ASKED if ask != "line to frozen"])
def test_pairs_of_real_numbers_are_analysed(ask):
    model = Turned(pairs=True)
    before = [weight.detach().clone() for weight in model.parameters()]
    ASKED[ask](model)
    assert all(map(torch.equal, model.parameters(), before))


def test_line_ends_at_the_other_model():
    model, other = Turned(pairs=True), Turned(pairs=True, seed=1)
    found = line(model, OBJECTIVE, DATA, [1.0], other=other.state_dict()).losses[0]
    assert error(found, mean_loss(Turned(seed=1), OBJECTIVE, DATA)) < EXACT


def test_frozen_complex_weights_stay_where_they_are():
    model = Turned()
    model.inner.requires_grad_(False)
    assert list(attack(model, OBJECTIVE, DATA, plain(0.1)).offset) == ["outer.weight", "outer.bias"]
    assert top_eigenvalues(model, OBJECTIVE, DATA, 2).values[0] > 0
