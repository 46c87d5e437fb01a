"""DDP with a shared walk and with each worker's own, against the reference on one process."""

import pytest
import torch
from several import (
    assert_others_give_up,
    assert_schedule_follows_the_joint_loss,
    assert_walk_has_its_weight,
    bits_agree,
    joint,
    own,
    own_folds,
    reference_fold,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import Perturbation, SharpBackward, SharpnessAware, ga_sam, per_worker, same_noise, shared_walk, together
from problems import TEN_WALKS, at_home, closure_of, network
from tolerances import EXACT, error, flat

pytestmark = pytest.mark.usefixtures("process_group")
KINDS = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}]


class Partly(nn.Sequential):
    """A network with a layer that nobody asks."""

    def __init__(self) -> None:
        super().__init__(*network())
        self.unused = nn.Linear(2, 2).double()

    def forward(self, x):
        for layer in list(self)[:3]:
            x = layer(x)
        return x


def wrap(**options) -> DistributedDataParallel:
    model = Partly() if "find_unused_parameters" in options else network()
    return DistributedDataParallel(model, **options)


def fold(model, perturbation, around=None, *, before: float = 0.0, enabled: bool = True) -> torch.Tensor:
    """What a call adds to gradients that are there already."""
    sharp = SharpBackward(model.named_parameters(), perturbation, around=around)
    sharp.enabled = enabled
    used = [p for layer in list(model.module)[:3] for p in layer.parameters()]
    for parameter in used:
        parameter.grad = torch.full_like(parameter, before) if before else None
    x, y = own()
    with at_home(model.parameters()):
        sharp(lambda: cross_entropy(model(x), y))
    return flat([p.grad for p in used]) - before


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_shared_walk_equals_one_process_on_the_joint_batch(kind):
    """Every second one with gradients of earlier micro-batches."""
    model = wrap(**kind)
    for i, walk in enumerate(TEN_WALKS.values()):
        assert error(fold(model, walk, before=float(i % 2)), reference_fold(joint(), walk)) < EXACT


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_own_walks_equal_the_mean_of_the_workers_folds(kind):
    model = wrap(**kind)
    around = together(same_noise(), per_worker(model))
    if "static_graph" in kind:
        with pytest.raises(RuntimeError, match=r"run the first step with sharp\.enabled = False"):
            fold(model, ga_sam(0.1), around)
        model = wrap(**kind)
        around = together(same_noise(), per_worker(model))
        fold(model, ga_sam(0.1), around, enabled=False)
    for i, walk in enumerate(TEN_WALKS.values()):
        assert error(fold(model, walk, around, before=float(i % 2)), own_folds(joint(), walk)) < EXACT


def counting(model) -> list:
    """Grows by one with each all-reduce; the model fits into one bucket."""
    calls: list[int] = []
    model.register_comm_hook(None, lambda state, bucket: calls.append(1) or allreduce_hook(state, bucket))
    return calls


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_own_walks_need_one_all_reduce_however_many_steps(steps):
    for make_around, expected in ((shared_walk, steps + 1), (per_worker, 1)):
        model = wrap()
        calls = counting(model)
        fold(model, ga_sam(0.3, steps=steps), make_around(model))
        assert len(calls) == expected


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize(("make_around", "expected", "all_reduces"), [
    # Without a word about it, what is not synchronised is each worker's own, as the guide says.
    (None, [own_folds, reference_fold], lambda steps: steps + 1),
    (shared_walk, [reference_fold, reference_fold], lambda steps: 2 * steps + 1),
    (per_worker, [own_folds, own_folds], lambda steps: 1),
])  # fmt: skip
def test_accumulation_in_no_sync(make_around, expected, all_reduces, steps):
    walk, model = ga_sam(0.3, steps=steps), wrap(gradient_as_bucket_view=True)
    calls = counting(model)
    sharp = SharpBackward(model.parameters(), walk, around=make_around(model) if make_around else None)
    for micro, seed in enumerate((1, 2)):
        x, y = own(seed)
        with model.no_sync() if micro == 0 else torch.enable_grad():
            sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
    folded = sum(fold_of(joint(seed), walk) for fold_of, seed in zip(expected, (1, 2), strict=True))
    assert error(flat([p.grad for p in model.parameters()]), folded) < EXACT
    assert len(calls) == all_reduces(steps)


@pytest.mark.parametrize(("risk", "own_walk"), [("mean", False), ("final", False), ("final", True), ("mean", True)])
def test_closures(risk, own_walk):
    model, (x, y), walk = wrap(), own(), Perturbation(epsilon=0.3, steps=2, risk=risk)
    around = per_worker(model) if own_walk else None
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), walk, around=around)
    before, closure = flat(model.parameters()), closure_of(lambda: cross_entropy(model(x), y))
    if own_walk and risk == "mean":
        with pytest.raises(RuntimeError, match="use SharpBackward"):
            optimizer.step(closure)
        return
    optimizer.step(closure)
    expected = (own_folds if own_walk else reference_fold)(joint(), walk)
    assert error(before - flat(model.parameters()), expected) < EXACT


@pytest.mark.parametrize("make_around", [shared_walk, per_worker])
@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.Adam])
def test_weights_are_the_same_bits_in_all_processes_after_every_step(make_around, base):
    model = DistributedDataParallel(network(torch.float32), gradient_as_bucket_view=True)
    sharp = SharpBackward(model.parameters(), ga_sam(0.3, steps=2), around=make_around(model))
    optimizer = base(model.parameters(), lr=0.1)
    for step in range(5):
        x, y = own(step)
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(model(x.float()), y))  # noqa: B023
        optimizer.step()
        assert bits_agree(model.parameters())


def test_schedule_follows_the_mean_loss_of_all_workers():
    assert_schedule_follows_the_joint_loss(wrap())


@pytest.mark.parametrize("own_walk", [False, True])
def test_walk_on_every_third_step_has_its_weight_and_its_passes(own_walk):
    model = wrap()
    around = per_worker(model) if own_walk else None
    assert_walk_has_its_weight(model, lambda: [p.grad for p in model.parameters()], around)


def test_no_process_waits_for_ever_for_one_that_failed():
    assert_others_give_up(lambda group: DistributedDataParallel(network(), process_group=group))
