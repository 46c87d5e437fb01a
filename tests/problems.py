"""Small problems and walks that the tests share."""

import copy
import dataclasses
import math
import warnings
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gasam import Pass, Perturbation, SharpBackward, SharpnessAware, asam, ga_sam, layer_sam, multi_step_defense, sam
from gasam.analysis import climb
from gasam.reference import capped_groups_of, groups_of
from gasam.reference import walk as walk_of_the_paper
from tolerances import flat, same_bits

GRANULARITIES = ("element", "filter", "layer", "module", "model")
SHAPES = {"a.weight": (4, 3), "a.bias": (4,), "b.kernel": (2, 4, 2), "b.gain": (1,)}

TEN_WALKS = {
    "sam": sam(0.1),
    "ga_sam": ga_sam(0.1),
    "ga_sam, budget and cap": ga_sam(budget=0.1, cap=0.02),
    "asam": asam(0.1),
    "asam by filter": dataclasses.replace(asam(budget=0.05, cap=0.02), granularity="filter"),
    "layer_sam": layer_sam(0.05),
    "multi_step_defense": multi_step_defense(0.02, steps=2),
    "inverse gradient": Perturbation(epsilon=0.02, scale="inverse_gradient", granularity="layer", norm=1.5, steps=3),
    "ga_sam by module": dataclasses.replace(ga_sam(0.1, norm=3.0), granularity="module", risk="final"),
    "weight_rms": Perturbation(
        budget=0.1, cap=0.02, scale="weight_rms", granularity="model", norm=math.inf, steps=2, step_size=0.05
    ),
}
"""Every scale, granularity and risk, four norms, one to three steps, and every form of the size."""


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


def function_of(model: nn.Module, loss):
    """f(w) = (loss, gradient) on flat NumPy vectors, where loss(model) is evaluated on a copy."""
    twin = copy.deepcopy(model)
    weights, dtype = list(twin.parameters()), next(twin.parameters()).dtype

    def f(w):
        nn.utils.vector_to_parameters(torch.from_numpy(w).to(dtype), weights)
        value = loss(twin)
        return value.item(), flat(torch.autograd.grad(value, weights)).double().numpy()

    return f


def shapes_of(model: nn.Module):
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def paper_walk(model: nn.Module, loss, perturbation):
    """(offsets, losses, T, the folded gradient) by the reference."""
    start = flat(model.parameters()).double().numpy()
    return reference_walk(start, function_of(model, loss), shapes_of(model), perturbation)


def reference_walk(w, loss_and_gradient, shapes, perturbation, **options):
    return walk_of_the_paper(
        w, loss_and_gradient, groups_of(shapes, perturbation.granularity),
        scale=perturbation.scale, p=perturbation.norm, K=perturbation.steps, risk=perturbation.risk,
        epsilon=perturbation.epsilon, budget=perturbation.budget, eta=perturbation.step_size,
        cap=perturbation.cap, capped_groups=capped_groups_of(shapes, perturbation.granularity), **options,
    )  # fmt: skip


def through_backward(model, perturbation, factor: float = 1.0, loss=None, given=None, **options):
    """The trace and the gradient for the mean loss. Loss scalers and accumulation multiply what is differentiated."""
    backward = lambda loss: (factor * loss).backward()  # noqa: E731
    sharp = SharpBackward(given or model.named_parameters(), perturbation, backward=backward, **options)
    sharp(loss or loss_of(model))
    return sharp.last, gradient_of(model) / factor


def through_closure(model, perturbation, factor: float = 1.0, loss=None, given=None, **options):
    base = torch.optim.SGD(given or model.named_parameters(), lr=0.0)
    optimizer = SharpnessAware(base, perturbation, **{"gradient_scale": factor} | options)
    optimizer.step(closure_of(loss or loss_of(model), factor))
    return optimizer.last, gradient_of(model) / factor


ENTRIES = pytest.mark.parametrize("entry", [through_backward, through_closure])


def loss_of(model, **options):
    """A loss function of the model on one batch."""
    x, y = batch(next(model.parameters()).dtype, **options)
    return lambda: cross_entropy(model(x), y)


def closure_of(loss, factor: float = 1.0):
    """For an optimizer: it calls backward itself."""

    def closure():
        value = loss()
        (factor * value).backward()
        return value

    return closure


def gradient_of(model, loss=None):
    """What is in `.grad` as one vector, or the gradient of this loss."""
    parameters = list(model.parameters())
    return flat([p.grad for p in parameters] if loss is None else torch.autograd.grad(loss, parameters))


@contextmanager
def at_home(parameters):
    """After the block the weights have the bits that they had before, in the same memory."""
    parameters = list(parameters)
    before, places = [p.detach().clone() for p in parameters], [p.data_ptr() for p in parameters]
    yield before
    assert same_bits(parameters, before)
    assert [p.data_ptr() for p in parameters] == places


def messages_of(call) -> list[str]:
    """What is warned of in a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught]


def strengths_of(losses, progress) -> list[float]:
    """The strength at each step by `Schedule(progress)` in plain Python, from the mean loss of each step."""
    strengths, initial, smoothed = [], None, None
    for step in range(len(losses)):
        if step and step % 10 == 0:
            block = [loss for loss in losses[step - 10 : step] if math.isfinite(loss)]
            mean = sum(block) / len(block) if block else None
            if initial is None:
                initial = smoothed = mean
            elif mean is not None:
                smoothed = 0.6 * smoothed + 0.4 * mean
        fallen = 0 if initial is None else (initial - smoothed) / (progress * abs(initial))
        strengths.append(min(1.0, max(0.0, fallen)))
    return strengths


class Visited(NamedTuple):
    k: int
    loss: Tensor
    offset: list[Tensor]  # the weights in pass k minus those before the walk, in float64
    gradient: list[Tensor]


def climbed(variables, evaluate, perturbation, start=None) -> list[Visited]:
    """Run `climb` over named parameters, and report every pass. Only this function of the tests knows its form."""
    variables = list(variables)
    weights = [tensor for _, tensor in variables]
    home = [tensor.detach().double().clone() for tensor in weights]
    visits = []

    def watched(k, *_):
        offset = [tensor.detach().double() - own for tensor, own in zip(weights, home, strict=True)]
        seen = evaluate(k)
        gradient = [torch.zeros_like(w) if w.grad is None else w.grad.detach().clone() for w in weights]
        visits.append(Visited(k, seen.loss, offset, gradient))
        return seen

    climb(variables, watched, perturbation, start)
    return visits


def walked(problem, parameters, perturbation, start=None, factor=1.0) -> list[Visited]:
    """`climbed` on one of the problems above, whose loss is multiplied by a factor before it is differentiated."""

    def evaluate(k: int) -> Pass:
        for parameter in parameters.values():
            parameter.grad = None
        loss = problem.loss(parameters)
        (factor * loss).backward()
        return Pass(loss.detach(), factor)

    return climbed(parameters.items(), evaluate, perturbation, start)


def put_gradient(model: nn.Module, values) -> None:
    """Into `.grad`, from one flat vector."""
    weights = list(model.parameters())
    parts = torch.from_numpy(values).split([p.numel() for p in weights])
    for parameter, part in zip(weights, parts, strict=True):
        parameter.grad = part.reshape(parameter.shape).to(parameter.dtype)
