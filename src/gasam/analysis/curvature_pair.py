"""Products with the Hessian and with the empirical Fisher, both from one graph, and the largest eigenvalue of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.example_norms import differentiable_losses, example_squares
from gasam.analysis.objective import Batches, Objective, each

Product = Callable[[Tensor], Tensor]


class CurvaturePair:
    """Of the mean loss over all examples. Vectors are flat, in double precision; inside `examined` only."""

    def __init__(self, model: nn.Module, objective: Objective, batches: Batches, weights: Sequence[Tensor]) -> None:
        self.model, self.objective, self.batches, self.weights = model, objective, batches, list(weights)
        self.sizes = [weight.numel() for weight in weights]

    def fisher_traces(self, chunk: int | None) -> tuple[Tensor, int]:
        """E|grad_i l|^2, the exact trace of each tensor's block of the empirical Fisher; the number of examples."""
        parts = [
            example_squares(differentiable_losses(self.model, self.objective, batch), self.weights, chunk)
            for batch in each(self.batches)
        ]
        squares = torch.cat(parts)
        return squares.mean(0), len(squares)

    def products(self, vector: Tensor) -> tuple[Tensor, Tensor]:
        """H v and F v. With c = 1, s = c^T J v for the losses' Jacobian J: ds/dw = H v, ds/dc = J v; F v = J^T J v."""
        hessian, fisher, rows = torch.zeros_like(vector), torch.zeros_like(vector), 0
        parts = zip(torch.split(vector, self.sizes), self.weights, strict=True)
        directions = [part.view(weight.shape).to(weight) for part, weight in parts]
        for batch in each(self.batches):
            losses = differentiable_losses(self.model, self.objective, batch)
            ones = torch.ones_like(losses, requires_grad=True)
            slopes = grad(losses, self.weights, ones, create_graph=True, materialize_grads=True)
            slope = torch.stack([(a * b).sum() for a, b in zip(slopes, directions, strict=True)]).sum()
            *bends, along = grad(slope, [*self.weights, ones], retain_graph=True, materialize_grads=True)
            hessian += _flat(bends)
            fisher += _flat(grad(losses, self.weights, along, materialize_grads=True))
            rows += len(losses)
        return hessian / rows, fisher / rows


def largest(product: Product, start: Tensor, iterations: int) -> tuple[float, float]:
    """The largest eigenvalue of a symmetric matrix, and its residual |A v - top v| / |top|, which bounds its error.

    The power method finds the one farthest from 0; if that is negative, it is shifted to 0 and the method run again.
    """
    value, residual = _power(product, start, iterations)
    if value < 0:
        lowest = value
        value, residual = _power(lambda v: product(v) - lowest * v, start, iterations)
        value += lowest
    return value, residual / abs(value) if value else residual


def _power(product: Product, start: Tensor, iterations: int) -> tuple[float, float]:
    """The last Rayleigh quotient and |A v - value v|."""
    v, value, residual = start / start.norm(), 0.0, 0.0
    for _ in range(iterations):
        image = product(v)
        value, length = float(v @ image), float(image.norm())
        residual = float((image - value * v).norm())
        if residual <= 1e-4 * length:
            break
        v = image / length
    return value, residual


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
