"""The loss along a line, between two models, and over a plane in the space of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gasam.analysis.corruption import Offset, applied, held, matched
from gasam.analysis.objective import (
    Batches,
    Objective,
    Watch,
    check_number,
    check_real,
    check_shape,
    check_whole,
    examined,
    propagate,
    trained,
)
from gasam.groups import wide
from gasam.scales import inverse


@dataclass(frozen=True)
class Plane:
    """`losses[i][j]` is the mean loss at w + axis[i] first + axis[j] second. The model is in the middle."""

    axis: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]


def line(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    alphas: Iterable[float],
    *,
    direction: Offset | None = None,
    other: Mapping[str, Tensor] | None = None,
    watch: Watch | None = None,
) -> list[float]:
    """The mean loss at w + alpha direction, or at w + alpha (other - w), for each alpha; it may be infinite or NaN.

    Args:
        alphas: The positions on the line; 0 is the model.
        direction: An offset by parameter name. Weights that it does not name do not change. Give this or `other`.
        other: The state dict of another model, or all its weights by name. At alpha = 1 the weights are those of the
            other model bit for bit. Its floating-point buffers, such as the statistics of batch normalisation, are
            interpolated too. Outside of [0, 1] buffers keep the values of the nearer end, because an extrapolated
            variance may be negative.
        watch: Called with the number of alphas that are done, and with their total.
    """
    at, losses = list(alphas), list[float]()
    if (direction is None) == (other is None):
        raise TypeError("give either direction, an offset of the weights, or other, the weights of another model")
    if other is not None:
        _check_other(model, other)
    else:
        matched(model, direction or {}, "direction")
    with examined(model, batches):
        for done, alpha in enumerate(at, start=1):
            with _towards(model, other, alpha) if other is not None else _along(model, direction or {}, alpha):
                losses.append(propagate(model, objective, batches))
            if watch is not None:
                watch(done, len(at))
    return losses


def plane(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    *,
    radius: float = 1.0,
    points: int = 21,
    seed: int = 0,
    watch: Watch | None = None,
) -> Plane:
    """Mean losses at w + x first + y second on a grid, for the two `random_directions` of the seed.

    At x = 1 every filter has moved by its norm, so that models with weights of different sizes can be compared (Li et
    al. 2018).

    Args:
        radius: x and y go from -radius to radius.
        points: Values of x and of y; an odd number, so that the model is in the middle.
        seed: Seed of the random directions.
        watch: Called with the number of points that are done, and with their total.
    """
    check_number("radius", radius, above=0)
    check_whole("points", points, 3)
    if points % 2 == 0:
        raise ValueError(f"points must be odd, so that the model is in the middle, got {points}")
    first, second = random_directions(model, seed)
    axis = tuple(radius * (2 * i - (points - 1)) / (points - 1) for i in range(points))
    losses: list[float] = []
    with examined(model, batches):
        for x in axis:
            for y in axis:
                with applied(model, {name: x * first[name] + y * second[name] for name in first}):
                    losses.append(propagate(model, objective, batches))
                if watch is not None:
                    watch(len(losses), points**2)
    rows = [tuple(losses[start : start + points]) for start in range(0, points**2, points)]
    return Plane(axis, tuple(rows))


def random_directions(model: nn.Module, seed: int = 0) -> list[dict[str, Tensor]]:
    """Two random, filter-normalised directions of the trained weights, which are nearly orthogonal."""
    generator, weights = torch.Generator().manual_seed(seed), trained(model)

    def drawn(weight: Tensor) -> Tensor:
        return torch.randn(weight.shape, generator=generator, dtype=wide(weight.dtype)).to(weight.device)

    return [filter_normalised(model, {name: drawn(weight) for name, weight in weights.items()}) for _ in range(2)]


def filter_normalised(model: nn.Module, direction: Offset) -> dict[str, Tensor]:
    """d_f |w_f| / |d_f| for each filter f, which is a row of a tensor's first dimension.

    Vectors become zero, as is usual, because moving unit gains by their norm would dominate the result.

    Args:
        model: The model with the weights w.
        direction: The direction d by parameter name.
    """
    normalised = {}
    for name, weight in matched(model, direction, "direction").items():
        values = direction[name].to(wide(direction[name].dtype))
        if weight.ndim < 2:
            normalised[name] = torch.zeros_like(values)
            continue
        over = tuple(range(1, weight.ndim))
        size = torch.linalg.vector_norm(weight.detach().to(values), dim=over, keepdim=True)
        normalised[name] = values * size * inverse(torch.linalg.vector_norm(values, dim=over, keepdim=True))
    return normalised


def _along(model: nn.Module, direction: Offset, alpha: float) -> AbstractContextManager[None]:
    """Set w + alpha direction, computed in float32 or wider."""
    return applied(model, {name: alpha * values.to(wide(values.dtype)) for name, values in direction.items()})


def _towards(model: nn.Module, other: Mapping[str, Tensor], alpha: float) -> AbstractContextManager[None]:
    """Set w + alpha (other - w), which is exact at both ends. For buffers alpha is clipped to [0, 1]."""
    tensors, values = [], []
    for name, tensor in _floating(model, other).items():
        part = alpha if isinstance(tensor, nn.Parameter) else min(max(alpha, 0.0), 1.0)
        kind = wide(tensor.dtype)
        tensors.append(tensor)
        values.append(torch.lerp(tensor.detach().to(kind), other[name].detach().to(tensor.device, kind), part))
    return held(tensors, values)


def _floating(model: nn.Module, other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All floating-point weights, and the floating-point buffers that the other model has."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.is_floating_point()}
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point() and name in other}
    return weights | buffers


def _check_other(model: nn.Module, other: Mapping[str, Tensor]) -> None:
    if not isinstance(other, Mapping):
        raise TypeError(f"other must be a state dict or a dictionary of weights by name, got {type(other).__name__}")
    check_real(dict(model.named_parameters()))
    tensors = _floating(model, other)
    for name in tensors:
        if name not in other:
            raise ValueError(f"other lacks {name!r}: give all weights, such as the state_dict() of the other model")
        check_shape("other", name, other[name], tensors[name])
    for name in other:
        if name not in tensors and name not in model.state_dict():
            raise ValueError(f"other has {name!r}, which is not in the model: give weights of the same architecture")
