"""Weights sharded over processes, as FSDP2 does it: the part that lies here, and what is summed over all of them.

Only where there are such weights is anything of torch.distributed imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "_local_tensor")


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that lies in this process; any other tensor is its own."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)
    return part


def sharding(tensor: Any) -> object:
    """(mesh, placements) of a sharded tensor, None of any other: what is alike is summed by one collective."""
    return (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None


def check_sharding(tensor: Any, who: str) -> None:
    """Rows may lie in different processes, for filters are rows; nothing else may be cut."""
    from torch.distributed.tensor import Replicate, Shard

    whole_rows = [type(p) is Replicate or (type(p) is Shard and p.dim == 0) for p in tensor.placements]
    if not all(whole_rows) or sum(type(p) is Shard for p in tensor.placements) > 1:
        raise TypeError(
            f"{who} is a DTensor placed as {tensor.placements}, and only Shard(0), as fully_shard places it, on one "
            "dimension of the mesh and Replicate() on the others can be moved: put it into a group with "
            "'perturb': False"
        )


def check_gradient(tensor: Any) -> None:
    if tensor.grad.placements != tensor.placements:
        raise RuntimeError(
            f"the gradient of a sharded parameter is placed as {tensor.grad.placements}, the parameter as "
            f"{tensor.placements}: it must be reduced before the walk can read it, as fully_shard does"
        )


def shardings_of(tensors: Sequence[Tensor]) -> list[object]:
    """Each once, in the order of the tensors; none last, for whole tensors may have sparse rows, which come last."""
    return sorted(dict.fromkeys(map(sharding, tensors)), key=lambda each: each is None)


def by_sharding(tensors: Sequence[Tensor]) -> list[Tensor]:
    """What is sharded alike together; their gradients must be, too."""
    for tensor in filter(is_sharded, tensors):
        check_gradient(tensor)
    return [tensor for each in shardings_of(tensors) for tensor in tensors if sharding(tensor) == each]


def first_row(tensor: Any) -> int:
    """Which row of the whole tensor is the first one here."""
    if not is_sharded(tensor):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1][0]


class Kind(NamedTuple):
    """What is sharded alike, and where it lies among the stretches and pieces of a layout."""

    sharding: Any
    stretches: slice
    pieces: slice

    def over_processes(self, here: Tensor, how: str = "sum") -> Tensor:
        """The sum, or the largest, of what each process has: one collective, with the same bits for all."""
        if self.sharding is None:
            return here
        from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

        mesh, placements = self.sharding
        pending: list[Placement] = [Partial(how) if isinstance(p, Shard) else Replicate() for p in placements]
        return DTensor.from_local(here.to(mesh.device_type), mesh, pending, run_check=False).full_tensor().to(here)


def kinds_of(shardings: Iterable[object], stretches: Sequence[Any]) -> list[Kind]:
    """The kinds in this order, which all processes share, even one that holds nothing of a kind."""
    kinds, first = list[Kind](), 0
    for each in shardings:
        stop = first
        while stop < len(stretches) and stretches[stop].sharding == each:
            stop += 1
        begin = kinds[-1].pieces.stop if kinds else 0
        kinds.append(Kind(each, slice(first, stop), slice(begin, stretches[stop - 1].pieces.stop if stop else 0)))
        first = stop
    return kinds


def forget_derived(tensors: Sequence[Tensor]) -> None:
    """Drop what was computed from weights that have been written: copies for autocast, gathered shards."""
    torch.clear_autocast_cache()
    if any(map(is_sharded, tensors)):
        _reshard()


def _reshard() -> None:
    """Every FSDP module, for a parameter does not know its own: what is not out of date is but gathered again."""
    from torch.distributed._composable_state import _module_state_mapping
    from torch.distributed.fsdp import FSDPModule

    for module in list(_module_state_mapping):
        if isinstance(module, FSDPModule):
            module.reshard()
