"""Weights whose gradient is only rounding noise: with a cap they stay where they are."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainer_models import classifier, own_mean, pairs, sentences, smoothed, stacked, translator

from gasam import SharpBackward, recommended
from tolerances import flat


class Convolutional(nn.Module):
    """As beginners write it: each convolution has a bias, which BatchNorm takes away again."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 10))

    def forward(self, x):
        return self.layers(x)


def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 1, 8, 8, generator=generator)
    return {"x": x, "y": x.flatten(1)[:, :10].argmax(1)}


CASES = {
    "convolutions": (Convolutional, images, lambda m, b: cross_entropy(m(b["x"].to(next(m.parameters()))), b["y"]),
        lambda name: name in ("layers.0.bias", "layers.3.bias")),
    "bert": (classifier, lambda: stacked(sentences(64)), own_mean, lambda name: name.endswith("key.bias")),
    "marian": (translator, lambda: stacked(pairs(32)), smoothed, lambda name: name.endswith("k_proj.bias")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_recommended_walk_leaves_rounding_noise_alone(case):
    make, data, loss_of, is_noise = CASES[case]
    torch.manual_seed(0)
    model, batch = make().float(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    noisy = [name for name, _ in model.named_parameters() if is_noise(name)]
    assert noisy
    seen = []

    def loss():
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return loss_of(model, batch)

    model.zero_grad()
    perturbation = recommended()[0]
    sharp = SharpBackward(model, perturbation, detailed=True)
    sharp(loss)
    clean, displaced = seen
    rms = flat(clean.values()).square().mean().sqrt()
    for name in noisy:
        limit = perturbation.cap * max(clean[name].norm(), 0.01 * clean[name].numel() ** 0.5 * rms)
        assert (displaced[name] - clean[name]).norm() <= 1.0001 * limit
    assert sharp.last.verdict() == "fine"
