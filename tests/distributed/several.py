"""What the checks of DDP, FSDP2 and the family share: each process's part of a batch, shards, and the reference."""

import hashlib
import time
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from gasam import Perturbation, Schedule, SharpBackward, ga_sam
from problems import batch, network, paper_walk, strengths_of
from tolerances import EXACT, error, same_bits

PATIENCE = 1.5  # seconds until a process gives up on the others


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


def assert_schedule_follows_the_joint_loss(model) -> None:
    """The strengths are those of the mean loss of all workers, computed again in plain Python."""
    sharp = SharpBackward(model, ga_sam(budget=0.05, cap=0.05), schedule=Schedule(progress=0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    (x, y), losses, strengths = own(), [], []
    for _ in range(45):
        optimizer.zero_grad()
        loss = sharp(lambda: cross_entropy(model(x), y)).clone()
        strengths.append(sharp.last.strength)
        optimizer.step()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
    of_all = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, strengths)
    assert all(other == strengths for other in of_all)
    assert max(strengths) > 0
    assert strengths == pytest.approx(strengths_of(losses, 0.1), abs=EXACT)


def assert_walk_has_its_weight(model, gradients_of, around=None) -> None:
    """The gradient of a walk of weight 3 is g_0 + 3 (fold - g_0), for both risks; every third step walks."""
    x, y = own()

    def gradient(sharp=None):
        model.zero_grad()
        sharp(lambda: cross_entropy(model(x), y)) if sharp else cross_entropy(model(x), y).backward()
        return torch.cat([g.reshape(-1).clone() for g in gradients_of()])

    clean = gradient()
    for risk in ("mean", "final"):
        walk = replace(ga_sam(0.3, steps=2), risk=risk)
        fold = gradient(SharpBackward(model, walk, around=around))
        sharp = SharpBackward(model, walk, schedule=Schedule(every=3), around=around)
        found, passes = gradient(sharp), [len(sharp.last.losses)]
        assert error(found, clean + 3 * (fold - clean)) < EXACT
        for _ in range(3):
            gradient(sharp)
            passes.append(len(sharp.last.losses))
        assert passes == [3, 1, 1, 3]


def assert_others_give_up(make) -> None:
    """The last process fails in its second pass and stays alive: the others leave the walk by an error, and home."""
    model = make(dist.new_group(timeout=timedelta(seconds=PATIENCE)))
    home = [weights.clone() for weights in local(model.parameters())]
    fails = dist.get_rank() == dist.get_world_size() - 1
    (x, y), calls = batch(), []

    def loss():
        calls.append(1)
        if len(calls) == 2 and fails:
            raise ValueError("a batch that can't be read")
        return cross_entropy(model(x), y)

    with pytest.raises((RuntimeError, ValueError), match="can't be read" if fails else "imed out"):
        SharpBackward(list(model.parameters()), ga_sam(0.3, steps=2))(loss)
    if fails:
        time.sleep(2 * PATIENCE)
    if hasattr(model, "reset_iter_state"):
        model.reset_iter_state()  # FSDP asks for it after a failure
    assert len(calls) == 2
    assert same_bits(local(model.parameters()), home)
    dist.barrier()
