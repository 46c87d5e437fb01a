"""A small network sharded by FSDP2, each process's part of the batch, and the reference on one process."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from gasam import SCALES, Perturbation
from gasam.perturbation import GRANULARITIES
from problems import batch, network, paper_walk

EPSILON = {"one": 0.3, "gradient_strength": 2.0, "weight_over_gradient": 0.3, "inverse_gradient": 0.3}


def mesh(hybrid: bool = False):
    world = dist.get_world_size()
    shape, names = ((2, world // 2), ("replica", "shard")) if hybrid else ((world,), ("shard",))
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def shard(model=None, hybrid: bool = False, **options):
    """5 and 3 rows: uneven with two processes, and some have none with four."""
    model = network() if model is None else model
    here = mesh(hybrid)
    fully_shard(model[0], mesh=here, **options)
    fully_shard(model[2], mesh=here, **options)
    return fully_shard(model, mesh=here, **options)


def joint(seed: int = 1):
    return batch(rows=4 * dist.get_world_size(), seed=seed)


def own(seed: int = 1):
    return tuple(t.chunk(dist.get_world_size())[dist.get_rank()] for t in joint(seed))


def whole(tensors) -> list[torch.Tensor]:
    return [t.detach().full_tensor() for t in tensors]


def reference_walk(perturbation: Perturbation):
    x, y = joint()
    return paper_walk(network(), lambda model: cross_entropy(model(x), y), perturbation)


def perturbations(norms, steps, granularities=GRANULARITIES, scales=SCALES):
    for scale, granularity, norm, K in itertools.product(scales, granularities, norms, steps):  # noqa: N806
        risk = "mean" if K > 1 else "final"
        epsilon = EPSILON.get(scale, 0.2)
        options = {"norm": norm, "scale": scale, "granularity": granularity, "steps": K, "risk": risk}
        yield Perturbation(epsilon=epsilon, **options)
        yield Perturbation(budget=0.3, cap=0.05, **options)


def sharded_parameters(model) -> list:
    for module in (model[0], model[2], model):
        module.reshard()
    return list(model.parameters())
