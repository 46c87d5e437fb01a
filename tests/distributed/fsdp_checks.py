"""FSDP2 with uneven and empty shards against the reference, or the walk, on one process."""

import itertools
import math
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from processes import Counting, bits_agree, mean, refusal, worst
from shared_checks import (
    joint,
    mesh,
    others_give_up,
    own,
    part,
    reference_walk,
    schedule_error,
    shard,
    weighted_walk_error,
    whole,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy

from gasam import SCALES, Perturbation, SharpBackward, SharpnessAware, displaced, ga_sam, sam
from problems import GRANULARITIES, TEN_WALKS, network
from tolerances import error, flat, same_bits


def walks() -> list[Perturbation]:
    """Every scale with four of the five granularities; norms, steps, risks and sizes take turns."""
    found = []
    for i, (scale, j) in enumerate(itertools.product(SCALES, range(4))):
        granularity = GRANULARITIES[(i + j) % 5]
        size = [{"epsilon": 0.2}, {"budget": 0.3, "cap": 0.05}][i % 2]
        options = {"norm": (2.0, math.inf, 1.5)[i % 3], "steps": 1 + i // 2 % 2, "risk": ("mean", "final")[i // 4 % 2]}
        found.append(Perturbation(scale=scale, granularity=granularity, **size, **options))
    return found


def walk_error(model, chosen, before: float = 0.0) -> float:
    """Of the folded gradient and of |a|; the weights must be home."""
    found, (x, y) = 0.0, own()
    home = [p.detach().to_local().clone() for p in model.parameters()]
    for perturbation in chosen:
        offsets, _, _, folded = reference_walk(perturbation)
        sharp = SharpBackward(model.named_parameters(), perturbation)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, before) if before else None
        sharp(lambda: cross_entropy(model(x), y))
        found = max(found, error(flat(whole(p.grad for p in model.parameters())) - before, folded))
        found = max(found, error(torch.stack(sharp.last.norms), [float(np.sqrt(a @ a)) for a in offsets]))
        assert same_bits([p.detach().to_local() for p in model.parameters()], home)
    return worst(found)


def sharded_parameters(model) -> list:
    for module in (model[0], model[2], model):
        module.reshard()
    return list(model.parameters())


def gradients_of(model):
    return whole([p.grad for p in sharded_parameters(model)])


def stale_error() -> float:
    """Gathered weights that FSDP would keep, after a backward and after a forward without one."""
    model = shard(reshard_after_forward=False)
    model.set_reshard_after_backward(False)
    (x, y), found = own(), 0.0
    for perturbation in (TEN_WALKS["ga_sam"], TEN_WALKS["weight_rms"]):
        *_, folded = reference_walk(perturbation)
        model.zero_grad()
        sharp = SharpBackward(params := sharded_parameters(model), perturbation)
        with torch.no_grad():
            model(x)
        sharp(lambda: model(x).detach().sum() * 0 + cross_entropy(model(x), y))
        found = max(found, error(flat(whole(p.grad for p in params)), folded))
    return worst(found)


def collectives() -> dict[str, list[int]]:
    """All-reduces of the walk: for K = 1, 2, by norm, with a scale that asks for both norms. FSDP itself has none."""
    counts: dict[str, list[int]] = {}
    model, (x, y) = shard(), own()
    for norm, steps in itertools.product((2.0, math.inf), (1, 2)):
        walk = Perturbation(epsilon=0.1, norm=norm, scale="weight_over_gradient", steps=steps)
        sharp = SharpBackward(model.parameters(), walk)
        for _ in range(21):  # these are measured in full
            sharp(lambda: cross_entropy(model(x), y))
        with Counting() as mode:
            sharp(lambda: cross_entropy(model(x), y))
        counts.setdefault(str(norm), []).append(mode.all_reduces)
    return counts


def displaced_error() -> float:
    parameters = list(shard().parameters())
    home = whole(parameters)
    with displaced(parameters, [torch.full_like(p, 0.5) for p in parameters]):
        found = error(flat(whole(parameters)), flat(home) + 0.5)
    assert same_bits(whole(parameters), home)
    return worst(found)


def closure_error() -> float:
    model, (x, y), walk = shard(), own(), ga_sam(0.2, norm=2.0, steps=2)
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), walk)
    before = flat(whole(model.parameters()))
    optimizer.step(lambda: (loss := cross_entropy(model(x), y)).backward() or loss)
    return worst(error(before - flat(whole(model.parameters())), reference_walk(walk)[-1]))


