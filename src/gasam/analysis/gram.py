"""The Gram matrix of the examples' gradients: N x N, with the values of the empirical Fisher matrix but for zeros."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gasam.analysis.examples import example_gradients, same
from gasam.analysis.factors import Factors, factored
from gasam.analysis.lanczos import Found
from gasam.analysis.objective import Batches, Named, Objective, each
from gasam.analysis.products import Watch, connected, dense, vector_type

# Columns of gradients that are multiplied at once: float32 sums of so few products are as exact as their terms.
COLUMNS = 2**13
STRIPS = 4
NARROW = 256
SPARSE = 0.2


class Examples:
    """All examples with their losses, and the gradients of single ones."""

    def __init__(self, model: nn.Module, objective: Objective, batches: Batches, watch: Watch | None = None) -> None:
        self.model, self.objective, self.batches, self.watch = model, objective, batches, watch
        # With their graphs, as they come again: kernels without are rounded differently.
        self.losses = [objective(model, batch).detach() for batch in each(batches)]
        self.done = 0

    def __len__(self) -> int:
        return sum(map(len, self.losses))

    def gradients(self, weights: list[nn.Parameter]) -> Iterator[tuple[Tensor | None, ...]]:
        for number, batch in enumerate(each(self.batches)):
            losses = self._again(number, connected(self.objective(self.model, batch)))
            for gradients in example_gradients(self.model, self.objective, batch, losses, weights):
                yield gradients
                self._count(1)

    def factors(self, weights: list[nn.Parameter], memory: float) -> dict[int, Factors]:
        """Of all examples, for the weights whose gradients have them in every batch; none if that takes more memory."""
        found: dict[int, list[Factors]] | None = None
        used = 0
        for number, batch in enumerate(each(self.batches)):
            losses, here = factored(self.model, self.objective, batch, weights)
            self._again(number, losses)
            used += sum(part.nbytes for factors in here.values() for part in factors)
            found = {i: [*(found or {}).get(i, []), here[i]] for i in here if found is None or i in found}
            if not found or used > memory:
                return {}
            self._count(len(losses))
        return {i: tuple(map(torch.cat, zip(*parts, strict=True))) for i, parts in (found or {}).items()}

    def _again(self, number: int, losses: Tensor) -> Tensor:
        known = self.losses[number] if number < len(self.losses) else None
        if known is None or not same(losses.detach(), known, known.abs().max()):
            raise ValueError(
                "batches must give the same examples in the same order each time, got other losses for batch "
                f"{number}: do not shuffle or draw at random, or take method 'lanczos'"
            )
        return losses

    def _count(self, examples: int) -> None:
        for _ in range(examples):
            self.done += 1
            if self.watch is not None:
                self.watch(self.done)


def gram(examples: Examples, weights: Named, memory: float) -> Tensor:
    """G = J J' / N in double precision. J, N x n, is made in blocks of columns that fit into `memory` bytes, but for
    weights whose gradients have factors; there are as many passes over the examples as blocks."""
    tensors, rows = list(weights.values()), len(examples)
    kind, device = vector_type(tensors), tensors[0].device
    found = torch.zeros(rows, rows, dtype=torch.float64, device=device)
    factors = examples.factors(tensors, memory - 2 * found.nbytes)
    for parts in factors.values():
        found += row_products(parts)
    left = [weight for i, weight in enumerate(tensors) if i not in factors]
    n = sum(weight.numel() for weight in left)
    width = min(n, max(1, int((memory - 2 * found.nbytes) // (rows * kind.itemsize))))
    block = torch.empty(rows, width, dtype=kind, device=device)
    for first in range(0, n, width or 1):
        fill(block, examples, left, first)
        for columns in torch.split(block[:, : n - first], COLUMNS, dim=1):
            add_products(found, columns)
    return (found.tril() + found.tril(-1).T) / rows


def row_products(factors: Factors) -> Tensor:
    """(b_i a_i') . (b_j a_j') = (b_i . b_j) (a_i . a_j)"""
    made = [factor.double() @ factor.double().T for factor in factors]
    return made[0] if len(made) == 1 else made[0].mul_(made[1])


def fill(block: Tensor, examples: Examples, weights: list[nn.Parameter], first: int) -> None:
    """Columns first, first + 1, .. of J; only the weights that these belong to are asked for their gradient."""
    ranges, start = [], 0
    for weight in weights:
        low, high = max(first, start), min(first + block.shape[1], start + weight.numel())
        if low < high:
            ranges.append((weight, slice(low - start, high - start), slice(low - first, high - first)))
        start += weight.numel()
    chosen = [weight for weight, _, _ in ranges]
    for line, gradients in zip(block, examples.gradients(chosen), strict=True):
        for gradient, (_, part, place) in zip(gradients, ranges, strict=True):
            line[place] = 0 if gradient is None else dense(gradient).reshape(-1)[part]


def add_products(found: Tensor, columns: Tensor) -> None:
    """The lower triangle of columns columns', by strips. An example has few of a vocabulary's words: where most entries
    are zero, few columns at a time are multiplied, and only for the examples that have them."""
    if columns.shape[1] > NARROW and columns.count_nonzero() < SPARSE * columns.numel():
        for narrow in torch.split(columns, NARROW, dim=1):
            present = narrow.any(1).nonzero().squeeze(1)
            some = narrow[present]
            found[present[:, None], present] += some @ some.T
        return
    for strip in torch.arange(len(found)).tensor_split(STRIPS):
        if len(strip):
            first, last = int(strip[0]), int(strip[-1]) + 1
            found[first:, first:last] += columns[first:] @ columns[first:last].T


def largest_of(found: Tensor, k: int, tolerance: float) -> Found:
    """The k largest values of a symmetric matrix, with |G u - value u|; beyond its size they are zeros, exactly."""
    values, vectors = torch.linalg.eigh(found)
    values, vectors = values.flip(0)[:k], vectors.flip(1)[:, :k]
    residuals = (found @ vectors - vectors * values).norm(dim=0)
    largest = values.abs().max()
    missing = values.new_zeros(max(0, k - len(values)))
    values, residuals = (torch.cat([x, missing]).cpu() for x in (values, residuals))
    return Found(values, residuals, residuals <= max(tolerance, 1e-12) * largest.cpu())
