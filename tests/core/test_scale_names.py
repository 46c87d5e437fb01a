"""Scales that see the names of their groups, and groups at the edge: sparse, empty, wide."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import SCALES, Perturbation, SharpBackward, asam
from problems import batch, network
from tolerances import EXACT, error, flat


class TestAsamsAuthors:
    """They have T = |w| + eta where the name contains "weight", and T = 1 elsewhere."""

    def test_offset_is_theirs(self):
        model = nn.ModuleDict({"norm": nn.LayerNorm(4), "first": nn.Linear(4, 4)}).double()
        model.register_parameter("kernel", nn.Parameter(torch.randn(4, 4, dtype=torch.float64)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        x, seen = torch.randn(3, 4, dtype=torch.float64), []

        def loss():
            seen.append([p.detach().clone() for p in model.parameters()])
            return (model["first"](model["norm"](x)) @ model.kernel).square().mean()

        SharpBackward(model.named_parameters(), asam(0.3, eta=0.01, only_named="weight"))(loss)
        model.zero_grad()
        loss().backward()
        scales = [p.abs() + 0.01 if "weight" in n else torch.ones_like(p) for n, p in model.named_parameters()]
        scaled = [T * p.grad for T, p in zip(scales, model.parameters(), strict=True)]
        length = flat(scaled).norm()
        expected = flat([0.3 * T * h / length for T, h in zip(scales, scaled, strict=True)])
        assert error(flat(seen[1]) - flat(seen[0]), expected) < EXACT

    def test_names_are_needed(self):
        with pytest.raises(ValueError, match="only_named needs the parameters' names"):
            SharpBackward(network().parameters(), asam(0.1, only_named="weight"))

    @pytest.mark.parametrize("granularity", ["module", "model"])
    def test_groups_of_several_tensors_are_refused(self, granularity):
        with pytest.raises(ValueError, match="only_named needs groups of one tensor"):
            dataclasses.replace(asam(0.1, only_named="weight"), granularity=granularity)

    @pytest.mark.parametrize("granularity", ["filter", "layer"])
    def test_a_scale_sees_names_of_groups(self, granularity):
        seen = []

        def scale(group):
            seen.extend(group.names)
            return torch.ones_like(group.size)

        model, (x, y) = network(), batch()
        perturbation = Perturbation(epsilon=0.1, scale=scale, granularity=granularity)
        SharpBackward(model.named_parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        rows = 5 if granularity == "filter" else 1
        assert seen[: rows + 1] == ["0.weight"] * rows + ["0.bias"]


class TestScalesAtTheEdge:
    @pytest.mark.parametrize("scale", ["weight", "weight_rms", "weight_over_gradient"])
    def test_sparse_vectors_are_whole_filters(self, scale):
        norms = []
        for sparse in (True, False):
            w, i = nn.Parameter(torch.arange(1.0, 8.0)), torch.tensor([0, 1])
            sharp = SharpBackward([w], Perturbation(epsilon=0.1, norm=2.0, scale=scale, granularity="filter"))
            sharp(lambda w=w, i=i, s=sparse: torch.gather(w, 0, i, sparse_grad=s).sum())
            norms.append(sharp.last.norms[1])
        assert error(*norms) < 1e-6

    @pytest.mark.parametrize("scale", sorted(SCALES))
    def test_empty_tensors_do_not_stop_the_walk(self, scale):
        a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.empty(0))
        sharp = SharpBackward([a, b], Perturbation(epsilon=0.1, scale=scale))
        sharp(lambda: (a**2).sum() + b.sum())
        assert sharp.last.climbed

    def test_names_of_no_groups(self):
        b = nn.Parameter(torch.randn(4))
        groups = [{"params": [("a.weight", nn.Parameter(torch.randn(4)))]}, {"params": [("b", b)], "perturb": False}]
        scale = asam(0.1, only_named="weight").scale
        sharp = SharpBackward(groups, Perturbation(epsilon=0.1, scale=scale))
        sharp(lambda: (b**2).sum())
        assert not sharp.last.climbed

    @pytest.mark.parametrize("shape", [(2, 65_536), (2, 40_000)])
    def test_sums_of_wide_rows_are_accurate(self, shape):
        w = nn.Parameter(torch.zeros(shape))
        perturbation = Perturbation(epsilon=1.0, scale="inverse_gradient", granularity="filter", norm=2.0)
        sharp = SharpBackward([w], perturbation)
        sharp(lambda: 0.1 * w.sum())
        assert sharp.last.norms[1].item() == pytest.approx(1 / (0.1 * shape[1] ** 0.5), rel=2e-5)
