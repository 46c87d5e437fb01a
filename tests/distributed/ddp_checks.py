"""DDP with a shared walk and with each worker's own, against the reference on one process."""

import pytest
import torch
from several import bits_agree, joint, own, own_folds, reference_fold
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import SharpBackward, ga_sam, per_worker, same_noise, shared_walk, together
from problems import TEN_WALKS, at_home, network
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
@pytest.mark.parametrize(("make_around", "expected", "all_reduces"), [
    # Without a word about it, what is not synchronised is each worker's own, as the guide says.
    (None, [own_folds, reference_fold], lambda steps: steps + 1),
    (shared_walk, [reference_fold, reference_fold], lambda steps: 2 * steps + 1),
    (per_worker, [own_folds, own_folds], lambda steps: 1),
])  # fmt: skip
def test_accumulation_in_no_sync(make_around, expected, all_reduces, steps):
    """The last micro-batch is reduced: a shared walk needs an all-reduce for each pass, own walks one in all."""
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
