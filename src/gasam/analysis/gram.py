"""The N x N Gram matrix of the per-example gradients, which has the nonzero eigenvalues of the empirical Fisher."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gasam.analysis.examples import Factors, Gradients, example_gradients, factored, same_losses
from gasam.analysis.objective import Batches, Objective, each
from gasam.analysis.products import Products, Work, connected, dense

# Columns of gradients that are multiplied at once. float32 sums of so few products are as exact as their terms.
COLUMNS = 2**13
STRIPS = 4
NARROW = 256
SPARSE = 0.2


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
            _add_products(found, columns)
    return (found.tril() + found.tril(-1).T) / rows


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


def _add_products(found: Tensor, columns: Tensor) -> None:
    """Add the lower triangle of columns columns', strip by strip.

    An example contains few words of a vocabulary. So if most entries are zero, only a few columns are multiplied at a
    time, and only for the examples with nonzero entries. For a text model this saves a third of the time.
    """
    if columns.shape[1] > NARROW and columns.count_nonzero() < SPARSE * columns.numel():
        for narrow in torch.split(columns, NARROW, dim=1):
            present = narrow.any(1).nonzero().squeeze(1)
            some = narrow[present]
            found[present[:, None], present] += some @ some.T
        return
    height = -(-len(found) // STRIPS)
    for first in range(0, len(found), height):
        strip = slice(first, first + height)
        found[first:, strip] += columns[first:] @ columns[strip].T
