"""Products of the Hessian, the Fisher matrix or the empirical Fisher matrix with a vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial, reduce
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.objective import Batches, CrossEntropy, Named, Objective, SquaredError, check_choice, each

Matrix = Literal["empirical_fisher", "fisher", "hessian"]
Parts = Sequence[Tensor]
Action = Callable[[Parts], Parts]
GIBIBYTE = 2**30


class Work:
    """Counts units of work, and calls `watch` with the count after each unit."""

    def __init__(self, watch: Callable[[int], object] | None = None) -> None:
        self.done, self.watch = 0, watch

    def add(self, units: int = 1) -> None:
        for _ in range(units):
            self.done += 1
            if self.watch is not None:
                self.watch(self.done)


class Products:
    """v -> A v for a flat vector over all weights, where A is the mean over all examples and is never formed.

    Use it inside `examined` and `twice_differentiable`, with gradients enabled. The graphs of all batches are kept
    between products if they need at most `memory` bytes. Otherwise each product computes them again.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        weights: Named,
        matrix: Matrix,
        memory: float,
        work: Work,
    ) -> None:
        self.batches, self.memory, self.work = batches, memory, work
        self.weights = list(weights.values())
        self.n = sum(weight.numel() for weight in self.weights)
        kind = reduce(torch.promote_types, [weight.dtype for weight in self.weights], torch.float32)
        self.like = torch.empty(0, dtype=kind, device=self.weights[0].device)  # has the type and device of the vectors
        self._build = partial(action_on, matrix, model, objective, self.weights)

    def __call__(self, vector: Tensor) -> Tensor:
        total, parts = torch.zeros_like(vector), split(vector, self.weights)
        sums, rows = split_views(total, self.weights), 0
        for action, count in self._kept or map(self._build, each(self.batches)):
            for into, part in zip(sums, action(parts), strict=True):
                into.add_(dense(part).to(into))
            rows += count
        self.work.add()
        return total.div_(rows)

    @cached_property
    def _kept(self) -> list[tuple[Action, int]]:
        """The product function and the number of examples of each batch, or none if their graphs do not fit."""
        used = accumulate(graph_bytes(partial(self._build, batch)) for batch in each(self.batches))
        return [self._build(batch) for batch in each(self.batches)] if all(b <= self.memory for b in used) else []


def action_on(
    matrix: Matrix, model: nn.Module, objective: Objective, weights: list[nn.Parameter], batch: Any
) -> tuple[Action, int]:
    """v -> N A v on one batch of N examples, and N.

    J is the Jacobian of the losses or, for the Fisher matrix, of the outputs:

    hessian           H v
    empirical_fisher  J' J v
    fisher            J' S J v, where S is the second derivative of the losses by the outputs
    """
    if matrix == "fisher":
        outputs = connected(objective.forward(model, batch))
        along, back = jacobian(outputs, weights)
        at = outputs.detach().requires_grad_()
        losses = objective.losses(at, batch)
        (slope,) = grad(losses.sum(), at, create_graph=True)
        return lambda parts: back(grad(slope, at, along(parts), retain_graph=True)[0]), len(losses)
    losses = connected(objective(model, batch))
    if matrix == "hessian":
        return second_derivative(losses.sum(), weights), len(losses)
    along, back = jacobian(losses, weights)
    return lambda parts: back(along(parts)), len(losses)


def second_derivative(value: Tensor, weights: Sequence[Tensor]) -> Action:
    """v -> H v = d (g . v) / dw, where g is the gradient of `value`."""
    gradients = grad(value, weights, create_graph=True, allow_unused=True)
    used = [i for i, gradient in enumerate(gradients) if gradient is not None and gradient.requires_grad]
    chosen = [gradients[i] for i in used]

    def act(parts: Parts) -> Parts:
        if not used:
            return [torch.zeros_like(weight) for weight in weights]
        return grad(chosen, weights, [parts[i] for i in used], retain_graph=True, materialize_grads=True)

    return act


def jacobian(
    outputs: Tensor, weights: list[nn.Parameter]
) -> tuple[Callable[[Parts], Tensor], Callable[[Tensor], Parts]]:
    """v -> J v and u -> J' u. J v is the derivative of v . J' u by u, because forward mode lacks many kernels."""
    anything = torch.zeros_like(outputs, requires_grad=True)
    pulled = grad(outputs, weights, anything, create_graph=True, allow_unused=True)
    used = [i for i, part in enumerate(pulled) if part is not None and part.requires_grad]
    chosen = [pulled[i] for i in used]

    def along(parts: Parts) -> Tensor:
        return grad(chosen, anything, [parts[i] for i in used], retain_graph=True)[0]

    def back(direction: Tensor) -> Parts:
        return grad(outputs, weights, direction, retain_graph=True, materialize_grads=True)

    return along, back


def connected(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TypeError(f"forward must return a tensor for the Fisher matrix, got {type(outputs).__name__}")
    if not outputs.requires_grad:
        raise ValueError(
            "losses must depend on the model's weights, got losses that do not depend on any weight that requires a "
            "gradient: forward must not detach its outputs"
        )
    return outputs


def check_matrix(matrix: str, objective: Objective) -> None:
    check_choice("matrix", matrix, get_args(Matrix))
    losses = objective.losses
    if matrix == "fisher" and not isinstance(losses, CrossEntropy | SquaredError):
        name = getattr(losses, "__name__", type(losses).__name__)
        raise ValueError(
            f"matrix 'fisher' needs losses with a known distribution, CrossEntropy() or SquaredError(), got {name}: "
            "give one of these, or use matrix 'empirical_fisher' or 'hessian'"
        )


def split(vector: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the parts. Views could be misaligned for models that view pairs of numbers as complex."""
    return [part.to(weight, copy=True) for part, weight in zip(split_views(vector, weights), weights, strict=True)]


def split_views(vector: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(vector, [weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def dense(part: Tensor) -> Tensor:
    """Convert a sparse gradient, as embeddings may have, to a dense one."""
    return part.to_dense() if part.is_sparse else part


def graph_bytes(build: Callable[[], object]) -> int:
    """The bytes that a graph keeps for backward, found by building it once and dropping it."""
    seen: dict[int, int] = {}

    def weigh(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad) and not tensor.is_sparse:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep its graph alive

    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        build()
    return sum(seen.values())
