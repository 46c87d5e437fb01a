"""`Fold`, which combines the gradients of all passes into one gradient in `.grad`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.sharded import is_expanded, over_processes, sharding
from gasam.torch_private import local, storage_identity


class Shares(NamedTuple):
    """The factors of the passes' gradients in g_0 + v (fold - g_0), where v is the weight of the walk.

    For risk "mean" the fold is (1 / (K+1)) sum of g_k, k = 0..K. For risk "final" it is g_K, and g_1 .. g_{K-1} are
    dropped. The factor of g_0 may be zero or negative, but the walk needs g_0 to find its direction. So the clean pass
    runs with the positive factor `first`, and its gradient is multiplied by `rescale` afterwards.
    """

    first: float  # factor of the clean pass
    rescale: float  # factor of the clean gradient after the walk has read it
    displaced: float  # factor of the displaced passes


def shares(perturbation: Perturbation, weight: float = 1.0) -> Shares:
    steps = perturbation.steps
    if perturbation.risk == "mean":
        return Shares(1 / (steps + 1), steps + 1 - weight * steps, weight / (steps + 1))
    return Shares(1.0, 1 - weight, weight)


Overflow = Literal["keep", "clean"]


def check_overflow(on_overflow: object, per_worker: bool) -> None:
    if on_overflow not in get_args(Overflow):
        raise ValueError(f"on_overflow must be 'keep' or 'clean', got {on_overflow!r}")
    if on_overflow == "clean" and per_worker:
        raise ValueError("on_overflow='clean' can't be used with per_worker, whose clean gradient is local: use 'keep'")


class Fold:
    """Adds the combined gradient of a walk to the caller's gradients in `.grad`, as backward would.

    It writes into the caller's tensors, so that views of a flat buffer are updated. Only a gradient that can't be
    written (sparse, or an expanded view) is replaced by a new tensor.

    The clean pass starts with empty gradients, because the walk reads g_0 from `.grad`. Before the last pass, the sum
    of the earlier gradients and the caller's gradients are put back into `.grad`, and autograd adds the last gradient.
    This way an all-reduce of accumulated gradients, as in DDP, includes all of them. The caller's gradients are copied
    first, so that a failure can be undone.

    Args:
        parameters: The trained parameters.
        perturbation: Its risk and number of steps determine the factors of the passes.
        weight: v in g_0 + v (fold - g_0). With risk "final" and a weight other than 1, g_0 is kept until the end.
        separately: The last pass starts with empty gradients too, and `finish` adds its gradient. This needs more
            memory, but the last gradient can be read.
        clean_if_overflow: Replace a sum that is not finite by the clean gradient, which is kept as a copy.
        by_closure: Each pass is a closure that calls backward itself. It may clear `.grad`, so gradients are put back
            only at the end, and the caller's gradients are dropped. The loss of a closure can't be multiplied by a
            factor, so `finish` multiplies the sum.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        perturbation: Perturbation,
        *,
        weight: float = 1.0,
        separately: bool = False,
        clean_if_overflow: bool = False,
        by_closure: bool = False,
    ) -> None:
        share = shares(perturbation, weight)
        self.first, self.displaced = (1.0, 1.0) if by_closure else (share.first, share.displaced)
        self._rescale_clean = share.rescale / weight if by_closure else share.rescale
        self._rescale_total = share.displaced if by_closure else 1.0
        self._mean = perturbation.risk == "mean"
        self._keeps_clean = self._mean or weight != 1
        self.separately = separately or clean_if_overflow or (by_closure and self._keeps_clean)
        self._clean_if_overflow = clean_if_overflow
        self._steps = perturbation.steps
        self._parameters = parameters
        self._total: list[Tensor | None] = [None] * len(parameters)  # sum of the gradients of the passes so far
        self._clean: list[Tensor | None] = []
        self._callers = [None if by_closure else parameter.grad for parameter in parameters]
        self._copies: list[Tensor | None] = [None] * len(parameters)  # copies of the caller's gradients

    def set_aside(self) -> None:
        """Before the clean pass: copy the caller's gradients and clear `.grad`."""
        for i, parameter in enumerate(self._parameters):
            own = self._callers[i]
            if own is not None:
                self._copies[i] = own.detach().clone()
            parameter.grad = None

    def passed(self, seen: Pass) -> None:
        """After a pass: only a fold by a function needs to know the factor of its gradient."""

    def make_room(self, k: int) -> None:
        """Before pass k: add `.grad` to the total, or drop it if the fold does not contain it, and clear `.grad`.

        Before the last pass, put the total and the caller's gradients back into `.grad`. With one step and no gradients
        of the caller, g_0 stays in `.grad` and is not copied.
        """
        if k == 0:
            return
        if k > 1:
            self._take(keep=self._mean)
        elif self._share_clean():
            return
        if k == self._steps and not self.separately:
            self._put_back()

    def finish(self, climbed: Tensor | None = None) -> None:
        """After the last pass: add its gradient, unless autograd has added it.

        `climbed` is whether the walk moved the weights and everything was finite; None without a walk. Only a fold by a
        function uses it.
        """
        if not self.separately:
            return
        self._take()
        self._multiply_total(self._rescale_total)
        if self._clean_if_overflow:
            self._replace_overflow()
        self._put_back()

    @torch.no_grad()
    def undo(self) -> None:
        """After a failure: restore `.grad` to its state before the call."""
        for parameter, own, copy in zip(self._parameters, self._callers, self._copies, strict=True):
            try:
                if own is not None and copy is not None and _can_be_written(own):
                    own.detach().copy_(copy)
                parameter.grad = own
            except RuntimeError:  # the failed pass changed the parameter's shape or type
                continue

    @torch.no_grad()
    def _share_clean(self) -> bool:
        """Multiply g_0 by its factor in the fold; return whether it stays in `.grad`."""
        rescale = self._rescale_clean
        if self._clean_if_overflow:
            self._clean = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        if self._steps == 1 and self._keeps_clean and not self.separately and self._can_stay():
            for parameter in self._parameters:
                if parameter.grad is not None and rescale != 1:
                    parameter.grad = _multiplied(parameter.grad, rescale)
            return True
        self._take(keep=self._keeps_clean)
        self._multiply_total(rescale)
        return False

    def _can_stay(self) -> bool:
        return all(copy is None for copy in self._copies) and not overlap([p.grad for p in self._parameters])

    def _take(self, keep: bool = True) -> None:
        """Add `.grad` to the total, or drop it, and clear it, one parameter at a time to free memory early."""
        for i, parameter in enumerate(self._parameters):
            if keep and parameter.grad is not None:
                self._total[i] = _added(self._total[i], parameter.grad)
            parameter.grad = None

    def _multiply_total(self, factor: float) -> None:
        if factor != 1:
            self._total = [None if total is None else total.mul_(factor) for total in self._total]

    @torch.no_grad()
    def _replace_overflow(self) -> None:
        """If the total is not finite, replace it by the clean gradient. Does not synchronise with the host."""
        finite = all_finite(self._total)
        for i, (total, clean) in enumerate(zip(self._total, self._clean, strict=True)):
            if total is not None or clean is not None:
                like: Any = clean if total is None else total
                kept = torch.zeros_like(like) if total is None else total
                other = torch.zeros_like(like) if clean is None else clean * (1 / self.first)
                self._total[i] = _keep_if(finite, kept, other)
        self._clean = []

    @torch.no_grad()
    def _put_back(self) -> None:
        for own, copy in zip(self._callers, self._copies, strict=True):
            if own is not None and copy is not None and _can_be_written(own):
                own.detach().copy_(copy)  # DDP may have overwritten it if it is a view of a bucket
        lists = self._parameters, self._callers, self._copies, self._total
        for i, (parameter, own, copy, total) in enumerate(zip(*lists, strict=True)):
            if own is None or copy is None:
                if total is not None:
                    parameter.grad = total
            elif _can_be_written(own):
                if total is not None:
                    own.detach().add_(total)
                parameter.grad = own
            else:
                parameter.grad = copy.clone() if total is None else _added(total, copy)
            self._total[i] = None


