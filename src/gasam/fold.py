"""`Fold`, which runs the passes of a step and combines their gradients into one gradient in `.grad`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat, zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gasam.distributed import is_expanded
from gasam.family import Kept, Method, add, check_result, dense_gradient, dot, scaled
from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.schedule import Clock
from gasam.torch_private import get_gradient, set_gradient
from gasam.weights import overlap

if TYPE_CHECKING:
    from gasam.backward import LossPasses


def shares(steps: int, risk: str, weight: float, clean_counts: bool) -> list[float]:
    """The factor of each g_k in g_0 + v (fold - g_0), where v is the weight of the walk.

    For risk "mean" the fold is (1 / (K+1)) sum of g_k, k = 0..K; without a clean pass of the loss function it is
    (1 / K) sum of g_k, k = 1..K. For risk "final" it is g_K, and the gradients between only find directions.
    """
    if risk == "final":
        return [1 - weight, *[0.0] * (steps - 1), weight]
    if not clean_counts:
        return [0.0, *[1 / steps] * steps]
    return [(1 + (1 - weight) * steps) / (steps + 1), *[weight / (steps + 1)] * steps]


class Fold:
    """Runs the passes of a step, and adds their combined gradient to the caller's in `.grad`, as backward would.

    It writes into the caller's tensors, so that views of a flat buffer are updated. Every pass but the last starts with
    empty gradients, because the walk reads them from `.grad`. Before the last one the sum of the earlier gradients and
    the caller's gradients are put back, so that DDP's reduction of the last pass includes all of them. Before a closure
    the caller's gradients are dropped, because it may clear `.grad` itself.

    Args:
        run: Runs one pass.
        plan: The walk.
        clock: The weight of the walk. Between walks only the clean pass is run.
        kept: What the method keeps.
        strength: That of the schedule, for the method.
        apart: The last pass starts with empty gradients too, and `finish` combines them, which needs more memory.
            Always so for a method, and for closures if earlier gradients count.
    """

    def __init__(
        self, run: LossPasses, plan: Perturbation, clock: Clock, kept: Kept, *, strength: float, apart: bool = False
    ) -> None:
        self._run, self._parameters, self._kept = run, run.trained, kept
        self._steps, self._weight, self._strength = plan.steps, clock.weight, strength
        self._final = 0 if clock.between_walks else plan.steps  # the last pass
        self._method = plan.own_fold
        self._shares = shares(plan.steps, plan.risk, clock.weight, run.has_clean_pass)
        # Factors of the losses. That of the clean pass is positive, because the walk reads its gradient.
        self._factors = [1 / (plan.steps + 1) if plan.risk == "mean" else 1.0, *[self._shares[-1]] * plan.steps]
        if run.by_closure or self._method is not None:  # the loss of a closure can't be multiplied
            self._factors = [1.0] * (plan.steps + 1)
        self._apart = apart or self._method is not None or (run.by_closure and any(self._shares[:-1]))
        self._begun: int | None = None  # the pass that was begun last
        self._gradients: dict[int, list[Tensor | None]] = {}  # of the passes, for a method
        self._total: list[Tensor | None] = []  # sum of the gradients that count so far; empty before the first
        callers = [] if run.by_closure else list(map(get_gradient, self._parameters))
        self._callers = callers if any(own is not None for own in callers) else []
        self._copies = _copies(self._callers)

    def __call__(self, k: int) -> Pass:
        """Make room in `.grad` for pass k, and run it."""
        if self._begun is not None:
            self._take(self._begun)
            if k == self._final and not self._apart:
                self._put_back()
        # The only pass of a step adds to the caller's gradients like any other backward pass.
        elif k < self._final or self._apart:
            self._clear()
        self._begun = k
        only_finds_direction = self._run.ascent is not None and self._method is None and self._shares[k] == 0
        return self._run(self._factors[k], last=k == self._final, for_direction=only_finds_direction)

    @torch.no_grad()
    def finish(self, finite: Tensor | bool) -> None:
        """After the last pass: what `.grad` lacks. If the step was not `finite`, what a method keeps is not changed."""
        if self._apart:
            assert self._begun is not None
            self._take(self._begun)
            if self._method is not None:
                self._combine(self._method, finite)
            self._put_back()

    @torch.no_grad()
    def undo(self) -> None:
        """After a failure: restore `.grad` to its state before the call; with closures it stays empty."""
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
        counts = ratio != 0 or (k == 0 and self._weight != 1)  # zeros for what only the clean pass reaches
        is_alone = self._steps == 1 and not self._apart and not self._callers
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

    def _combine(self, method: Method, finite: Tensor | bool) -> None:
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
        with self._kept.bound(parameters, self._run.gradient_scale, may_keep):
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
    if gradient.is_sparse or gradient.is_inference():
        return False
    return gradient.is_contiguous() or not is_expanded(gradient)
