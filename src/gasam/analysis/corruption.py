"""Corruption of the weights independent of the loss: by an offset, at random, by quantisation and by pruning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gasam.analysis.objective import check_number, check_real, check_shape, check_whole, trained
from gasam.distributed import is_sharded
from gasam.groups import wide
from gasam.passes import uninterrupted
from gasam.perturbation import Perturbation
from gasam.torch_private import copy_all, local, standard_gamma
from gasam.walk import Start
from gasam.weights import forget_copies

Offset = Mapping[str, Tensor]


@contextmanager
def displaced(weights: Sequence[Tensor], offset: Sequence[Tensor]) -> Iterator[None]:
    """Set the weights to weights + offset inside the block, and restore them bit for bit, also after an exception."""
    saved = [weight.detach().clone() for weight in weights]
    sharded = any(map(is_sharded, weights))
    with uninterrupted() as held:
        try:
            with torch.no_grad():
                for weight, step in zip(weights, offset, strict=True):
                    weight.add_(step)
            forget_copies(sharded)
            with held.let():
                yield
        finally:
            with torch.no_grad():
                copy_all([local(weight) for weight in weights], [local(each) for each in saved])
            forget_copies(sharded)


@contextmanager
def applied(model: nn.Module, offset: Offset) -> Iterator[None]:
    """Set the weights to w + offset inside the block, and restore them bit for bit, also after an exception.

    Weights that the offset does not name do not change.
    """
    weights = matched(model, offset, "offset")
    with displaced(list(weights.values()), [offset[name].to(weight.device) for name, weight in weights.items()]):
        yield


def uniform_start(norm: float, generator: torch.Generator | None = None) -> Start:
    """Return a function that draws a random start for `climb`.

    For norm inf the point is uniform in the box. For other norms it lies on the surface of the ball, because in many
    dimensions nearly all of a ball's volume is near its surface.
    """

    def draw(like: Tensor) -> Tensor:
        if norm == math.inf:
            return torch.empty_like(like).uniform_(-1, 1, generator=generator)
        if norm == 2.0:
            return torch.empty_like(like).normal_(generator=generator)
        sizes = standard_gamma(torch.full_like(like, 1 / norm), generator).pow_(1 / norm)
        return sizes.mul_(torch.empty_like(like).uniform_(-1, 1, generator=generator).sign_())

    return draw


def random_corruption(model: nn.Module, radius: float, norm: float = 2.0, *, seed: int = 0) -> dict[str, Tensor]:
    """A random offset of all trained weights with |a|_norm = radius, the largest norm that an attack may have.

    It is uniform on the sphere for norm 2, a random corner of the box for norm inf, and follows the cone measure of the
    p-sphere for any other p. The direction depends neither on the radius nor on the device. For weights in low
    precision the offset is float32, so that its norm is exact; `applied` rounds once.

    Args:
        model: The model.
        radius: Norm of the offset, in units of the weights.
        norm: p of the norm, > 1 or math.inf.
        seed: Seed of the direction.
    """
    check_number("radius", radius, above=0)
    Perturbation(epsilon=radius, norm=norm)  # raises if the norm is invalid
    weights = trained(model)
    draw = uniform_start(norm, torch.Generator().manual_seed(seed))
    drawn = {name: draw(torch.empty(weight.shape, dtype=wide(weight.dtype))) for name, weight in weights.items()}
    if norm == math.inf:
        drawn = {name: torch.where(values < 0, -1.0, 1.0).to(values) for name, values in drawn.items()}
    size = length(drawn.values(), norm)
    return {name: (values * (radius / size)).to(weights[name].device) for name, values in drawn.items()}


@contextmanager
def quantised(model: nn.Module, bits: int = 8, *, by_row: bool = False) -> Iterator[None]:
    """Quantise the weights inside the block, and restore them bit for bit.

    Quantisation is symmetric and rounds to the nearest level: w -> s round(w / s) with s = max|w| / (2^(bits-1) - 1),
    the maximum over the tensor, or over each row of its first dimension with `by_row`. This gives 2^bits - 1 levels and
    an error of at most s / 2. The levels are rounded to the weights' type. Tensors with fewer than two dimensions, such
    as biases, do not change. `bits` is at least 2.
    """
    check_whole("bits", bits, 2)
    weights = _corruptible(model)
    with held(weights, [_rounded(weight.detach(), bits, by_row) for weight in weights]):
        yield


@contextmanager
def pruned(model: nn.Module, fraction: float) -> Iterator[None]:
    """Set the smallest weights of each tensor to zero inside the block, and restore them bit for bit.

    Of n weights, the round(fraction n) with the smallest |w| become zero; among equal ones the first. Tensors with
    fewer than two dimensions do not change. `fraction` is >= 0 and < 1.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction must be a number >= 0 and < 1, got {fraction!r}")
    weights = _corruptible(model)
    with held(weights, [_without_smallest(weight.detach(), fraction) for weight in weights]):
        yield


@contextmanager
def held(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Set the tensors to these values inside the block, and restore them bit for bit."""
    with displaced(tensors, [tensor.new_zeros(()) for tensor in tensors]):  # saves and restores the tensors
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        torch.clear_autocast_cache()
        yield


def length(tensors: Iterable[Tensor], norm: float) -> float:
    """The p-norm over all entries of all tensors, in double precision."""
    sizes = [torch.linalg.vector_norm(t.detach(), norm, dtype=torch.float64).cpu() for t in tensors if t.numel()]
    return float(torch.linalg.vector_norm(torch.stack(sizes), norm)) if sizes else 0.0


def matched(model: nn.Module, offset: Offset, argument: str) -> dict[str, nn.Parameter]:
    """The parameters that an offset names. Raises if a name or a shape does not match."""
    if not isinstance(offset, Mapping):
        raise TypeError(f"{argument} must be a dictionary of tensors by parameter name, got {type(offset).__name__}")
    parameters = dict(model.named_parameters())
    for name, values in offset.items():
        if name not in parameters:
            raise ValueError(
                f"{argument} has {name!r}, which is no parameter of the model: use names from model.named_parameters()"
            )
        check_shape(argument, name, values, parameters[name])
    weights = {name: parameters[name] for name in offset}
    check_real(weights)
    return weights


def _corruptible(model: nn.Module) -> list[nn.Parameter]:
    check_real(dict(model.named_parameters()))
    weights = [w for w in model.parameters() if w.is_floating_point() and w.numel() and w.ndim >= 2]
    if not weights:
        raise ValueError("model has no weights of two or more dimensions: give a model with a weight matrix")
    return weights


def _rounded(weight: Tensor, bits: int, by_row: bool) -> Tensor:
    exact = weight.to(wide(weight.dtype))
    over = tuple(range(int(by_row), weight.ndim))
    step = exact.abs().amax(over, keepdim=True) / float(2 ** (bits - 1) - 1)
    return torch.where(step > 0, exact / step, 0.0).round() * step


def _without_smallest(weight: Tensor, fraction: float) -> Tensor:
    smallest = weight.abs().reshape(-1).argsort(stable=True)[: round(fraction * weight.numel())]
    kept = weight.clone().reshape(-1)
    kept[smallest] = 0.0
    return kept.view(weight.shape)
