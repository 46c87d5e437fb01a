"""`Fold`, which combines the gradients of all passes into one gradient in `.grad`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import repeat, zip_longest
from typing import Any

import torch
from torch import Tensor

from gasam.distributed import is_expanded
from gasam.family import Kept, Method, add, check_result, dense_gradient, dot, scaled
from gasam.perturbation import Perturbation
from gasam.torch_private import get_gradient, set_gradient
from gasam.weights import overlap


def shares(steps: int, risk: str, weight: float = 1.0, *, clean_counts: bool = True) -> list[float]:
    """The factor of each g_k in g_0 + v (fold - g_0), where v is the weight of the walk.

    For risk "mean" the fold is (1 / (K+1)) sum of g_k, k = 0..K; without a clean pass of the loss function it is
    (1 / K) sum of g_k, k = 1..K. For risk "final" it is g_K, and the gradients between only find directions.
    """
    if risk == "mean" and not clean_counts:
        return [0.0, *[1 / steps] * steps]
    if risk == "mean":
        return [clean_factor(steps, risk) * (1 + (1 - weight) * steps), *[weight / (steps + 1)] * steps]
    return [1 - weight, *[0.0] * (steps - 1), weight]


def clean_factor(steps: int, risk: str) -> float:
    """What the loss of the clean pass is multiplied by: a positive number, because the walk reads its gradient.

    Its share in the fold may be zero or negative, so the gradient is multiplied again after the walk has read it.
    """
    return 1 / (steps + 1) if risk == "mean" else 1.0


class Fold:
    """Adds the combined gradient of a step to the caller's gradients in `.grad`, as backward would.

    It writes into the caller's tensors, so that views of a flat buffer are updated. Every pass but the last starts with
    empty gradients, because the walk reads them from `.grad`. Before the last one the sum of the earlier gradients and
    the caller's gradients are put back, so that DDP's reduction of the last pass includes all of them.

    Args:
        parameters: The trained parameters.
        plan: The walk: K, the risk, and perhaps a method with a fold of its own.
        kept: What the method keeps.
        weight: v in g_0 + v (fold - g_0).
        strength: The strength of this step, for the method.
        apart: The last pass starts with empty gradients too, and `finish` combines them, which needs more memory.
            Always so for a method, and for closures if earlier gradients count.
        clean_counts: Whether there is a clean pass of the loss function. A pass of `ascent` only finds a direction.
        by_closure: Each pass is a closure that calls backward itself, so its loss can't be multiplied. It may clear
            `.grad`, so the caller's gradients are dropped.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        plan: Perturbation,
        kept: Kept,
        *,
        weight: float = 1.0,
        strength: float = 1.0,
        apart: bool = False,
        clean_counts: bool = True,
        by_closure: bool = False,
    ) -> None:
        steps, risk, method = plan.steps, plan.risk, plan.own_fold
        self._parameters, self._steps, self._weight = parameters, steps, weight
        self._method, self._kept, self._strength = method, kept, strength
        self._shares = shares(steps, risk, weight, clean_counts=clean_counts)
        self._factors = [clean_factor(steps, risk), *[self._shares[-1]] * steps]  # of the losses
        if by_closure or method is not None:
            self._factors = [1.0] * (steps + 1)
        self.apart = apart or method is not None or (by_closure and any(self._shares[:-1]))
        self._last: int | None = None  # the pass that was begun last
        self._by_closure = by_closure
        self._gradients: dict[int, list[Tensor | None]] = {}  # of the passes, for a method
        self._total: list[Tensor | None] = []  # sum of the gradients that count so far; empty before the first
        callers = [] if by_closure else list(map(get_gradient, parameters))
        self._callers = callers if any(own is not None for own in callers) else []
        self._copies = _copies(self._callers)

    def before(self, k: int) -> float:
        """Make room in `.grad` for pass k; return the factor of its loss."""
        if self._last is not None:
            self._take(self._last)
            if k == self._steps and not self.apart:
                self._put_back()
        # The only pass of a step adds to the caller's gradients like any other backward pass.
        elif k < self._steps or self.apart or self._by_closure:
            self._clear()
        self._last = k
        return self._factors[k]

    def only_finds_direction(self, k: int) -> bool:
        """Whether the gradient of pass k is no part of the fold."""
        return self._method is None and self._shares[k] == 0

    @torch.no_grad()
    def finish(self, finite: Tensor | bool = True, factor: Tensor | float = 1.0) -> None:
        """After the last pass: what `.grad` lacks.

        For a method: whether the step may change what it keeps, and the gradients divided by those of the mean loss.
        """
        if self.apart:
            assert self._last is not None
            self._take(self._last)
            if self._method is not None:
                self._combine(self._method, finite, factor)
            self._put_back()

    @torch.no_grad()
    def undo(self) -> None:
        """After a failure: restore `.grad` to its state before the call."""
        self._clear()
        self._restore_callers()
        for parameter, own in zip(self._parameters, self._callers, strict=False):
            with suppress(RuntimeError):  # the failed pass changed the parameter's shape or type
                parameter.grad = own

    def _restore_callers(self) -> None:
        """Restore the caller's gradients that were written: by autograd, or by DDP if they are views of its buckets."""
        for own, copy in zip(self._callers, self._copies, strict=True):
            if own is not None and _can_be_written(own):
                own.detach().copy_(copy)

    def _clear(self) -> None:
        deque(map(set_gradient, self._parameters, repeat(None)), maxlen=0)

    @torch.no_grad()
    def _take(self, k: int) -> None:
        """Add the gradient of pass k to the total if it counts, and clear `.grad`."""
        ratio = self._shares[k] / self._factors[k]
        counts = ratio != 0 or (k == 0 and self._weight != 1)  # a share of zero leaves zeros, because others may count
        is_alone = self._steps == 1 and not self.apart and not self._callers
        if self._method is not None:
            self._gradients[k] = _copies(map(get_gradient, self._parameters))
        elif counts and is_alone and not overlap(list(map(get_gradient, self._parameters))):
            for parameter in self._parameters if ratio != 1 else ():
                if parameter.grad is not None:
                    own = parameter.grad.detach()
                    parameter.grad = own.mul_(ratio) if _can_be_written(own) else own * ratio
            return  # it stays in `.grad`, where autograd adds the last one
        elif counts:
            self._total = self._total or [None] * len(self._parameters)
            for i, parameter in enumerate(self._parameters):  # one at a time, to free memory early
                if parameter.grad is not None:
                    self._total[i] = _added(self._total[i], parameter.grad.detach(), ratio)
                parameter.grad = None
        self._clear()

    def _combine(self, method: Method, finite: Tensor | bool, factor: Tensor | float) -> None:
        """Call the method's fold, with lists of the parameters that have a gradient in any pass."""
        here = [
            i for i, each in enumerate(zip(*self._gradients.values(), strict=True)) if any(g is not None for g in each)
        ]
        parameters = [self._parameters[i] for i in here]
        lists: list[Any] = [None] * (self._steps + 1)
        for k, each in self._gradients.items():
            lists[k] = [dense_gradient(p, each[i]) for p, i in zip(parameters, here, strict=True)]
            each.clear()

        def may_keep() -> Tensor | bool:
            return torch.as_tensor(finite) & torch.stack([dot(g, g) for g in lists if g is not None]).sum().isfinite()

        clean = [g.clone() for g in lists[0]] if self._weight != 1 else []
        with self._kept.bound(parameters, factor, may_keep):
            found = method.fold(lists, self._kept, self._strength)
        check_result(found, parameters, f"{type(method).__name__}.fold")
        if clean:  # g_0 + v (fold - g_0)
            found = add(scaled(clean, 1 - self._weight), found, self._weight)
        self._total = [None] * len(self._parameters)
        for i, value in zip(here, found, strict=True):
            self._total[i] = value.to(self._parameters[i].dtype)

    @torch.no_grad()
    def _put_back(self) -> None:
        """Add the total to the caller's gradients in `.grad`."""
        if not self._callers and not self._total:
            return
        self._restore_callers()
        lists: Any = self._parameters, self._callers, self._copies, self._total
        for parameter, own, copy, total in zip_longest(*lists):
            if own is None:
                parameter.grad = total
            elif not _can_be_written(own):
                parameter.grad = copy if total is None else copy + total
            else:
                parameter.grad = own
                if total is not None:
                    own.detach().add_(total)
        self._total = []


def _copies(gradients: Iterable[Tensor | None]) -> list[Any]:
    return [None if gradient is None else gradient.detach().clone() for gradient in gradients]


def _added(total: Tensor | None, gradient: Tensor, factor: float) -> Tensor:
    """total + factor * gradient, in place if both are dense or both are sparse.

    The first gradient is copied, because it may be a view of a DDP bucket, which the next pass overwrites.
    """
    if total is None:
        return gradient.clone() if factor == 1 else gradient * factor
    if total.is_sparse and not gradient.is_sparse:
        return gradient * factor + total
    return total.add_(gradient, alpha=factor)


def _can_be_written(gradient: Tensor) -> bool:
    return not gradient.is_sparse and not gradient.is_inference() and not is_expanded(gradient)
