"""Started by torchrun: DDP with a shared walk and with each worker's own, against the reference on one process."""

import itertools
import math
import sys

import numpy as np
import torch
import torch.distributed as dist
from processes import bits_agree, refusal, run, worst
from scheduled import overflow_gradients, schedule_error, weighted_walk_error
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from gasam import Perturbation, SharpBackward, SharpnessAware, ga_sam, per_worker, same_noise, shared_walk, together
from problems import batch, network, paper_walk
from tolerances import error, flat, same_bits

PERTURBATIONS = [
    Perturbation(epsilon=0.3, norm=norm, steps=steps, risk=risk)
    for norm, steps, risk in itertools.product((2.0, math.inf), (1, 2, 3), ("mean", "final"))
] + [
    Perturbation(budget=0.2, cap=0.05, norm=norm, steps=steps)
    for norm, steps in itertools.product((2.0, math.inf), (1, 2))
]
KINDS = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}]


class Partly(nn.Module):
    """A network with a layer that nobody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.used = network()
        self.unused = nn.Linear(2, 2).double()

    def forward(self, x):
        return self.used(x)


def part(rows, worker: int):
    """A worker's rows of the joint batch."""
    return tuple(t.chunk(dist.get_world_size())[worker] for t in rows)


def joint(seed: int = 1):
    return batch(rows=4 * dist.get_world_size(), seed=seed)


def reference_fold(rows, perturbation: Perturbation) -> np.ndarray:
    """The folded gradient by the paper's algorithm, in one process."""
    return paper_walk(network(), lambda model: cross_entropy(model(rows[0]), rows[1]), perturbation)[-1]


def own_folds(rows, perturbation: Perturbation) -> np.ndarray:
    """The mean of what each worker alone would fold."""
    workers = range(dist.get_world_size())
    return np.mean([reference_fold(part(rows, worker), perturbation) for worker in workers], axis=0)


def wrap(**options) -> DistributedDataParallel:
    model = Partly() if "find_unused_parameters" in options else network()
    return DistributedDataParallel(model, **options)


def used(model: DistributedDataParallel) -> list:
    return list(getattr(model.module, "used", model.module).parameters())


def fold(model, perturbation, around=None, *, before: float = 0.0, enabled: bool = True) -> torch.Tensor:
    """What a call adds to gradients that are there already."""
    sharp = SharpBackward(model.parameters(), perturbation, **({} if around is None else {"around": around}))
    sharp.enabled = enabled
    home = [p.detach().clone() for p in model.parameters()]
    for parameter in used(model):
        parameter.grad = torch.full_like(parameter, before) if before else None
    x, y = part(joint(), dist.get_rank())
    sharp(lambda: cross_entropy(model(x), y))
    assert same_bits(model.parameters(), home)
    return flat([p.grad for p in used(model)]) - before


def shared_error() -> float:
    """Over kinds of DDP, perturbations, with and without gradients of earlier micro-batches."""
    found = 0.0
    expected = [reference_fold(joint(), perturbation) for perturbation in PERTURBATIONS]
    for kind in KINDS:
        model = wrap(**kind)
        for perturbation, folded in zip(PERTURBATIONS, expected, strict=True):
            found = max(found, error(fold(model, perturbation), folded))
            found = max(found, error(fold(model, perturbation, before=1.0), folded))
    return worst(found)


def per_worker_error() -> float:
    found = 0.0
    expected = [own_folds(joint(), perturbation) for perturbation in PERTURBATIONS]
    for kind in KINDS:
        model = wrap(**kind)
        around = together(same_noise(), per_worker(model))
        if "static_graph" in kind:
            fold(model, PERTURBATIONS[0], around, enabled=False)  # the first step is a plain one
        for perturbation, folded in zip(PERTURBATIONS, expected, strict=True):
            found = max(found, error(fold(model, perturbation, around), folded))
            found = max(found, error(fold(model, perturbation, around, before=1.0), folded))
    return worst(found)


def all_reduces(make_around) -> list[int]:
    """How many a step, for K = 1, 2, 3. The model fits into one bucket."""
    counts = []
    for steps in (1, 2, 3):
        model, calls = wrap(), []
        model.register_comm_hook(None, lambda state, bucket: calls.append(1) or allreduce_hook(state, bucket))  # noqa: B023
        fold(model, ga_sam(0.3, steps=steps), make_around(model))
        counts.append(len(calls))
    return counts


def accumulated(make_around, expected) -> list[float]:
    """Two micro-batches, the first within no_sync; the error and the number of all-reduces."""
    found, calls = 0.0, []
    for perturbation in PERTURBATIONS:
        model = wrap(gradient_as_bucket_view=True)
        model.register_comm_hook(None, lambda state, bucket: calls.append(1) or allreduce_hook(state, bucket))
        around = {"around": make_around(model)} if make_around else {}
        sharp = SharpBackward(model.parameters(), perturbation, **around)
        for micro, seed in enumerate((1, 2)):
            x, y = part(joint(seed), dist.get_rank())
            with model.no_sync() if micro == 0 else torch.enable_grad():
                sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
        folded = sum(expected[micro](joint(seed), perturbation) for micro, seed in enumerate((1, 2)))
        found = max(found, error(flat([p.grad for p in model.parameters()]), folded))
    return [worst(found), len(calls)]


def closure_error(risk: str, make_around=None) -> float:
    model = wrap()
    perturbation = Perturbation(epsilon=0.3, steps=2, risk=risk)
    around = {"around": make_around(model)} if make_around else {}
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), perturbation, **around)
    x, y = part(joint(), dist.get_rank())

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    before = flat(model.parameters())
    optimizer.step(closure)
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
            x, y = part(joint(step), dist.get_rank())
            optimizer.zero_grad()
            sharp(lambda: cross_entropy(model(x.float()), y))  # noqa: B023
            optimizer.step()
            agree.append(bits_agree(model.parameters()))
    return agree


def weighted_walk_errors() -> float:
    rows = part(joint(), dist.get_rank())
    model = wrap()

    def gradients_of(model):
        return [p.grad for p in model.parameters()]

    shared = weighted_walk_error(model, rows, gradients_of)
    return max(shared, weighted_walk_error(model, rows, gradients_of, per_worker(model)))


CHECKS = {
    "shared": shared_error,
    "per worker": per_worker_error,
    "all-reduces, shared": lambda: all_reduces(shared_walk),
    "all-reduces, per worker": lambda: all_reduces(per_worker),
    "accumulated, nothing said": lambda: accumulated(None, [own_folds, reference_fold]),
    "accumulated, shared": lambda: accumulated(shared_walk, [reference_fold, reference_fold]),
    "accumulated, per worker": lambda: accumulated(per_worker, [own_folds, own_folds]),
    "closure": lambda: max(closure_error("mean"), closure_error("final")),
    "closure, per worker, final": lambda: closure_error("final", per_worker),
    "refused: closure, per worker, mean": lambda: refusal(lambda: closure_error("mean", per_worker)),
    "refused: static graph": lambda: refusal(
        lambda: fold(model := wrap(static_graph=True), ga_sam(0.1), per_worker(model))
    ),
    "refused: not DDP": lambda: refusal(lambda: per_worker(network())),
    "weights agree": weights_agree,
    "schedule": lambda: worst(schedule_error(wrap(), part(joint(), dist.get_rank()))),
    "overflow": lambda: overflow_gradients(
        wrap(), part(joint(), dist.get_rank()), lambda model: [p.grad for p in model.parameters()]
    ),
    "weighted walk": lambda: worst(weighted_walk_errors()),
}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(CHECKS, sys.argv[1])
    dist.destroy_process_group()
