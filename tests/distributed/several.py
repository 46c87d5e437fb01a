"""What the checks of DDP, FSDP2 and the family share: each process's part of a batch, shards, and the reference."""

import hashlib

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from gasam import Perturbation
from problems import batch, network, paper_walk


def mesh(hybrid: bool = False):
    world = dist.get_world_size()
    shape, names = ((2, world // 2), ("replica", "shard")) if hybrid else ((world,), ("shard",))
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def shard(model=None, hybrid: bool = False, **options):
    """A network's layers have 5 and 3 rows: uneven with two processes, and some have none with four."""
    model, here = network() if model is None else model, mesh(hybrid)
    for module in model:
        if list(module.parameters()):
            fully_shard(module, mesh=here, **options)
    return fully_shard(model, mesh=here, **options)


def joint(seed: int = 1):
    return batch(rows=4 * dist.get_world_size(), seed=seed)


def part(rows, worker: int):
    return tuple(t.chunk(dist.get_world_size())[worker] for t in rows)


def own(seed: int = 1):
    """This process's rows of the joint batch."""
    return part(joint(seed), dist.get_rank())


def whole(tensors) -> list[torch.Tensor]:
    return [t.detach().full_tensor() if hasattr(t, "full_tensor") else t.detach() for t in tensors]


def local(parameters) -> list[torch.Tensor]:
    """This process's part of each."""
    return [p.detach().to_local() if hasattr(p, "to_local") else p.detach() for p in parameters]


def bits_agree(tensors) -> bool:
    """Whether these tensors have the same bits in all processes."""
    mine = hashlib.sha256(b"".join(t.detach().contiguous().numpy().tobytes() for t in tensors)).hexdigest()
    all_of_them = [""] * dist.get_world_size()
    dist.all_gather_object(all_of_them, mine)
    return len(set(all_of_them)) == 1


def reference_walk(rows, perturbation: Perturbation):
    """The paper's algorithm, in one process."""
    x, y = rows
    return paper_walk(network(), lambda m: cross_entropy(m(x), y), perturbation)


def reference_fold(rows, perturbation: Perturbation) -> np.ndarray:
    return reference_walk(rows, perturbation)[-1]


def own_folds(rows, perturbation: Perturbation) -> np.ndarray:
    """The mean of what each worker alone would fold."""
    workers = range(dist.get_world_size())
    return np.mean([reference_fold(part(rows, worker), perturbation) for worker in workers], axis=0)
