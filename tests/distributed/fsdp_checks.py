"""Started by torchrun: FSDP2 with uneven and empty shards against the reference on one process."""

import itertools
import math
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from processes import Counting, bits_agree, mean, refusal, run, worst
from scheduled import overflow_gradients, schedule_error, weighted_walk_error
from sharded_problem import joint, mesh, own, perturbations, reference_walk, shard, sharded_parameters, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy

import gasam.portions
from gasam import Pass, Perturbation, SharpBackward, SharpnessAware, climb, displaced, ga_sam
from gasam.portions import Limits
from gasam.trace import NOT_FINITE
from problems import network
from tolerances import error, flat, same_bits


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


def every_walk() -> float:
    chosen = list(perturbations((2.0, math.inf), (2,)))
    if dist.get_world_size() == 2:
        chosen += [*perturbations((1.5,), (2,)), *perturbations((2.0, math.inf), (1,), ("layer",))]
    return walk_error(shard(), chosen)


def cut_walks() -> float:
    """Shards of four weights and more are cut, so that filters lie in several stretches."""
    before, gasam.portions.CPU = gasam.portions.CPU, Limits(small=4, largest=6)
    try:
        chosen = perturbations((2.0, math.inf), (2,), ("filter", "element"), ("gradient_strength", "weight"))
        return walk_error(shard(), chosen, before=1.0)
    finally:
        gasam.portions.CPU = before


def hybrid_walks() -> float:
    return walk_error(shard(hybrid=True), perturbations((2.0, math.inf), (2,), scales=("weight_over_gradient",)))


def stale_error() -> float:
    """Gathered weights that FSDP would keep, after a backward and after a forward without one."""
    model = shard(reshard_after_forward=False)
    model.set_reshard_after_backward(False)
    (x, y), found = own(), 0.0
    for perturbation in perturbations((math.inf,), (2,), ("layer",)):
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
        sharp = SharpBackward(
            model.parameters(), Perturbation(epsilon=0.1, norm=norm, scale="weight_over_gradient", steps=steps)
        )
        model.zero_grad()
        with Counting() as mode:
            sharp(lambda: cross_entropy(model(x), y))
        counts.setdefault(str(norm), []).append(mode.all_reduces)
    return counts


def offset_error() -> float:
    model, (x, y) = shard(), own()
    perturbation = next(perturbations((2.0,), (3,), ("filter",), ("weight",)))
    offsets, *_ = reference_walk(perturbation)

    def evaluate(k: int) -> Pass:
        model.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return Pass(loss.detach())

    found = 0.0
    for visit in climb(model.parameters(), evaluate, perturbation):
        if visit.k:
            found = max(found, error(flat(whole(visit.offset())), offsets[visit.k]))
    parameters = list(model.parameters())
    home = whole(parameters)
    with displaced(parameters, [torch.full_like(p, 0.5) for p in parameters]):
        found = max(found, error(flat(whole(parameters)), flat(home) + 0.5))
    assert same_bits(whole(parameters), home)
    return worst(found)


def closure_error() -> float:
    model, (x, y) = shard(), own()
    perturbation = next(perturbations((2.0,), (2,), ("layer",), ("gradient_strength",)))
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), perturbation)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    before = flat(whole(model.parameters()))
    optimizer.step(closure)
    *_, folded = reference_walk(perturbation)
    return worst(error(before - flat(whole(model.parameters())), folded))


def mixed_precision_error() -> float:
    """The walk is in float32 over weights that are gathered in bfloat16: passes at the rounded points."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, single = shard(network(torch.float32), mp_policy=policy), network(torch.float32)
    rounded = network(torch.float32).bfloat16()
    parts = list(zip(*(t.chunk(dist.get_world_size()) for t in joint()), strict=True))

    def gradient_at(weights: torch.Tensor) -> torch.Tensor:
        nn.utils.vector_to_parameters(weights.bfloat16(), rounded.parameters())
        losses = [cross_entropy(rounded(x.bfloat16()), y) for x, y in parts]
        gradients = [flat(torch.autograd.grad(loss, list(rounded.parameters()))).float() for loss in losses]
        return torch.stack(gradients).mean(0)

    home = flat(single.parameters())
    g = gradient_at(home)
    expected = gradient_at(home + 0.3 * g / g.norm())
    sharp = SharpBackward(model.parameters(), gasam.sam(0.3))
    x, y = own()
    sharp(lambda: cross_entropy(model(x.bfloat16()), y))
    return worst(error(flat(whole(p.grad for p in model.parameters())), expected))


def whole_and_sharded_error() -> float:
    """A parameter that FSDP was told to ignore walks along; its gradient is reduced by the caller's own hook."""
    model = network()
    kept = [model[2].weight]
    fully_shard(model[0], mesh=mesh())
    fully_shard(model, mesh=mesh(), ignored_params=set(kept))
    kept[0].register_post_accumulate_grad_hook(lambda p: mean(p.grad))
    (x, y), found = own(), 0.0
    for perturbation in perturbations((2.0, math.inf), (1,), scales=("gradient_strength",)):
        *_, folded = reference_walk(perturbation)
        model.zero_grad()
        SharpBackward(model.named_parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        gradients = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        found = max(found, error(flat(gradients), folded))
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
    return worst(float(sharp.last.active != NOT_FINITE) + sharp.last.norms[-1].item()) == 0


def unreduced() -> str:
    model, (x, y) = shard(), own()
    model.set_requires_gradient_sync(False)
    return refusal(lambda: SharpBackward(model.parameters(), ga_sam(0.3))(lambda: cross_entropy(model(x), y)))


def by_columns() -> str:
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh(), [Shard(1)]))
    return refusal(lambda: SharpBackward([("some.weight", weight)], ga_sam(0.3)))


CHECKS = {
    "schedule": lambda: worst(schedule_error(shard(), own())),
    "overflow": lambda: overflow_gradients(
        shard(), own(), lambda model: whole([p.grad for p in sharded_parameters(model)])
    ),
    "weighted walk": lambda: worst(
        weighted_walk_error(shard(), own(), lambda model: whole([p.grad for p in sharded_parameters(model)]))
    ),
    "walks": every_walk,
    "cut": cut_walks,
    "stale": stale_error,
    "collectives": collectives,
    "offsets": offset_error,
    "closure": closure_error,
    "mixed precision": mixed_precision_error,
    "whole and sharded": whole_and_sharded_error,
    "weights agree": weights_agree,
    "resumed": resumed,
    "doubt": doubt_reaches_all,
    "refused: not reduced": unreduced,
    "refused: columns": by_columns,
}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    checks = {"walks": every_walk, "hybrid": hybrid_walks, "weights agree": weights_agree, "resumed": resumed}
    run(CHECKS if dist.get_world_size() == 2 else checks, sys.argv[1])
    dist.destroy_process_group()
