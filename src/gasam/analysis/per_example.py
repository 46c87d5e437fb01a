"""Gradients of single examples, and their Gram matrix with the eigenvalues of the empirical Fisher matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.gradients import squared_norm
from gasam.analysis.lanczos import random_signs
from gasam.analysis.objective import Batches, Objective, each
from gasam.analysis.products import Products, Work, connected, dense

Gradients = tuple[Tensor | None, ...]
Factors = tuple[Tensor, ...]  # b and, for weights, a, with one row per example
ROUNDINGS = 100
# Columns of gradients that are multiplied at once. float32 sums of so few products are as exact as their terms.
COLUMNS = 2**13


class Examples:
    """All examples with their losses, and per-example gradients."""

    def __init__(self, model: nn.Module, objective: Objective, batches: Batches, work: Work) -> None:
        self.model, self.objective, self.batches, self.work = model, objective, batches, work
        # Computed with graphs, as later, because kernels without graphs round differently.
        self.losses = [objective(model, batch).detach() for batch in each(batches)]

    def __len__(self) -> int:
        return sum(map(len, self.losses))

    def gradients(self, weights: list[nn.Parameter]) -> Iterator[Gradients]:
        for number, batch in enumerate(each(self.batches)):
            losses = connected(self.objective(self.model, batch))
            self._check_same(number, losses)
            for gradients in example_gradients(self.model, self.objective, batch, losses, weights):
                yield gradients
                self.work.add()

    def factors(self, weights: list[nn.Parameter], memory: float) -> dict[int, Factors]:
        """The factors of the gradients that have them in every batch; empty if they need more than `memory` bytes."""
        by_batch = list[dict[int, Factors]]()
        used = 0
        for number, batch in enumerate(each(self.batches)):
            losses, found = factored(self.model, self.objective, batch, weights)
            self._check_same(number, losses)
            used += sum(factor.nbytes for factors in found.values() for factor in factors)
            if not found or used > memory:
                return {}
            by_batch.append(found)
            self.work.add(len(losses))
        common = set.intersection(*map(set, by_batch))
        return {i: tuple(map(torch.cat, zip(*(found[i] for found in by_batch), strict=True))) for i in common}

    def _check_same(self, number: int, losses: Tensor) -> None:
        known = self.losses[number] if number < len(self.losses) else None
        if known is None or not same_losses(losses, known, known.abs().max()):
            raise ValueError(
                "batches must give the same examples in the same order each time, got other losses for batch "
                f"{number}: do not shuffle or sample the examples, or use method 'lanczos'"
            )


def gram(examples: Examples, products: Products, memory: float) -> Tensor:
    """G = J J' / N in double precision, where the rows of J (N x n) are the per-example gradients.

    Gradients with factors need no columns of J. The other columns are computed in blocks that fit into `memory` bytes,
    with one pass over the examples for each block.
    """
    rows, like = len(examples), products.like
    found = like.new_zeros(rows, rows, dtype=torch.float64)
    free = memory - 2 * found.nbytes
    factors = examples.factors(products.weights, free)
    for parts in factors.values():
        found += _row_products(parts)
    left = [weight for i, weight in enumerate(products.weights) if i not in factors]
    n = sum(weight.numel() for weight in left)
    width = max(1, min(n, int(free // (rows * like.itemsize))))
    block = like.new_empty(rows, width)
    for first in range(0, n, width):
        _fill(block, examples, left, first)
        for columns in torch.split(block[:, : n - first], COLUMNS, dim=1):
            found += columns @ columns.T
    return found / rows


def _row_products(factors: Factors) -> Tensor:
    """The products of all pairs of gradients: (b_i a_i') . (b_j a_j') = (b_i . b_j) (a_i . a_j)."""
    products = [factor.double() @ factor.double().T for factor in factors]
    return products[0] if len(products) == 1 else products[0] * products[1]


def _fill(block: Tensor, examples: Examples, weights: list[nn.Parameter], first: int) -> None:
    """Write the columns first, first + 1, .. of J. Gradients are computed only for the weights of these columns."""
    ranges, start = [], 0
    for weight in weights:
        low, high = max(first, start), min(first + block.shape[1], start + weight.numel())
        if low < high:
            ranges.append((weight, slice(low - start, high - start), slice(low - first, high - first)))
        start += weight.numel()
    chosen = [weight for weight, _, _ in ranges]
    for row, gradients in zip(block, examples.gradients(chosen), strict=True):
        for gradient, (_, part, place) in zip(gradients, ranges, strict=True):
            row[place] = 0 if gradient is None else dense(gradient).reshape(-1)[part]


def example_gradients(
    model: nn.Module, objective: Objective, batch: Any, losses: Tensor, weights: Sequence[Tensor]
) -> Iterator[Gradients]:
    """The gradient of each loss of the batch, in order, with None for a weight that a loss does not depend on.

    It is cheapest to run each example alone. This is done if single rows give the same losses as the whole batch and,
    for the largest loss, the same gradient. The gradient is compared as well because losses that depend on other rows
    may round to the same numbers. Otherwise each loss is propagated back through the whole batch.
    """

    size = losses.detach().abs()

    def within_batch(i: int) -> Gradients:
        return grad(losses[i], weights, retain_graph=True, allow_unused=True)

    def alone(dimension: int, i: int) -> Gradients | None:
        """The gradient of row i alone, or None if its loss differs from that in the batch."""
        try:
            found = objective(model, _row(batch, dimension, i, len(losses)))
        except Exception:  # the caller's code may fail on a single row; then the whole batch is used
            return None
        same = found.requires_grad and same_losses(found, losses[i : i + 1], size.max())
        return grad(found.squeeze(0), weights, allow_unused=True) if same else None

    dimension = None
    largest = int(size.argmax())
    for candidate in (0, 1) if len(losses) > 1 else ():
        found = alone(candidate, largest)
        if found is not None and _same_gradients(found, within_batch(largest)):
            dimension = candidate
            break
    for i in range(len(losses)):
        found = None if dimension is None else alone(dimension, i)
        yield within_batch(i) if found is None else found


def _row(batch: Any, dimension: int, i: int, rows: int) -> Any:
    """The batch with only row i of every tensor that has `rows` rows."""
    if isinstance(batch, Tensor):
        has_rows = batch.ndim > dimension and batch.shape[dimension] == rows
        return batch.narrow(dimension, i, 1) if has_rows else batch
    if isinstance(batch, dict):
        return {name: _row(part, dimension, i, rows) for name, part in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [_row(part, dimension, i, rows) for part in batch]
        return batch._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    return batch


def same_losses(found: Tensor, expected: Tensor, size: Tensor) -> bool:
    """Whether losses differ only by rounding, which is relative to `size`, the largest loss of the batch."""
    near = torch.finfo(expected.dtype).eps ** 0.5
    return found.shape == expected.shape and bool(((found - expected).detach().abs() <= near * size).all())


def _same_gradients(found: Gradients, expected: Gradients) -> bool:
    """Whether two gradients of one loss differ only by rounding."""
    none = torch.zeros((), dtype=torch.float64)
    pairs = [[none if g is None else dense(g) for g in pair] for pair in zip(found, expected, strict=True)]
    difference = sum(float(squared_norm(a - b)) for a, b in pairs)
    eps = max(torch.finfo(b.dtype).eps for _, b in pairs)
    return difference <= eps * sum(float(squared_norm(b)) for _, b in pairs)


def factored(
    model: nn.Module, objective: Objective, batch: Any, weights: list[nn.Parameter]
) -> tuple[Tensor, dict[int, Factors]]:
    """The losses of the batch, and the factors of the gradients that have them, by the number of the weight.

    For example i, the gradient of a linear layer is b_i a_i' for its weights and b_i for its bias, where a_i is the
    layer's input and b_i the derivative of the loss by its output. This does not hold if a layer is called twice,
    shares its weights or sees the rows in another order, or if losses depend on other rows. So it is checked: with
    random signs c_i, d (sum c_i l_i) / dW must be sum c_i b_i a_i'.
    """
    losses, calls = _called(model, objective, batch)
    outputs = [output for _, output in calls.values()]
    try:
        slopes = grad(losses.sum(), outputs, retain_graph=True, materialize_grads=True) if outputs else ()
    except RuntimeError:  # outputs outside of the losses' graph, for example inside a vmap
        return losses, {}
    candidates: dict[Tensor, Factors] = {}
    for (layer, (entered, _)), slope in zip(calls.items(), slopes, strict=True):
        candidates[layer.weight] = slope, entered
        if layer.bias is not None:
            candidates[layer.bias] = (slope,)
    numbers = [i for i, weight in enumerate(weights) if weight in candidates]
    chosen = [weights[i] for i in numbers]
    signs = random_signs(losses.detach(), len(losses), torch.Generator().manual_seed(0))
    sums = grad(losses, chosen, signs, retain_graph=True, materialize_grads=True) if chosen else ()
    found = {}
    for i, expected in zip(numbers, sums, strict=True):
        factors = candidates[weights[i]]
        signed = factors[0] * signs[:, None]
        total = signed.T @ factors[1] if len(factors) == 2 else signed.sum(0)
        if (total - expected).norm() <= ROUNDINGS * torch.finfo(expected.dtype).eps * expected.norm():
            found[i] = factors
    return losses, found


def _called(
    model: nn.Module, objective: Objective, batch: Any
) -> tuple[Tensor, dict[nn.Linear, tuple[Tensor, Tensor]]]:
    """The losses of the batch, and the input and output of each linear layer that has one row per loss."""
    calls: dict[nn.Linear, tuple[Tensor, Tensor]] = {}

    def note(layer: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if inputs and inputs[0].ndim == 2 and output.requires_grad and inputs[0].dtype == output.dtype:
            calls[layer] = inputs[0].detach(), output

    hooks = [module.register_forward_hook(note) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        losses = connected(objective(model, batch))
    finally:
        for hook in hooks:
            hook.remove()
    return losses, {layer: call for layer, call in calls.items() if len(call[0]) == len(losses)}
