"""Train a small network on scikit-learn's digits with three methods, and print test accuracy and sharpness.

Each row is the mean of four seeds, and each seed has its own splits. GA-SAM uses `recommended(passes=2)`. The radius of
SAM was chosen on the validation images of four other seeds.
"""

import statistics
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from gasam import Pass, Perturbation, SharpBackward, recommended, sam
from gasam.analysis import climb

TRAIN, VALID, TEST = slice(0, 400), slice(400, 700), slice(700, None)
METHODS = {
    "baseline": (sam(0.0), 60),
    "baseline, as many gradients": (sam(0.0), 120),
    "SAM": (sam(0.2), 60),
    "GA-SAM": (recommended(passes=2), 60),
}


def digits(part: slice, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one part of the images. Each seed has its own order, and so its own splits."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[part]
    return torch.tensor(images, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]


def train(perturbation: Any, epochs: int, seed: int) -> tuple[nn.Module, int]:
    """Return a trained model and the number of gradient evaluations."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    sharp = SharpBackward(model, perturbation)
    images, labels = digits(TRAIN, seed)
    gradients = 0
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            optimizer.zero_grad()
            sharp(lambda batch=batch: cross_entropy(model(images[batch]), labels[batch]))
            optimizer.step()
            gradients += len(sharp.last.losses)
        scheduler.step()
    return model, gradients


def accuracy(model: nn.Module, part: slice, seed: int) -> float:
    images, labels = digits(part, seed)
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


def sharpness(model: nn.Module, seed: int) -> float:
    """Return the largest rise of the training loss that a walk of ten steps finds within |a|_2 <= 0.5."""
    images, labels = digits(TRAIN, seed)

    def evaluate(k: int, offset: object) -> Pass:
        model.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        return Pass(loss.detach())

    attack = Perturbation(epsilon=0.5, norm=2.0, scale="one", granularity="model", steps=10)
    losses = climb(list(model.parameters()), evaluate, attack).losses
    return max(losses).item() - losses[0].item()


def main(seeds: int = 4) -> None:
    print(f"{'method':30}{'test accuracy':>15}{'sharpness':>12}{'gradients':>11}{'seconds':>9}")
    for name, (perturbation, epochs) in METHODS.items():
        start = time.perf_counter()
        trained = [train(perturbation, epochs, seed) for seed in range(seeds)]
        models, gradients = [model for model, _ in trained], statistics.mean(count for _, count in trained)
        seconds = time.perf_counter() - start
        accuracies = [accuracy(model, TEST, seed) for seed, model in enumerate(models)]
        rises = [sharpness(model, seed) for seed, model in enumerate(models)]
        spread = f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f}"
        print(f"{name:30}{spread:>15}{statistics.mean(rises):>12.3f}{gradients:>11.0f}{seconds / seeds:>9.1f}")


if __name__ == "__main__":
    main()
