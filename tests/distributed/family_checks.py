"""The methods of the family with DDP and FSDP2 against their references on one process."""

import copy
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from processes import bits_agree, refusal, worst
from shared_checks import joint, own, part, shard, whole
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from family_reference import OPTIONS, PRESETS, RATE, expected_run, model_of, reference_of
from gasam import SharpBackward, gsam, per_worker
from problems import function_of
from tolerances import error, flat, same_bits

STEPS = 7  # LookSAM walks twice


def walk_of(method):
    return PRESETS[method](0.1, **OPTIONS[method])


def train(model, sharp, seeds, rows=own) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for seed in seeds:
        x, y = rows(seed)
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
        optimizer.step()


def errors(wrap) -> dict[str, float]:
    """By method."""
    found = {}
    for method in OPTIONS:
        model = wrap(model_of())
        train(model, SharpBackward(model, walk_of(method)), range(STEPS))
        found[method] = worst(
            error(flat(whole(model.parameters())), expected_run(method, STEPS, joint, epsilon=0.1)[0])
        )
    return found


def ddp_state_agrees() -> list[bool]:
    agree = []
    for method in ("friendly_sam", "look_sam"):
        model = DistributedDataParallel(model_of(torch.float32))
        sharp = SharpBackward(model, walk_of(method))
        train(model, sharp, range(STEPS), lambda seed: (own(seed)[0].float(), own(seed)[1]))
        (kept,) = sharp.state_dict()["method"].values()
        agree.append(bits_agree([*kept, *model.parameters()]))
    return agree


def gradient_at(model, x, y):
    return function_of(model, lambda m: cross_entropy(m(x), y))


def accumulation_errors() -> dict[str, float]:
    """Two micro-batches, the first in no_sync: the method's fold still gets the reduced gradients."""
    found = {}
    for method in ("gsam", "wsam"):
        model, twin = DistributedDataParallel(model_of(), gradient_as_bucket_view=True), model_of()
        sharp, reference = SharpBackward(model, walk_of(method)), reference_of(method, twin, epsilon=0.1)
        w, expected = flat(twin.parameters()).numpy(), 0.0
        for micro, seed in enumerate((1, 2)):
            x, y = own(seed)
            with model.no_sync() if micro == 0 else torch.enable_grad():
                sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
            expected = expected + reference.gradient(w, gradient_at(twin, *joint(seed)))
        found[method] = worst(error(flat([p.grad for p in model.parameters()]), expected))
    return found


def own_means_error() -> float:
    """Friendly-SAM with per_worker: each worker climbs without the running mean of its own gradients."""
    model = DistributedDataParallel(model_of())
    train(model, SharpBackward(model, walk_of("friendly_sam"), around=per_worker(model)), range(STEPS))
    twin, workers = model_of(), range(dist.get_world_size())
    references = [reference_of("friendly_sam", twin, epsilon=0.1) for _ in workers]
    w = flat(twin.parameters()).numpy()
    for seed in range(STEPS):
        rows = [part(joint(seed), worker) for worker in workers]
        gradients = [references[worker].gradient(w, gradient_at(twin, *rows[worker])) for worker in workers]
        w = w - RATE * np.mean(gradients, axis=0)
    return worst(error(flat(model.parameters()), w))


def refused() -> str:
    model, (x, y) = DistributedDataParallel(model_of()), own()
    sharp = SharpBackward(model, gsam(0.1), around=per_worker(model))
    return refusal(lambda: sharp(lambda: cross_entropy(model(x), y)))


def fsdp_state() -> dict[str, list[bool]]:
    """Whether the state is sharded like the weights, and a run resumed from files of each process is bit-equal."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder)
    found = {}
    for method in ("friendly_sam", "look_sam"):
        model = shard(model_of())
        sharp = SharpBackward(model, walk_of(method))
        train(model, sharp, range(3))
        (kept,) = sharp.state_dict()["method"].values()
        alike = all(
            tensor.placements == p.placements and tensor.to_local().shape == p.to_local().shape
            for tensor, p in zip(kept, model.parameters(), strict=True)
        )
        file = Path(folder[0]) / f"{method}-{dist.get_rank()}.pt"
        torch.save(sharp.state_dict(), file)
        weights = copy.deepcopy(whole(model.parameters()))
        train(model, sharp, range(3, STEPS))
        start = model_of()
        nn.utils.vector_to_parameters(flat(weights), start.parameters())
        again = shard(start)
        resumed = SharpBackward(again, walk_of(method))
        resumed.load_state_dict(torch.load(file, weights_only=True))
        train(again, resumed, range(3, STEPS))
        found[method] = [alike, same_bits(whole(again.parameters()), whole(model.parameters()))]
    return found


CHECKS = {
    "family, ddp": lambda: errors(DistributedDataParallel),
    "family, ddp, state agrees": ddp_state_agrees,
    "family, ddp, accumulation": accumulation_errors,
    "family, ddp, own means": own_means_error,
    "refused: method, per worker": refused,
    "family, fsdp": lambda: errors(shard),
    "family, fsdp, state": fsdp_state,
}
