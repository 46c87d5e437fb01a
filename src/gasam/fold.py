"""`Fold`, which combines the gradients of all passes into one gradient in `.grad`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Literal

import torch
from torch import Tensor

from gasam.distributed import is_expanded, over_processes, sharding
from gasam.family import Kept, Method, add, check_result, dot, scaled
from gasam.passes import Pass
from gasam.pieces import wide
from gasam.torch_private import get_gradient, local, set_gradient, storage_identity
from gasam.weights import overlap

Overflow = Literal["keep", "clean"]


def shares(steps: int, risk: str, weight: float = 1.0) -> tuple[float, float]:
    """The factors of g_0 and of the displaced gradients in g_0 + v (fold - g_0), where v is the weight of the walk.

    For risk "mean" the fold is (1 / (K+1)) sum of g_k, k = 0..K. For risk "final" it is g_K, and the gradients between
    only find directions.
    """
    if risk == "mean":
        return 1 - weight * steps / (steps + 1), weight / (steps + 1)
    return 1 - weight, weight


def clean_factor(steps: int, risk: str) -> float:
    """What the loss of the clean pass is multiplied by: a positive number, because the walk reads its gradient.

    Its share in the fold may be zero or negative, so the gradient is multiplied again after the walk has read it.
    """
    return 1 / (steps + 1) if risk == "mean" else 1.0


class Fold:
    """Adds the combined gradient of a step to the caller's gradients in `.grad`, as backward would.

    It writes into the caller's tensors, so that views of a flat buffer are updated. Only a gradient that can't be
    written (sparse, or an expanded view) is replaced by a new tensor.

    The clean pass starts with empty gradients, because the walk reads g_0 from `.grad`. Before the last pass, the sum
    of the earlier gradients and the caller's gradients are put back into `.grad`, and autograd adds the last gradient.
    This way an all-reduce of accumulated gradients, as in DDP, includes all of them.

    Args:
        parameters: The trained parameters.
        steps: K. Between two walks only pass 0 runs.
        risk: "mean" or "final".
        weight: v in g_0 + v (fold - g_0).
        method: A method with a fold of its own. The gradients of all passes are kept for it.
        kept: What the method keeps.
        strength: The strength of this step, for the method.
        apart: Every pass starts with empty gradients, and `finish` combines them. It needs more memory. Always so for a
            method's fold, for `clean_if_overflow`, and for closures if the clean gradient counts.
        clean_if_overflow: Replace a sum that is not finite by the clean gradient, which is kept as a copy.
        by_closure: Each pass is a closure that calls backward itself. It may clear `.grad`, and its loss can't be
            multiplied, so `finish` does both. The caller's gradients are dropped.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        steps: int,
        risk: str,
        *,
        weight: float = 1.0,
        method: Method | None = None,
        kept: Kept | None = None,
        strength: float = 1.0,
        apart: bool = False,
        clean_if_overflow: bool = False,
        by_closure: bool = False,
    ) -> None:
        self._parameters, self._steps, self._weight = parameters, steps, weight
        self._clean_share, self._share = shares(steps, risk, weight)
        self._whole = by_closure or method is not None  # the losses are not multiplied
        self._first = 1.0 if self._whole else clean_factor(steps, risk)
        self._counts_all = risk == "mean"
        self._counts_clean = self._counts_all or weight != 1
        self._method, self._kept, self._strength = method, kept, strength
        self._clean_if_overflow, self._by_closure = clean_if_overflow, by_closure
        self.apart = apart or clean_if_overflow or method is not None or (by_closure and self._counts_clean)
        self._total: list[Tensor | None] = [None] * len(parameters)  # sum of the gradients of the passes so far
        self._clean: list[Tensor | None] = []
        self._gradients: list[list[Tensor | None]] = []  # of each pass, for a method
        self._scales: list[Tensor | float] = []
        self._callers: list[Tensor | None] = [None] * len(parameters)
        if not by_closure:
            self._callers = list(map(get_gradient, parameters))
        self._has_callers = any(own is not None for own in self._callers)
        self._has_total = False
        self._copies: list[Tensor | None] = []  # of the caller's gradients
        self._written: set[int] = set()  # storages of the passes' gradients, which may be those of DDP's buckets

    def before(self, k: int) -> float:
        """Make room in `.grad` for pass k; return the factor of its loss."""
        if k == 0:
            if self._has_callers:
                self._copies = [None if own is None else own.detach().clone() for own in self._callers]
            self._clear()
            return self._first
        self._note_written()
        if self._method is not None:
            self._gradients.append([None if p.grad is None else p.grad.detach().clone() for p in self._parameters])
            self._clear()
        elif k == 1:
            self._keep_clean()
        else:
            self._take(keep=self._counts_all)
        if k == self._steps and not self.apart and (self._has_total or self._has_callers):
            self._put_back()
        return 1.0 if self._whole else self._share

    def passed(self, seen: Pass) -> None:
        """After a pass. A method needs to know the factor of its gradient."""
        if self._method is not None:
            self._scales.append(seen.gradient_scale)

    @torch.no_grad()
    def finish(self, finite: Tensor | bool = True) -> None:
        """After the last pass: what `.grad` lacks. `finite` is whether the step may change what a method keeps."""
        if not self.apart:
            return
        self._note_written()
        if self._method is not None:
            last = [None if p.grad is None else p.grad.detach() for p in self._parameters]
            # A view of one of DDP's buckets is overwritten when the caller's gradients are put back.
            self._gradients.append([None if g is None else g.clone() for g in last] if self._has_callers else last)
            if self._clean_if_overflow:
                self._clean = [None if g is None else g.clone() for g in self._gradients[0]]
            self._clear()
            self._combine(finite)
        else:
            self._take(keep=True)
            if self._by_closure:
                self._multiply_total(self._share)
        if self._clean_if_overflow:
            self._replace_overflow()
        self._put_back()

    @torch.no_grad()
    def undo(self) -> None:
        """After a failure: restore `.grad` to its state before the call."""
        copies = self._copies or [None] * len(self._parameters)
        for parameter, own, copy in zip(self._parameters, self._callers, copies, strict=True):
            try:
                if own is not None and copy is not None and _can_be_written(own):
                    own.detach().copy_(copy)
                parameter.grad = own
            except RuntimeError:  # the failed pass changed the parameter's shape or type
                continue

    def _note_written(self) -> None:
        if self._has_callers:
            here = [p.grad for p in self._parameters if p.grad is not None and not p.grad.is_sparse]
            self._written |= {storage_identity(local(gradient)) for gradient in here}

    def _clear(self) -> None:
        deque(map(set_gradient, self._parameters, repeat(None)), maxlen=0)

    @torch.no_grad()
    def _keep_clean(self) -> None:
        """Keep g_0, multiplied by its factor, if it counts. With one step it stays in `.grad` if it can."""
        rescale = self._clean_share / (self._share if self._by_closure else self._first)
        if self._clean_if_overflow:
            self._clean = [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]
        stays = self._counts_clean and self._steps == 1 and not self.apart and not self._has_callers
        gradients = list(map(get_gradient, self._parameters)) if stays else []
        if stays and not overlap(gradients):
            for parameter, gradient in zip(self._parameters, gradients, strict=True) if rescale != 1 else ():
                if gradient is not None:
                    parameter.grad = _multiplied(gradient, rescale)
            return
        if self._counts_clean:
            self._take(keep=True)
            self._multiply_total(rescale)
        else:
            self._clear()

    @torch.no_grad()
    def _take(self, keep: bool) -> None:
        """Add `.grad` to the total, or drop it, and clear it, one parameter at a time to free memory early."""
        if not keep:
            self._clear()
            return
        self._has_total = True
        for i, parameter in enumerate(self._parameters):
            if parameter.grad is not None:
                self._total[i] = _added(self._total[i], parameter.grad)
            parameter.grad = None

    def _multiply_total(self, factor: float) -> None:
        if factor != 1:
            self._total = [None if total is None else total.mul_(factor) for total in self._total]

    def _combine(self, finite: Tensor | bool) -> None:
        """Call the method's fold, with lists of the parameters that have a gradient in any pass."""
        assert self._method is not None
        assert self._kept is not None
        last, scales = self._gradients[-1], [_magnitude(scale) for scale in self._scales]
        here = [i for i in range(len(last)) if any(each[i] is not None for each in self._gradients)]
        parameters, lists = [self._parameters[i] for i in here], list[Any]()
        for k, each in enumerate(self._gradients):
            vectors = [_in_wide_type(each[i], self._parameters[i]) for i in here]
            lists.append(vectors if _surely_equal(scales[k], scales[-1]) else scaled(vectors, scales[-1] / scales[k]))
            each.clear()
        lists += [None] * (self._steps + 1 - len(lists))

        def may_keep() -> Tensor | bool:
            return torch.as_tensor(finite) & torch.stack([dot(g, g) for g in lists if g is not None]).sum().isfinite()

        clean = [g.clone() for g in lists[0]] if self._weight != 1 else []
        with self._kept.bound(parameters, scales[-1], may_keep):
            found = self._method.fold(lists, self._kept, self._strength)
        check_result(found, parameters, f"{type(self._method).__name__}.fold")
        if self._weight != 1:  # g_0 + v (fold - g_0)
            found = add(scaled(clean, 1 - self._weight), found, self._weight)
        for i, value in zip(here, found, strict=True):
            self._total[i] = value.to(self._parameters[i].dtype)

    def _replace_overflow(self) -> None:
        """If the total is not finite, replace it by the clean gradient. Does not synchronise with the host."""
        finite = all_finite(self._total)
        for i, (total, clean) in enumerate(zip(self._total, self._clean, strict=True)):
            if total is not None or clean is not None:
                like: Any = clean if total is None else total
                kept = torch.zeros_like(like) if total is None else total
                other = torch.zeros_like(like) if clean is None else clean * (1 / self._first)
                self._total[i] = _keep_if(finite, kept, other)
        self._clean = []

    @torch.no_grad()
    def _put_back(self) -> None:
        """Add the total to the caller's gradients in `.grad`."""
        for i, (parameter, own, total) in enumerate(zip(self._parameters, self._callers, self._total, strict=True)):
            self._total[i] = None
            if own is None:
                if total is not None:
                    parameter.grad = total
                continue
            copy: Any = self._copies[i]
            if not _can_be_written(own):
                parameter.grad = copy.clone() if total is None else _added(total, copy)
                continue
            if storage_identity(local(own)) in self._written:  # a view of a bucket that DDP has written
                own.detach().copy_(copy)
            if total is not None:
                own.detach().add_(total)
            parameter.grad = own


def _magnitude(scale: Tensor | float) -> Tensor | float:
    return scale.abs() if isinstance(scale, Tensor) else abs(scale)


def _surely_equal(one: Tensor | float, other: Tensor | float) -> bool:
    """Whether two scales are equal, if that is known without synchronising."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    return one == other


def _in_wide_type(gradient: Tensor | None, parameter: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)
    if gradient.is_sparse:
        raise TypeError(
            "a method with its own fold can't combine the sparse gradient of an embedding: use sparse=False, or a walk "
            "without a method, such as sam(0.05)"
        )
    return gradient.to(wide(gradient.dtype))


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
