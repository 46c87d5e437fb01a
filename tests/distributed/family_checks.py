"""The methods of the family with DDP and FSDP2 against their references on one process."""

import tempfile

import numpy as np
import pytest
import torch
import torch.distributed as dist
from several import bits_agree, joint, own, part, shard, whole
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from family_reference import OPTIONS, PRESETS, RATE, expected_run, model_of, reference_of
from gasam import SharpBackward, gsam, per_worker
from problems import function_of
from tolerances import EXACT, error, flat, same_bits

pytestmark = pytest.mark.usefixtures("process_group")
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


@pytest.mark.parametrize("wrap", [DistributedDataParallel, shard])
@pytest.mark.parametrize("method", OPTIONS)
def test_methods_equal_one_process_on_the_joint_batch(method, wrap):
    model = wrap(model_of())
    train(model, SharpBackward(model, walk_of(method)), range(STEPS))
    assert error(flat(whole(model.parameters())), expected_run(method, STEPS, joint, epsilon=0.1)[0]) < EXACT


@pytest.mark.parametrize("method", ["friendly_sam", "look_sam"])
def test_state_has_the_same_bits_in_all_processes(method):
    model = DistributedDataParallel(model_of(torch.float32))
    sharp = SharpBackward(model, walk_of(method))
    train(model, sharp, range(STEPS), lambda seed: (own(seed)[0].float(), own(seed)[1]))
    (kept,) = sharp.state_dict()["method"].values()
    assert bits_agree([*kept, *model.parameters()])


def gradient_at(model, x, y):
    return function_of(model, lambda m: cross_entropy(m(x), y))


@pytest.mark.parametrize("method", ["gsam", "wsam"])
def test_a_method_gets_reduced_gradients_in_no_sync_too(method):
    """Two micro-batches, the first in no_sync."""
    model, twin = DistributedDataParallel(model_of(), gradient_as_bucket_view=True), model_of()
    sharp, reference = SharpBackward(model, walk_of(method)), reference_of(method, twin, epsilon=0.1)
    w, expected = flat(twin.parameters()).numpy(), 0.0
    for micro, seed in enumerate((1, 2)):
        x, y = own(seed)
        with model.no_sync() if micro == 0 else torch.enable_grad():
            sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
        expected = expected + reference.gradient(w, gradient_at(twin, *joint(seed)))
    assert error(flat([p.grad for p in model.parameters()]), expected) < EXACT


def test_with_per_worker_each_worker_has_its_own_running_mean():
    """Friendly-SAM climbs without the running mean of the worker's own gradients."""
    model = DistributedDataParallel(model_of())
    train(model, SharpBackward(model, walk_of("friendly_sam"), around=per_worker(model)), range(STEPS))
    twin, workers = model_of(), range(dist.get_world_size())
    references = [reference_of("friendly_sam", twin, epsilon=0.1) for _ in workers]
    w = flat(twin.parameters()).numpy()
    for seed in range(STEPS):
        rows = [part(joint(seed), worker) for worker in workers]
        gradients = [references[worker].gradient(w, gradient_at(twin, *rows[worker])) for worker in workers]
        w = w - RATE * np.mean(gradients, axis=0)
    assert error(flat(model.parameters()), w) < EXACT
    with pytest.raises((RuntimeError, TypeError), match="per_worker can't be used with"):
        train(model, SharpBackward(model, gsam(0.1), around=per_worker(model)), [0])


@pytest.mark.parametrize("method", ["friendly_sam", "look_sam"])
def test_state_is_sharded_like_the_weights_and_resumes_bit_equal(method):
    """From files of each process."""
    model = shard(model_of())
    sharp = SharpBackward(model, walk_of(method))
    train(model, sharp, range(3))
    (kept,) = sharp.state_dict()["method"].values()
    for tensor, weights in zip(kept, model.parameters(), strict=True):
        assert tensor.placements == weights.placements
        assert tensor.to_local().shape == weights.to_local().shape
    with tempfile.NamedTemporaryFile() as file:
        torch.save(sharp.state_dict(), file.name)
        saved = torch.load(file.name, weights_only=True)
    start = model_of()
    nn.utils.vector_to_parameters(flat(whole(model.parameters())).clone(), start.parameters())
    train(model, sharp, range(3, STEPS))
    again = shard(start)
    resumed = SharpBackward(again, walk_of(method))
    resumed.load_state_dict(saved)
    train(again, resumed, range(3, STEPS))
    assert same_bits(whole(again.parameters()), whole(model.parameters()))
