"""Sparse gradients: only touched rows move, and everything equals the dense result."""

import itertools
import math

import pytest
import torch
from torch import nn

from gasam import SCALES, Perturbation, SharpBackward, ga_sam
from problems import GRANULARITIES
from tolerances import EXACT, error, flat, same_bits

TOKENS = torch.tensor([[1, 2, 2], [7, 1, 0]])


class Tagger(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 4, sparse=sparse, dtype=torch.float64)
        self.out = nn.Linear(4, 2, dtype=torch.float64)

    def loss(self, tokens=TOKENS):
        return (torch.tanh(self.out(self.words(tokens))) ** 2).mean()


def walked(perturbation, make, loss, **options):
    """Losses, |a| and gradients of a walk with dense and with sparse gradients of the same model."""
    results = []
    for sparse in (False, True):
        model = make(sparse)
        before = [p.detach().clone() for p in model.parameters()]
        sharp = SharpBackward(model.named_parameters(), perturbation, **options)
        sharp(lambda m=model: loss(m))
        assert same_bits(model.parameters(), before)
        gradients = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in model.parameters()]
        assert next(model.parameters()).grad.is_sparse == sparse
        results.append((torch.stack(sharp.last.losses), torch.stack(sharp.last.norms), flat(gradients)))
    return results


def same_walk(results) -> bool:
    return all(error(found, dense) < EXACT for dense, found in zip(*results, strict=True))


PRODUCT = list(itertools.product(sorted(SCALES), GRANULARITIES))
SIZES = {"epsilon": 0.05}, {"budget": 0.05, "cap": 0.03}
TURNS = list(itertools.product((1.5, 2.0, math.inf), (1, 3), ("mean", "final"), SIZES))


@pytest.mark.parametrize(("scale", "granularity"), PRODUCT)
def test_sparse_equals_dense(scale, granularity):
    norm, steps, risk, size = TURNS[5 * PRODUCT.index((scale, granularity)) % len(TURNS)]
    perturbation = Perturbation(scale=scale, granularity=granularity, norm=norm, steps=steps, risk=risk, **size)
    assert same_walk(walked(perturbation, Tagger, Tagger.loss, detailed=True))


class Table(nn.Module):
    """A table of which single numbers are looked up, some of them several times."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sparse, self.table = sparse, nn.Parameter(torch.randn(400, 50, dtype=torch.float64))

    def loss(self):
        places = torch.tensor([[0, 1, 2], [3, 1, 0]])
        return torch.gather(self.table, 0, places, sparse_grad=self.sparse).pow(3).sum()


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gradients_that_are_sparse_within_their_rows_equal_dense(granularity):
    perturbation = Perturbation(epsilon=0.05, granularity=granularity, steps=2)
    assert same_walk(walked(perturbation, Table, Table.loss))


@pytest.mark.parametrize("tokens", [[4], [], [2, 2, 5]], ids=["one row", "no row", "a row twice"])
@pytest.mark.parametrize("scale", ["gradient_strength", "weight"])
def test_few_touched_rows_equal_dense(scale, tokens):
    def loss(model):
        found = model.words(torch.tensor(tokens, dtype=torch.int64))
        return found.pow(2).sum() + model.out(model.words.weight.detach()).square().mean()

    for granularity in GRANULARITIES:
        perturbation = Perturbation(epsilon=0.05, norm=3.0, scale=scale, granularity=granularity, steps=2)
        assert same_walk(walked(perturbation, Tagger, loss))


def test_only_touched_rows_are_written():
    model = Tagger(sparse=True)
    before = model.words.weight.detach().clone()
    untouched = [3, 4, 5, 6, 8]
    with torch.no_grad():
        model.words.weight[untouched] = math.nan  # would spread if it were read
        before[untouched] = math.nan
    seen = []

    def loss():
        seen.append(model.words.weight.detach().clone())
        return model.loss()

    SharpBackward(model.parameters(), ga_sam(0.05, steps=2))(loss)
    for weight in seen[1:]:
        assert same_bits([weight[untouched]], [before[untouched]])
        assert (weight[[0, 1, 2, 7]] != before[[0, 1, 2, 7]]).any(1).all()
    assert same_bits([model.words.weight], [before])


@pytest.mark.filterwarnings("ignore:the loss function uses the iterator")
def test_rows_that_appear_in_a_later_pass_stay_home_and_are_folded():
    model = Tagger(sparse=True)
    passes = iter([TOKENS, torch.tensor([[1, 5, 5], [7, 1, 1]])])
    before = model.words.weight.detach().clone()

    def loss():
        tokens = next(passes)
        assert torch.equal(model.words.weight[5], before[5])
        return model.loss(tokens)

    SharpBackward(model.parameters(), ga_sam(0.05))(loss)
    assert same_bits([model.words.weight], [before])
    assert model.words.weight.grad.to_dense()[5].abs().sum() > 0


@pytest.mark.parametrize("steps", [1, 2])
def test_sparse_adam_trains_like_the_dense_model_with_sparse_gradients(steps):
    """Ten steps; the dense model's gradients are made sparse by hand before SparseAdam sees them."""
    results = []
    for sparse in (False, True):
        model = Tagger(sparse)
        words = torch.optim.SparseAdam([model.words.weight], lr=0.01)
        rest = torch.optim.Adam(model.out.parameters(), lr=0.01)
        sharp = SharpBackward(model.parameters(), ga_sam(0.05, steps=steps))
        for step in range(10):
            tokens = torch.randint(9, (2, 3), generator=torch.Generator().manual_seed(step))
            sharp(lambda m=model, t=tokens: m.loss(t))
            if not sparse:
                touched = torch.unique(tokens)
                values = model.words.weight.grad[touched]
                model.words.weight.grad = torch.sparse_coo_tensor(touched[None], values, (9, 4), check_invariants=True)
            words.step(), rest.step()
            words.zero_grad(), rest.zero_grad()
        results.append(flat(model.parameters()))
    assert error(results[1], results[0]) < EXACT


@pytest.mark.parametrize("first", ["sparse", "dense"])
def test_sparse_and_dense_gradients_accumulate(first):
    model, expected = Tagger(sparse=True), Tagger(sparse=False)
    SharpBackward(expected.parameters(), ga_sam(0.05))(expected.loss)
    if first == "dense":
        model.words.weight.grad = torch.ones_like(model.words.weight)
        rest = torch.ones_like(model.words.weight)
    else:
        model.loss().backward()
        rest = model.words.weight.grad.to_dense().clone()
    SharpBackward(model.parameters(), ga_sam(0.05))(model.loss)
    found = model.words.weight.grad
    assert error(found.to_dense() if found.is_sparse else found, expected.words.weight.grad + rest) < EXACT
