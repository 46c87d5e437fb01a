"""FSDP2 with uneven and empty shards against the reference, or the walk, on one process."""

import itertools
import math
import tempfile

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from several import bits_agree, joint, local, mesh, own, part, reference_fold, reference_walk, shard, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from gasam import SCALES, Perturbation, SharpBackward, ga_sam, sam
from gasam.analysis import displaced
from problems import GRANULARITIES, TEN_WALKS, network
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.usefixtures("process_group")


def walks() -> list[Perturbation]:
    """Every scale with four of the five granularities; norms, steps, risks and sizes take turns."""
    found = []
    for i, (scale, j) in enumerate(itertools.product(SCALES, range(4))):
        granularity = GRANULARITIES[(i + j) % 5]
        size = [{"epsilon": 0.2}, {"budget": 0.3, "cap": 0.05}][i % 2]
        options = {"norm": (2.0, math.inf, 1.5)[i % 3], "steps": 1 + i // 2 % 2, "risk": ("mean", "final")[i // 4 % 2]}
        found.append(Perturbation(scale=scale, granularity=granularity, **size, **options))
    return found


def gradients_of(model) -> torch.Tensor:
    return flat(whole(p.grad for p in model.parameters()))


@pytest.mark.parametrize(("chosen", "hybrid", "before"), [
    (walks(), False, 0.0), (walks()[8:12], True, 0.0), (walks()[::6], False, 1.0)
], ids=["shards", "replicas", "accumulated"])  # fmt: skip
def test_shards_walk_as_one_process_does(chosen, hybrid, before):
    """The folded gradient and |a|, over uneven shards."""
    model, (x, y) = shard(hybrid=hybrid), own()
    home = [weights.clone() for weights in local(model.parameters())]
    for perturbation in chosen:
        offsets, _, _, folded = reference_walk(joint(), perturbation)
        sharp = SharpBackward(model.named_parameters(), perturbation)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, before) if before else None
        sharp(lambda: cross_entropy(model(x), y))
        assert error(gradients_of(model) - before, folded) < EXACT
        assert error(torch.stack(sharp.last.norms), [float(np.sqrt(a @ a)) for a in offsets]) < EXACT
        assert same_bits(local(model.parameters()), home)


def sharded(model):
    """FSDP's own parameters, also after a pass that left the gathered ones."""
    for module in (model[0], model[2], model):
        module.reshard()
    return model


def test_gathered_weights_are_never_out_of_date():
    """Those that FSDP would keep, after a backward and after a forward without one."""
    model, (x, y) = shard(reshard_after_forward=False), own()
    model.set_reshard_after_backward(False)
    for perturbation in (TEN_WALKS["ga_sam"], TEN_WALKS["weight_rms"]):
        model.zero_grad()
        sharp = SharpBackward(params := list(sharded(model).parameters()), perturbation)
        with torch.no_grad():
            model(x)
        sharp(lambda: model(x).detach().sum() * 0 + cross_entropy(model(x), y))
        assert error(flat(whole(p.grad for p in params)), reference_fold(joint(), perturbation)) < EXACT


class Counting(TorchDispatchMode):
    """Counts all-reduces; torch's own CommDebugMode does not survive FSDP."""

    def __init__(self) -> None:
        super().__init__()
        self.all_reduces = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.all_reduces += "all_reduce" in str(func) or "allreduce" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", [2.0, math.inf])
@pytest.mark.parametrize(("steps", "expected"), [(1, 1), (2, 4)])
def test_one_collective_has_all_norms_of_a_pass(norm, steps, expected):
    """One for all sums over a pass's gradient; with K > 1 one more in each step, for the length of the position.

    The scale asks for both norms, and FSDP itself has no all-reduce.
    """
    model, (x, y) = shard(), own()
    walk = Perturbation(epsilon=0.1, norm=norm, scale="weight_over_gradient", steps=steps)
    sharp = SharpBackward(model.parameters(), walk)
    for _ in range(21):  # these are measured in full
        sharp(lambda: cross_entropy(model(x), y))
    with Counting() as mode:
        sharp(lambda: cross_entropy(model(x), y))
    assert mode.all_reduces == expected


def test_displaced_holds_the_offset():
    parameters = list(shard().parameters())
    home = whole(parameters)
    with displaced(parameters, [torch.full_like(p, 0.5) for p in parameters]):
        assert error(flat(whole(parameters)), flat(home) + 0.5) < EXACT
    assert same_bits(whole(parameters), home)


def test_mixed_precision_policy():
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
    assert error(gradients_of(model), expected) < 1e-6  # float32 against float32, the same roundings to bfloat16


def test_tensors_that_are_whole_walk_along():
    """A parameter that FSDP was told to ignore; its gradient is reduced by the caller's own hook."""

    def mean(parameter) -> None:
        dist.all_reduce(parameter.grad)  # gloo has no mean
        parameter.grad.div_(dist.get_world_size())

    model, (x, y) = network(), own()
    fully_shard(model[0], mesh=mesh())
    fully_shard(model, mesh=mesh(), ignored_params={model[2].weight})
    model[2].weight.register_post_accumulate_grad_hook(mean)
    for perturbation in (TEN_WALKS["ga_sam, budget and cap"], TEN_WALKS["asam by filter"], TEN_WALKS["sam"]):
        model.zero_grad()
        SharpBackward(model.named_parameters(), perturbation)(lambda: cross_entropy(model(x), y))
        assert error(gradients_of(model), reference_fold(joint(), perturbation)) < EXACT


def train(model, optimizer, seeds) -> None:
    sharp = SharpBackward(model.parameters(), ga_sam(0.3, steps=2))
    for seed in seeds:
        x, y = own(seed)
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
        optimizer.step()
        assert bits_agree([*whole(model.parameters()), *sharp.last.norms])


def test_all_processes_have_the_same_bits_and_resume_from_a_distributed_checkpoint():
    """Two steps, a distributed checkpoint, two more in another model: the bits of four steps on end."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    model, again = shard(), shard(network(seed=9))
    optimizer, resumed = (torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, again))
    train(model, optimizer, (0, 1))
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    train(model, optimizer, (2, 3))
    weights, state = get_state_dict(again, resumed)
    checkpoint.load({"model": weights, "optimizer": state}, checkpoint_id=folder[0])
    set_state_dict(again, resumed, model_state_dict=weights, optim_state_dict=state)
    train(again, resumed, (2, 3))
    assert same_bits(whole(again.parameters()), whole(model.parameters()))
    replicated = shard(hybrid=True)
    train(replicated, torch.optim.Adam(replicated.parameters(), lr=0.1), range(5))


def test_loss_that_is_not_finite_in_one_process_keeps_all_at_home():
    """Its gradient is finite."""
    model, (x, y) = shard(), own()
    sharp = SharpBackward(model.parameters(), ga_sam(0.3))
    extra = math.inf if dist.get_rank() == 1 else 0.0
    sharp(lambda: cross_entropy(model(x), y) + extra)
    assert sharp.last.not_finite
    assert sharp.last.norms[-1] == 0


def test_what_can_not_be_right_is_refused_by_name():
    model, (x, y) = shard(), own()
    model.set_requires_gradient_sync(False)
    with pytest.raises(RuntimeError, match=r"set_requires_gradient_sync\(False\) keeps FSDP from reducing"):
        SharpBackward(model.parameters(), ga_sam(0.3))(lambda: cross_entropy(model(x), y))
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh(), [Shard(1)]))
    with pytest.raises(TypeError, match=r"'some.weight' is a DTensor placed as \(Shard\(dim=1\),\)"):
        SharpBackward([("some.weight", weight)], ga_sam(0.3))
