"""Weights whose gradient is only rounding noise: with a cap they stay where they are."""

import pytest
import torch
from trainer_models import classifier, own_mean, pairs, sentences, smoothed, stacked, translator

from gasam import SharpBackward, recommended
from tolerances import flat

CASES = {
    "key.bias": (classifier, lambda: stacked(sentences(64)), own_mean),
    "k_proj.bias": (translator, lambda: stacked(pairs(32)), smoothed),
}


@pytest.mark.parametrize("noisy", CASES)
def test_recommended_walk_leaves_rounding_noise_alone(noisy):
    """Attention does not depend on the biases of its keys."""
    make, data, loss_of = CASES[noisy]
    model, batch = make().float(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    seen = []

    def loss():
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return loss_of(model, batch)

    model.zero_grad()
    perturbation = recommended(2)[0]
    sharp = SharpBackward(model, perturbation, detailed=True)
    sharp(loss)
    clean, displaced = seen
    rms = flat(clean.values()).square().mean().sqrt()
    names = [name for name in clean if name.endswith(noisy)]
    assert names
    for name in names:
        limit = perturbation.cap * max(clean[name].norm(), 0.01 * clean[name].numel() ** 0.5 * rms)
        assert (displaced[name] - clean[name]).norm() <= 1.0001 * limit
    assert sharp.last.verdict() == "fine"
