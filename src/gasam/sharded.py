"""Functions for weights that FSDP2 shards over processes (DTensor): their layout, and sums over all processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gasam.torch_private import fsdp_modules, local


def is_sharded(tensor: Tensor) -> bool:
    return local(tensor) is not tensor


def is_expanded(tensor: Tensor) -> bool:
    """Whether several entries share memory, so that the tensor can't be written."""
    part = local(tensor)
    if part.is_sparse:
        return False
    return any(stride == 0 and n > 1 for n, stride in zip(part.shape, part.stride(), strict=True))


def sharding(tensor: Any) -> Any:
    """(mesh, placements) of a sharded tensor, None for any other. Tensors with equal shardings share one collective."""
    return (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None


def by_sharding(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Sort the tensors by sharding, unsharded ones last. The order is the same in all processes."""
    order: list[Any] = sorted(dict.fromkeys(map(sharding, tensors)), key=lambda each: each is None)
    return [tensor for each in order for tensor in tensors if sharding(tensor) == each]


def over_processes(here: Tensor, own_sharding: Any, how: str = "sum") -> Tensor:
    """The "sum" or "max" over the processes of this sharding: one collective, with the same bits in every process.

    torch.distributed is imported here because most models are not sharded.
    """
    if own_sharding is None:
        return here
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

    mesh, placements = own_sharding
    pending: list[Placement] = [Partial(how) if isinstance(p, Shard) else Replicate() for p in placements]
    return DTensor.from_local(here.to(mesh.device_type), mesh, pending, run_check=False).full_tensor().to(here)


def first_row(tensor: Any) -> int:
    """The index, in the whole tensor, of the first row in this process, for shardings that `check_sharding` allows.

    Each process has ceil(rows / processes) rows, except the last ones, which have fewer or none.
    """
    if is_sharded(tensor):
        for dimension, placement in enumerate(tensor.placements):
            if placement.is_shard():
                mesh, rows = tensor.device_mesh, tensor.shape[0]
                rows_of_each = math.ceil(rows / mesh.size(dimension))
                return int(min(rows, rows_of_each * mesh.get_local_rank(dimension)))
    return 0


def check_sharding(tensor: Any, who: str) -> None:
    """Raise unless the tensor is sharded by whole rows, because filters are rows."""
    from torch.distributed.tensor import Replicate, Shard

    whole_rows = [type(p) is Replicate or (type(p) is Shard and p.dim == 0) for p in tensor.placements]
    if not all(whole_rows) or sum(type(p) is Shard for p in tensor.placements) > 1:
        raise TypeError(
            f"{who} is a DTensor placed as {tensor.placements}, but the walk can move only weights with Shard(0) on "
            "one dimension of the mesh, as fully_shard places them, and Replicate() on the others: put it into a group "
            "with 'perturb': False"
        )


def check_gradient(tensor: Any) -> None:
    if tensor.grad.placements != tensor.placements:
        raise RuntimeError(
            f"the gradient of a sharded parameter is placed as {tensor.grad.placements}, but the parameter as "
            f"{tensor.placements}: reduce the gradient before the walk reads it, as fully_shard does"
        )


def forget_derived(tensors: Sequence[Tensor]) -> None:
    """Drop copies of weights that have been overwritten: autocast's casts and gathered shards."""
    torch.clear_autocast_cache()
    if any(map(is_sharded, tensors)):
        for module in fsdp_modules():  # all of them, even if some are gathered again without need
            module.reshard()
