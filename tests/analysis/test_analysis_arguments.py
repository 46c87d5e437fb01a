"""Wrong arguments of every analysis: one sentence that names the argument, and an unchanged model."""

import math

import pytest
import torch
from curvature import OBJECTIVE, bits, uneven
from torch import nn

from gasam import analysis
from gasam.analysis import CrossEntropy, GradientNorms, Objective, attack, line, plain, sharpness, top_eigenvalues
from problems import network
from tolerances import same_bits

DATA = uneven()
NOT_FINITE = Objective(lambda m, b: m(b[0]) * math.nan, CrossEntropy())
DETACHED = Objective(lambda m, b: m(b[0]).detach(), CrossEntropy())


def enter(context):
    with context:
        pass


def losses(function):
    return Objective(OBJECTIVE.forward, function)


class Shuffled(list):
    def __iter__(self):
        self.append(self.pop(0))
        return super().__iter__()


CASES = [
    (lambda m: analysis.mean_loss(m, OBJECTIVE, []), "batches is empty"),
    (lambda m: analysis.mean_loss(m, losses(lambda o, b: o.sum()), DATA), r"one loss per example.*shape \(\)"),
    (lambda m: attack(nn.ReLU(), OBJECTIVE, DATA, plain(0.1)), "no parameter that requires a gradient"),
    (lambda m: attack(m, OBJECTIVE, iter(DATA), plain(0.1)), r"list\(batches\)"),
    (lambda m: attack(m, OBJECTIVE, DATA, plain(0.0)), "radius must be a finite number > 0, got 0.0"),
    (lambda m: attack(m, NOT_FINITE, DATA, plain(0.1)), r"not finite at the model's weights \(loss nan\)"),
    (lambda m: sharpness(m, OBJECTIVE, DATA, plain(0.1), draws=-1), "draws must be a whole number >= 0"),
    (lambda m: enter(analysis.pruned(nn.LayerNorm(3), 0.1)), "no weights of two or more dimensions"),
    (lambda m: enter(analysis.applied(m, {"no": torch.ones(2)})), r"offset has 'no', .*named_parameters\(\)"),
    (lambda m: enter(analysis.applied(m, {"0.bias": torch.ones(2)})), r"offset\['0.bias'\] must be .*\(5,\), got"),
    (lambda m: line(m, OBJECTIVE, DATA, [0.0]), "give either direction, .* or other"),
    (lambda m: line(m, OBJECTIVE, DATA, [0.0], other={}), r"other lacks '0.weight': .* state_dict\(\)"),
    (lambda m: line(m, OBJECTIVE, DATA, [0.0], other=m.state_dict() | {"nose": 1}), "'nose', which is not in the"),
    (lambda m: line(m, OBJECTIVE, DATA, [0.0], other=m), "other must be a state dict .* got Sequential"),
    (lambda m: analysis.plane(m, OBJECTIVE, DATA, points=10), "points must be odd, .* got 10"),
    (lambda m: analysis.filter_normalised(m, {"a": torch.ones(2)}), "direction has 'a', which is no parameter"),
    (lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 54), "k must be at most .* 53, got 54"),
    (lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 2, "kfac"), "'empirical_fisher', 'fisher', 'hessian', got 'kf"),
    (lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 2, "hessian", method="gram"), "use method None"),
    (lambda m: top_eigenvalues(m, losses(lambda o, b: o.sum(1)), DATA, 2, "fisher"), "give one of these, or use"),
    (lambda m: top_eigenvalues(m, DETACHED, DATA, 2), "must not detach"),
    (lambda m: top_eigenvalues(m, NOT_FINITE, DATA, 2), "losses must be finite"),
    (lambda m: top_eigenvalues(m, OBJECTIVE, Shuffled(DATA), 2, method="gram"), "same order each time"),
    (lambda m: GradientNorms(Turned()), "'inner' must be a whole tensor of real numbers"),
    (lambda m: GradientNorms(m).load_state_dict(GradientNorms(nn.Linear(1, 1)).state_dict()), "its 'names'"),
]


@pytest.mark.parametrize(("action", "sentence"), CASES)
def test_wrong_arguments_get_one_sentence_and_leave_the_model(action, sentence):
    model, home = network(), bits(network())
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        action(model)
    assert "\n" not in str(caught.value)
    assert same_bits(model.parameters(), home)
    assert all(weight.grad is None for weight in model.parameters())


class Turned(nn.Module):
    """Its inner weights are complex, or pairs of real numbers."""

    def __init__(self, pairs=False):
        super().__init__()
        torch.manual_seed(0)
        inner = torch.randn(6, 4, dtype=torch.complex128)
        self.inner = nn.Parameter(torch.view_as_real(inner).clone() if pairs else inner)
        self.outer = nn.Linear(4, 3).double()

    def forward(self, x):
        inner = self.inner if self.inner.is_complex() else torch.view_as_complex(self.inner)
        return self.outer((x.to(inner) @ inner).abs())


ASKED = [
    lambda m: attack(m, OBJECTIVE, DATA, plain(0.1)),
    lambda m: top_eigenvalues(m, OBJECTIVE, DATA, 2, "hessian"),
    lambda m: line(m, OBJECTIVE, DATA, [1.0], other=m.state_dict()),
    lambda m: analysis.random_corruption(m, 0.1),
    lambda m: enter(analysis.applied(m, {"inner": torch.ones_like(m.inner)})),
    lambda m: enter(analysis.quantised(m, 4)),
]


def test_complex_weights_are_refused_and_their_real_form_is_analysed():
    for ask in ASKED:
        with pytest.raises(TypeError, match=r"parameter 'inner' has type torch.complex128.*torch.view_as_real"):
            ask(Turned())
        ask(Turned(pairs=True))


def test_frozen_complex_weights_stay_where_they_are():
    model = Turned()
    model.inner.requires_grad_(False)
    assert list(attack(model, OBJECTIVE, DATA, plain(0.1)).offset) == ["outer.weight", "outer.bias"]
    assert top_eigenvalues(model, OBJECTIVE, DATA, 2).values[0] > 0
