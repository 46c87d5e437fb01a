"""FreeLB's noise that starts at a random point: drawn beside the model's own random numbers, not among them."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import FreeLB, same_noise

TOKENS = torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 1]])
LABELS = torch.tensor([0, 1, 0])
SHARED = pytest.mark.parametrize("around", [{}, {"around": same_noise()}], ids=["fresh", "shared"])


class Reader(nn.Module):
    """Keeps the noise and the dropout mask of each pass."""

    def __init__(self, drops: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(9, 5), nn.Linear(5, 2)
        self.drops = drops
        self.noises, self.masks = [], []

    def loss(self):
        found = self.words(TOKENS)
        self.noises.append((found - self.words.weight[TOKENS]).detach())
        self.masks.append(torch.rand(5) > 0.5 if self.drops else torch.ones(5))
        return cross_entropy(self.out(torch.tanh(found).mean(1) * self.masks[-1]), LABELS)


@pytest.mark.parametrize("start", ["zero", "uniform"])
def test_shared_masks_are_those_of_plain_passes(start):
    model, plain = Reader(drops=True), Reader(drops=True)
    free = FreeLB(model.words, 0.1, steps=2, start=start, around=same_noise())
    torch.manual_seed(3)
    free(model.loss), free(model.loss)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    plain.loss(), plain.loss()
    assert torch.equal(after, torch.get_rng_state())
    assert len(model.masks) == 6
    assert all(torch.equal(mask, plain.masks[i // 3]) for i, mask in enumerate(model.masks))


@SHARED
@pytest.mark.parametrize("drops", [False, True])
def test_starts_differ_and_come_back_with_the_seed(drops, around):
    """Also where the model draws nothing, and the stream would stand still."""
    model = Reader(drops)
    free = FreeLB(model.words, 0.1, start="uniform", **around)
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        for _ in range(3):
            free(model.loss)
    starts = model.noises[::2]
    assert all(torch.equal(a, b) for a, b in zip(starts[:3], starts[3:6], strict=True))
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(starts[3:], 2))


def test_every_call_of_an_embedding_draws_its_own_start():
    words, seen = nn.Embedding(9, 5), []

    def loss():
        seen.append([words(TOKENS) - words.weight[TOKENS] for _ in range(2)])
        return sum(part.sum() for part in seen[-1])

    FreeLB(words, 0.1, start="uniform")(loss)
    assert not torch.equal(*seen[0])


def test_noise_is_not_made_of_the_models_random_numbers():
    model = Reader(drops=False)
    torch.manual_seed(3)
    FreeLB(model.words, 1.0, start="uniform")(model.loss)
    torch.manual_seed(3)
    drawn = torch.zeros(3, 4, 5).uniform_(-1, 1)
    assert (model.noises[0] - drawn).abs().mean() > 0.1