def _added(total: Tensor | None, gradient: Tensor) -> Tensor:
    """total + gradient, in place if both are dense or both are sparse.

    The first gradient is copied, because it may be a view of a communication bucket, which the next pass overwrites.
    """
    if total is None:
        return gradient.detach().clone()
    if total.is_sparse and not gradient.is_sparse:
        return gradient.detach() + total
    return total.add_(gradient.detach())


def _multiplied(gradient: Tensor, factor: float) -> Tensor:
    return gradient.mul_(factor) if _can_be_written(gradient) else gradient * factor


def all_finite(gradients: Sequence[Tensor | None]) -> Tensor:
    """Whether all gradients are finite, in every process that holds a shard of them."""
    not_finite: dict[Any, Tensor] = {}
    for gradient in gradients:
        if gradient is not None:
            values = local(gradient)
            values = values.coalesce().values() if values.is_sparse else values
            here, kind = (~values.isfinite()).any().float(), sharding(gradient)
            not_finite[kind] = here + not_finite.get(kind, torch.zeros_like(here)).to(here.device)
    counts = [over_processes(count, kind) for kind, count in not_finite.items()]
    return torch.stack([count.to(counts[0].device) for count in counts]).sum() == 0


def _keep_if(condition: Tensor, kept: Tensor, other: Tensor) -> Tensor:
    """`kept` if the condition is true, else `other`, without synchronising with the host.

    For two sparse tensors the result contains the indices of both, with zeros as the values of the rejected one.
    """
    if kept.is_sparse and other.is_sparse:
        kept, other = kept.coalesce(), other.coalesce()
        indices = torch.cat([kept.indices(), other.indices()], dim=1)
        chosen = torch.where(condition, kept.values(), 0.0), torch.where(condition, 0.0, other.values())
        return torch.sparse_coo_tensor(indices, torch.cat(chosen), kept.shape, check_invariants=False).coalesce()
    if kept.is_sparse or other.is_sparse:
        kept, other = kept.to_dense(), other.to_dense()
    here = local(kept)
    here.copy_(torch.where(condition.to(here.device), here, local(other)))
    return kept


def _can_be_written(gradient: Tensor) -> bool:
    return not gradient.is_sparse and not gradient.is_inference() and not is_expanded(gradient)


def overlap(gradients: Sequence[Tensor | None]) -> bool:
    """Whether two gradients may share memory, which autograd allows: adding in place would then be wrong."""
    here = [local(gradient) for gradient in gradients if gradient is not None and not gradient.is_sparse]
    storages = [storage_identity(gradient) for gradient in here]
    if len(set(storages)) == len(storages):
        return False
    spans = sorted((at, *_span(gradient)) for at, gradient in zip(storages, here, strict=True) if gradient.numel())
    return any(one[0] == other[0] and other[1] < one[2] for one, other in pairwise(spans))


def _span(tensor: Tensor) -> tuple[int, int]:
    """The range of bytes in its storage that the tensor may use."""
    start, size, length = int(tensor.storage_offset()), tensor.element_size(), tensor.numel()
    if not tensor.is_contiguous():
        length = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start * size, (start + length) * size
