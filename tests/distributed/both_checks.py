"""What holds with DDP and with FSDP2 alike: closures, schedules, and what happens if one process fails."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from several import joint, local, own, own_folds, reference_fold, shard, whole
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import Perturbation, Schedule, SharpBackward, SharpnessAware, ga_sam, per_worker
from problems import batch, closure_of, network, strengths_of
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.usefixtures("process_group")
PATIENCE = 1.5  # seconds until a process gives up on the others
WRAPPED = {"DDP": DistributedDataParallel, "DDP, own walks": DistributedDataParallel, "FSDP2": shard}


@pytest.fixture(params=WRAPPED)
def made(request):
    """A wrapped model, `around` for its passes, and the reference for its folded gradient."""
    model = WRAPPED[request.param](network())
    return (model, per_worker(model), own_folds) if "own" in request.param else (model, None, reference_fold)


@pytest.mark.parametrize("risk", ["mean", "final"])
def test_closures(made, risk):
    (model, around, expected), (x, y), walk = made, own(), Perturbation(epsilon=0.3, steps=2, risk=risk)
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), walk, around=around)
    before, closure = flat(whole(model.parameters())).clone(), closure_of(lambda: cross_entropy(model(x), y))
    if around is not None and risk == "mean":
        with pytest.raises(RuntimeError, match="use SharpBackward"):
            optimizer.step(closure)
        return
    optimizer.step(closure)
    assert error(before - flat(whole(model.parameters())), expected(joint(), walk)) < EXACT


def test_schedule_follows_the_mean_loss_of_all_workers(made):
    """The strengths are those of the mean loss of all workers, computed again in plain Python."""
    model, around, _ = made
    walk, schedule = ga_sam(budget=0.05, cap=0.05), Schedule(progress=0.1)
    sharp = SharpBackward(model, walk, schedule=schedule, around=around)
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


def test_walk_on_every_third_step_has_its_weight_and_its_passes(made):
    """The gradient of a walk of weight 3 is g_0 + 3 (fold - g_0), for both risks; every third step walks."""
    (model, around, _), (x, y) = made, own()

    def gradient(sharp=None):
        model.zero_grad()
        sharp(lambda: cross_entropy(model(x), y)) if sharp else cross_entropy(model(x), y).backward()
        return flat(whole(p.grad for p in model.parameters())).clone()

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


@pytest.mark.parametrize("make", [
    lambda group: DistributedDataParallel(network(), process_group=group),
    lambda group: fully_shard(network(), mesh=DeviceMesh.from_group(group, "cpu")),
])  # fmt: skip
def test_no_process_waits_for_ever_for_one_that_failed(make):
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

    # The first whose patience ends leaves the group, which others may notice before their own ends.
    with pytest.raises((RuntimeError, ValueError), match="can't be read" if fails else "imed out|closed by peer"):
        SharpBackward(list(model.parameters()), ga_sam(0.3, steps=2))(loss)
    if fails:
        time.sleep(2 * PATIENCE)
    if hasattr(model, "reset_iter_state"):
        model.reset_iter_state()  # FSDP asks for it after a failure
    assert len(calls) == 2
    assert same_bits(local(model.parameters()), home)
    dist.barrier()
