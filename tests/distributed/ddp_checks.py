"""DDP with a shared walk and with each worker's own, against the reference on one process."""

import itertools

import torch
from processes import bits_agree, refusal, worst
from shared_checks import (
    joint,
    others_give_up,
    own,
    own_folds,
    reference_walk,
    schedule_error,
    weighted_walk_error,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import Perturbation, SharpBackward, SharpnessAware, ga_sam, per_worker, same_noise, shared_walk, together
from problems import TEN_WALKS, network
from tolerances import error, flat, same_bits

WALKS = list(TEN_WALKS.values())
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
    home = [p.detach().clone() for p in model.parameters()]
    for parameter in used:
        parameter.grad = torch.full_like(parameter, before) if before else None
    x, y = own()
    sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), home)
    return flat([p.grad for p in used]) - before


def shared_error() -> float:
    """Each kind of DDP with each walk; every second one with gradients of earlier micro-batches."""
    expected, found = [reference_walk(walk)[-1] for walk in WALKS], 0.0
    for kind in KINDS:
        model = wrap(**kind)
        for i, (walk, folded) in enumerate(zip(WALKS, expected, strict=True)):
            found = max(found, error(fold(model, walk, before=float(i % 2)), folded))
    return worst(found)


def per_worker_error() -> float:
    expected, found = [own_folds(joint(), walk) for walk in WALKS], 0.0
    for kind in KINDS:
        model = wrap(**kind)
        around = together(same_noise(), per_worker(model))
        if "static_graph" in kind:
            fold(model, WALKS[0], around, enabled=False)  # the first step is a plain one
        for i, (walk, folded) in enumerate(zip(WALKS, expected, strict=True)):
            found = max(found, error(fold(model, walk, around, before=float(i % 2)), folded))
    return worst(found)


def counting(model) -> list:
    """Grows by one with each all-reduce; the model fits into one bucket."""
    calls: list[int] = []
    model.register_comm_hook(None, lambda state, bucket: calls.append(1) or allreduce_hook(state, bucket))
    return calls


def all_reduces(make_around) -> list[int]:
    """How many a step, for K = 1, 2, 3."""
    counts = []
    for steps in (1, 2, 3):
        model = wrap()
        calls = counting(model)
        fold(model, ga_sam(0.3, steps=steps), make_around(model))
        counts.append(len(calls))
    return counts


def accumulated(make_around, expected) -> list[float]:
    """Two micro-batches, the first within no_sync; the error, and the number of all-reduces for K = 1, 2, 3."""
    found, counts = 0.0, []
    for steps in (1, 2, 3):
        walk, model = ga_sam(0.3, steps=steps), wrap(gradient_as_bucket_view=True)
        calls = counting(model)
        sharp = SharpBackward(model.parameters(), walk, around=make_around(model) if make_around else None)
        for micro, seed in enumerate((1, 2)):
            x, y = own(seed)
            with model.no_sync() if micro == 0 else torch.enable_grad():
                sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
        folded = sum(expected[micro](joint(seed), walk) for micro, seed in enumerate((1, 2)))
        found = max(found, error(flat([p.grad for p in model.parameters()]), folded))
        counts.append(len(calls))
    return [worst(found), counts]


def reference_fold(rows, walk):
    return reference_walk(walk, rows)[-1]


def closure_error(risk: str, make_around=None) -> float:
    model, (x, y) = wrap(), own()
    perturbation = Perturbation(epsilon=0.3, steps=2, risk=risk)
    around = make_around(model) if make_around else None
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), perturbation, around=around)
    before = flat(model.parameters())
    optimizer.step(lambda: (loss := cross_entropy(model(x), y)).backward() or loss)
    expected = (own_folds if make_around else reference_fold)(joint(), perturbation)
    return worst(error(before - flat(model.parameters()), expected))


def weights_agree() -> list[bool]:
    """After each of five steps, for both policies and two optimizers."""
    agree = []
    for make_around, base in itertools.product((shared_walk, per_worker), (torch.optim.SGD, torch.optim.Adam)):
        model = DistributedDataParallel(network(torch.float32), gradient_as_bucket_view=True)
        sharp = SharpBackward(model.parameters(), ga_sam(0.3, steps=2), around=make_around(model))
        optimizer = base(model.parameters(), lr=0.1)
        for step in range(5):
            x, y = own(step)
            optimizer.zero_grad()
            sharp(lambda: cross_entropy(model(x.float()), y))  # noqa: B023
            optimizer.step()
            agree.append(bits_agree(model.parameters()))
    return agree


def gradients_of(model):
    return [p.grad for p in model.parameters()]


def weighted_walk_errors() -> float:
    model = wrap()
    shared = weighted_walk_error(model, gradients_of)
    return max(shared, weighted_walk_error(model, gradients_of, per_worker(model)))


CHECKS = {
    "ddp, shared": shared_error,
    "ddp, per worker": per_worker_error,
    "ddp, all-reduces, shared": lambda: all_reduces(shared_walk),
    "ddp, all-reduces, per worker": lambda: all_reduces(per_worker),
    "ddp, accumulated, nothing said": lambda: accumulated(None, [own_folds, reference_fold]),
    "ddp, accumulated, shared": lambda: accumulated(shared_walk, [reference_fold, reference_fold]),
    "ddp, accumulated, per worker": lambda: accumulated(per_worker, [own_folds, own_folds]),
    "ddp, closure": lambda: max(closure_error("mean"), closure_error("final")),
    "ddp, closure, per worker, final": lambda: closure_error("final", per_worker),
    "refused: closure, per worker, mean": lambda: refusal(lambda: closure_error("mean", per_worker)),
    "refused: static graph": lambda: refusal(
        lambda: fold(model := wrap(static_graph=True), ga_sam(0.1), per_worker(model))
    ),
    "ddp, weights agree": weights_agree,
    "ddp, schedule": lambda: worst(schedule_error(wrap())),
    "ddp, weighted walk": lambda: worst(weighted_walk_errors()),
    "ddp, failure": lambda: others_give_up(lambda group: DistributedDataParallel(network(), process_group=group)),
}
