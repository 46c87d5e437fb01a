"""Products of a curvature matrix with a vector: the Hessian, the Fisher matrix, the empirical Fisher matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import grad

from gasam.analysis.likelihoods import CrossEntropy, SquaredError
from gasam.analysis.objective import Batches, Named, Objective, each

Matrix = Literal["empirical_fisher", "fisher", "hessian"]
Parts = Sequence[Tensor]
Action = Callable[[Parts], Parts]
Watch = Callable[[int], object]
GIBIBYTE = 2**30


class Products:
    """v -> A v for one flat vector over all weights, A the mean over all examples; nothing of size n x n is made.

    Inside `examined` and `twice_differentiable` only, gradients enabled. Graphs are kept from product to product while
    those of all batches together take at most `memory` bytes; otherwise each product computes them anew.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        batches: Batches,
        weights: Named,
        matrix: Matrix,
        *,
        memory: float = 4 * GIBIBYTE,
        watch: Watch | None = None,
    ) -> None:
        self.model, self.objective, self.batches = model, objective, batches
        self.weights = list(weights.values())
        self.build = BUILDERS[matrix]
        self.memory, self.watch = memory, watch
        self.kept: list[tuple[Action, int]] | None = None
        self.done = 0

    @property
    def n(self) -> int:
        return sum(weight.numel() for weight in self.weights)

    @property
    def like(self) -> Tensor:
        """An empty tensor with the type and device of the vectors: at least float32."""
        return torch.empty(0, dtype=vector_type(self.weights), device=self.weights[0].device)

    def __call__(self, vector: Tensor) -> Tensor:
        total, parts = torch.zeros_like(vector), split(vector, self.weights)
        sums, rows = split_views(total, self.weights), 0
        for action, count in self.actions():
            for into, part in zip(sums, action(parts), strict=True):
                into.add_(dense(part).to(into))
            rows += count
        self.done += 1
        if self.watch is not None:
            self.watch(self.done)
        return total.div_(rows)

    def actions(self) -> Iterator[tuple[Action, int]]:
        """The action and the number of examples of each batch."""
        if self.kept is not None:
            yield from self.kept
            return
        first, kept, used = self.done == 0, [], 0
        for batch in each(self.batches):
            if first and used <= self.memory:
                used += graph_bytes(partial(self._build, batch))
            made = self._build(batch)
            if first and used <= self.memory:
                kept.append(made)
            else:
                kept.clear()
            yield made
        if first and used <= self.memory:
            self.kept = kept

    def _build(self, batch: Any) -> tuple[Action, int]:
        return self.build(self.model, self.objective, batch, self.weights)


def hessian_action(
    model: nn.Module, objective: Objective, batch: Any, weights: list[nn.Parameter]
) -> tuple[Action, int]:
    losses = connected(objective(model, batch))
    return second_derivative(losses.sum(), weights), len(losses)


def second_derivative(value: Tensor, weights: Sequence[Tensor]) -> Action:
    """v -> H v = d (g . v) / dw, g the gradient of the value."""
    gradients = grad(value, weights, create_graph=True, allow_unused=True)
    used = [i for i, gradient in enumerate(gradients) if gradient is not None and gradient.requires_grad]
    chosen = [gradients[i] for i in used]

    def act(parts: Parts) -> Parts:
        if not used:
            return [torch.zeros_like(weight) for weight in weights]
        return grad(chosen, weights, [parts[i] for i in used], retain_graph=True, materialize_grads=True)

    return act


def empirical_fisher_action(
    model: nn.Module, objective: Objective, batch: Any, weights: list[nn.Parameter]
) -> tuple[Action, int]:
    """J' J v, J the gradients of the examples' losses, none of which is made."""
    losses = connected(objective(model, batch))
    along, back = jacobian(losses, weights)
    return lambda parts: back(along(parts)), len(losses)


def fisher_action(
    model: nn.Module, objective: Objective, batch: Any, weights: list[nn.Parameter]
) -> tuple[Action, int]:
    """J' S J v, J the derivative of the outputs, S the second derivative of the losses by the outputs."""
    outputs = connected(objective.forward(model, batch))
    along, back = jacobian(outputs, weights)
    at = outputs.detach().requires_grad_()
    losses = objective.losses(at, batch)
    (slope,) = grad(losses.sum(), at, create_graph=True)

    def act(parts: Parts) -> Parts:
        (bent,) = grad(slope, at, along(parts), retain_graph=True)
        return back(bent)

    return act, len(losses)


BUILDERS: dict[str, Callable[..., tuple[Action, int]]] = {
    "empirical_fisher": empirical_fisher_action,
    "fisher": fisher_action,
    "hessian": hessian_action,
}


def jacobian(
    outputs: Tensor, weights: list[nn.Parameter]
) -> tuple[Callable[[Parts], Tensor], Callable[[Tensor], Parts]]:
    """v -> J v and u -> J' u. Forward mode lacks many kernels; u -> J' u is linear, and its own transpose is J."""
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
        raise TypeError(f"forward must give a tensor for the Fisher matrix, got {type(outputs).__name__}")
    if not outputs.requires_grad:
        raise ValueError(
            "losses must depend on the model's weights, got losses that do not depend on any weight that requires a "
            "gradient: forward must not detach its outputs"
        )
    return outputs


def check_matrix(matrix: str, objective: Objective) -> None:
    if matrix not in BUILDERS:
        raise ValueError(f"matrix must be one of {', '.join(map(repr, BUILDERS))}, got {matrix!r}")
    losses = objective.losses
    if matrix == "fisher" and not isinstance(losses, CrossEntropy | SquaredError):
        name = getattr(losses, "__name__", type(losses).__name__)
        raise ValueError(
            f"matrix 'fisher' needs losses with a known distribution, CrossEntropy() or SquaredError(), got {name}: "
            "give one of these, or take matrix 'empirical_fisher' or 'hessian'"
        )


def vector_type(weights: Sequence[Tensor]) -> torch.dtype:
    found = torch.float32
    for weight in weights:
        found = torch.promote_types(found, weight.dtype)
    return found


def split(vector: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Copies: pairs that the model views as complex numbers can't begin at any place of a vector."""
    return [part.to(weight, copy=True) for part, weight in zip(split_views(vector, weights), weights, strict=True)]


def split_views(vector: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(vector, [weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def dense(part: Tensor) -> Tensor:
    """Embeddings may give sparse gradients."""
    return part.to_dense() if part.is_sparse else part


def graph_bytes(build: Callable[[], object]) -> int:
    """What a graph keeps for backward, found by building it once and dropping it."""
    seen: dict[int, int] = {}

    def weigh(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad) and not tensor.is_sparse:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # to give back the tensor itself would tie it to its own graph

    with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
        build()
    return sum(seen.values())