def mixed_precision_error() -> float:
    """The walk is in float32 over weights that are gathered in bfloat16: passes at the rounded points."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, rounded = shard(network(torch.float32), mp_policy=policy), network(torch.float32).bfloat16()
    parts = [part(joint(), worker) for worker in range(dist.get_world_size())]

    def gradient_at(weights) -> torch.Tensor:
        nn.utils.vector_to_parameters(weights.bfloat16(), rounded.parameters())
        losses = [cross_entropy(rounded(x.bfloat16()), y) for x, y in parts]
        gradients = [flat(torch.autograd.grad(loss, list(rounded.parameters()))).float() for loss in losses]
        return torch.stack(gradients).mean(0)

    home = flat(network(torch.float32).parameters())
    g = gradient_at(home)
    expected = gradient_at(home + 0.3 * g / g.norm())
    x, y = own()
    SharpBackward(model.parameters(), sam(0.3))(lambda: cross_entropy(model(x.bfloat16()), y))
    return worst(error(flat(whole(p.grad for p in model.parameters())), expected))


def whole_and_sharded_error() -> float:
    """A parameter that FSDP was told to ignore walks along; its gradient is reduced by the caller's own hook."""
    model = network()
    kept = [model[2].weight]
    fully_shard(model[0], mesh=mesh())
    fully_shard(model, mesh=mesh(), ignored_params=set(kept))
    kept[0].register_post_accumulate_grad_hook(lambda p: mean(p.grad))
    (x, y), found = own(), 0.0
    for perturbation in (TEN_WALKS["ga_sam, budget and cap"], TEN_WALKS["asam by filter"], TEN_WALKS["sam"]):
        *_, folded = reference_walk(perturbation)
        model.zero_grad()
        SharpBackward(model.named_parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        found = max(found, error(flat(whole(p.grad for p in model.parameters())), folded))
    return worst(found)


def train(model, optimizer, seeds, agree=None) -> None:
    sharp = SharpBackward(model.parameters(), ga_sam(0.3, steps=2))
    for seed in seeds:
        x, y = own(seed)
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
        optimizer.step()
        if agree is not None:
            agree.append(bits_agree([*whole(model.parameters()), *sharp.last.norms]))


def weights_agree() -> list[bool]:
    agree: list[bool] = []
    model = shard(hybrid=dist.get_world_size() == 4)
    train(model, torch.optim.Adam(model.parameters(), lr=0.1), range(5), agree)
    return agree


def resumed() -> bool:
    """Two steps, a distributed checkpoint, two more in another model: the bits of four steps on end."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    model = shard()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, (0, 1))
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    train(model, optimizer, (2, 3))
    again = shard(network(seed=9))
    optimizer = torch.optim.Adam(again.parameters(), lr=0.1)
    weights, state = get_state_dict(again, optimizer)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(again, optimizer, model_state_dict=weights, optim_state_dict=state)
    train(again, optimizer, (2, 3))
    return same_bits(whole(again.parameters()), whole(model.parameters()))


def doubt_reaches_all() -> bool:
    """The loss of one process is infinite and its gradient is not: all stay home."""
    model, (x, y) = shard(), own()
    sharp = SharpBackward(model.parameters(), ga_sam(0.3))
    extra = math.inf if dist.get_rank() == 1 else 0.0
    sharp(lambda: cross_entropy(model(x), y) + extra)
    return worst(float(not sharp.last.not_finite) + sharp.last.norms[-1].item()) == 0


def unreduced() -> str:
    model, (x, y) = shard(), own()
    model.set_requires_gradient_sync(False)
    return refusal(lambda: SharpBackward(model.parameters(), ga_sam(0.3))(lambda: cross_entropy(model(x), y)))


def by_columns() -> str:
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh(), [Shard(1)]))
    return refusal(lambda: SharpBackward([("some.weight", weight)], ga_sam(0.3)))


CHECKS_OF_FOUR = {
    "fsdp, walks": lambda: walk_error(shard(), walks()),
    "fsdp, hybrid": lambda: walk_error(shard(hybrid=True), walks()[8:12]),
    "fsdp, weights agree": weights_agree,
    "fsdp, resumed": resumed,
}
CHECKS = {
    "fsdp, walks": lambda: walk_error(shard(), walks()),
    "fsdp, accumulated": lambda: walk_error(shard(), walks()[::6], before=1.0),
    "fsdp, stale": stale_error,
    "fsdp, collectives": collectives,
    "fsdp, displaced": displaced_error,
    "fsdp, closure": closure_error,
    "fsdp, mixed precision": mixed_precision_error,
    "fsdp, whole and sharded": whole_and_sharded_error,
    "fsdp, weights agree": weights_agree,
    "fsdp, resumed": resumed,
    "fsdp, doubt": doubt_reaches_all,
    "fsdp, schedule": lambda: worst(schedule_error(shard())),
    "fsdp, weighted walk": lambda: worst(weighted_walk_error(shard(), gradients_of)),
    "refused: not reduced": unreduced,
    "refused: columns": by_columns,
    "fsdp, failure": lambda: others_give_up(
        lambda group: fully_shard(network(), mesh=DeviceMesh.from_group(group, "cpu"))
    ),
}
