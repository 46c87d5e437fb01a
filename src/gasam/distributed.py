"""Several processes: `per_worker` and `shared_walk` for DDP; layout, sums and refresh of weights that FSDP2 shards."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gasam.torch_private import awaits_first_reduction, fsdp_modules, local


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


def over_processes(here: Tensor, own_sharding: Any, how: str = "sum") -> Tensor:
    """The "sum" or "max" over the processes of this sharding: one collective, with the same bits in every process."""
    if own_sharding is None:
        return here
    from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard  # most models don't need it

    mesh, placements = own_sharding
    pending: list[Placement] = [Partial(how) if isinstance(p, Shard) else Replicate() for p in placements]
    return DTensor.from_local(here.to(mesh.device_type), mesh, pending, run_check=False).full_tensor().to(here)


def total_of(parts: Iterable[tuple[Any, Tensor]]) -> Tensor:
    """The sum of scalars, each given with its sharding, over all processes: one collective for each sharding."""
    sums: dict[Any, Tensor] = {}
    for kind, here in parts:
        sums[kind] = here + sums[kind].to(here.device) if kind in sums else here
    totals = [over_processes(here, kind) for kind, here in sums.items()]
    return torch.stack([total.to(totals[0].device) for total in totals]).sum() if totals else torch.zeros(())


def _place(tensor: Any) -> tuple[int, int]:
    """The number of the shard in this process, the same for its replicas, and the number of shards."""
    for dimension, placement in enumerate(tensor.placements if is_sharded(tensor) else ()):
        if placement.is_shard():  # on one dimension of the mesh alone: see `check_sharding`
            return tensor.device_mesh.get_local_rank(dimension), tensor.device_mesh.size(dimension)
    return 0, 1


def shard_index(tensor: Any) -> int:
    """The number of the shard in this process, the same for its replicas."""
    return _place(tensor)[0]


def first_row(tensor: Any) -> int:
    """The index, in the whole tensor, of the first row in this process: the last shards have fewer rows, or none."""
    index, shards = _place(tensor)
    return min(tensor.shape[0], math.ceil(tensor.shape[0] / shards) * index) if index else 0


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


def reshard_all() -> None:
    """Drop the gathered copies of weights that have been overwritten; of all modules, even without need."""
    for module in fsdp_modules():
        module.reshard()


def group_of(model: nn.Module | None, tensors: Sequence[Tensor]) -> Any:
    """The process group of a DDP or FSDP2 model; None means the default group."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    meshes = {shard[0] for shard in map(sharding, tensors) if shard is not None}
    return meshes.pop().get_group() if [mesh.ndim for mesh in meshes] == [1] else None


class per_worker:  # noqa: N801
    """Each worker of a DistributedDataParallel model computes its own perturbation: one all-reduce per step for any K.

    All passes except the last run under `no_sync`. The last one reduces the sum of all gradients in `.grad`.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = _checked("per_worker", model)

    def __call__(self, k: int, last: bool) -> AbstractContextManager[Any]:
        if last:
            return nullcontext()
        if awaits_first_reduction(self.model):
            raise RuntimeError(
                "with static_graph=True DistributedDataParallel needs one synchronised backward pass before "
                "per_worker: run the first step with sharp.enabled = False, or remove static_graph=True"
            )
        return self.model.no_sync()


class shared_walk:  # noqa: N801
    """All workers of a DistributedDataParallel model compute the perturbation of the joint batch, even in `no_sync`.

    You need it only there, for example while you accumulate gradients: otherwise DDP reduces every pass already. The
    passes before the last are always reduced, and the last one follows your `no_sync`, or is reduced `also_last`.
    """

    def __init__(self, model: DistributedDataParallel, *, also_last: bool = False) -> None:
        self.model, self.also_last = _checked("shared_walk", model), also_last

    @contextmanager
    def __call__(self, k: int, last: bool) -> Iterator[None]:
        before = self.model.require_backward_grad_sync
        self.model.require_backward_grad_sync = before or not last or self.also_last
        try:
            yield
        finally:
            self.model.require_backward_grad_sync = before


def _checked(name: str, model: object) -> DistributedDataParallel:
    if not isinstance(model, DistributedDataParallel):
        kind = type(model).__name__
        raise TypeError(f"{name} needs a DistributedDataParallel model, got {kind}: leave it out with FSDP")
    return model
