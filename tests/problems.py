"""Small problems that the tests share."""

import copy

import numpy as np
import torch
from torch import nn

from gasam import reference
from tolerances import flat

SHAPES = {"a.weight": (4, 3), "a.bias": (4,), "b.kernel": (2, 4, 2), "b.gain": (1,)}


class Wavy:
    """L(w) = |A w - b|^2 / (2 m) + 0.3 mean(cos(C w)): smooth, not convex, its gradient written by hand in NumPy."""

    def __init__(self, shapes=SHAPES, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.shapes = shapes
        n = sum(int(np.prod(shape)) for shape in shapes.values())
        self.A, self.b, self.C = random.normal(size=(7, n)), random.normal(size=7), random.normal(size=(5, n))
        self.start = random.normal(size=n)

    def loss_and_gradient(self, w):
        rest, angles = self.A @ w - self.b, self.C @ w
        loss = rest @ rest / (2 * len(rest)) + 0.3 * np.cos(angles).mean()
        return loss, self.A.T @ rest / len(rest) - 0.3 * self.C.T @ np.sin(angles) / len(angles)

    def parameters(self, dtype=torch.float64) -> dict[str, nn.Parameter]:
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        parts = torch.tensor(self.start, dtype=dtype).split(sizes)
        return {k: nn.Parameter(v.reshape(s).clone()) for (k, s), v in zip(self.shapes.items(), parts, strict=True)}

    def loss(self, parameters: dict[str, nn.Parameter]) -> torch.Tensor:
        w = torch.cat([p.reshape(-1) for p in parameters.values()])
        A, b, C = (torch.tensor(x, dtype=w.dtype) for x in (self.A, self.b, self.C))
        return (A @ w - b).square().sum() / (2 * len(b)) + 0.3 * torch.cos(C @ w).mean()


def network(dtype=torch.float64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def batch(dtype=torch.float64, rows: int = 12, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(3, (rows,), generator=generator)


def paper_walk(model: nn.Module, loss, perturbation):
    """(offsets, losses, T, the folded gradient) by the reference, where loss(model) is evaluated on a copy."""
    twin = copy.deepcopy(model)
    weights, dtype = list(twin.parameters()), next(twin.parameters()).dtype
    shapes = {name: tuple(p.shape) for name, p in twin.named_parameters()}

    def loss_and_gradient(w):
        nn.utils.vector_to_parameters(torch.from_numpy(w).to(dtype), weights)
        value = loss(twin)
        return value.item(), flat(torch.autograd.grad(value, weights)).double().numpy()

    return reference_walk(flat(weights).double().numpy(), loss_and_gradient, shapes, perturbation)


def reference_walk(w, loss_and_gradient, shapes, perturbation):
    return reference.walk(
        w, loss_and_gradient, reference.groups_of(shapes, perturbation.granularity),
        scale=perturbation.scale, p=perturbation.norm, K=perturbation.steps, risk=perturbation.risk,
        epsilon=perturbation.epsilon, budget=perturbation.budget, eta=perturbation.step_size,
        cap=perturbation.cap, capped_groups=reference.capped_groups_of(shapes, perturbation.granularity),
    )  # fmt: skip


def put_gradient(model: nn.Module, values) -> None:
    """Into `.grad`, from one flat vector."""
    weights = list(model.parameters())
    parts = torch.from_numpy(values).split([p.numel() for p in weights])
    for parameter, part in zip(weights, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
