"""Accelerate: SharpBackward with its backward equals a plain loop; saved state resumes bit for bit."""

import os

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning_modules import plain_loop
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from two_processes import run_two

from gasam import SharpBackward, ga_sam, sam, shared_walk
from problems import batch, network
from tolerances import EXACT, error, flat, same_bits


def rows(count):
    return list(zip(*batch(rows=count), strict=True))


def accelerated(model, data, perturbation, *, accumulate=1, clip=None, folder=None, save_at=None, around=None):
    """The loop that Accelerate's pages show, with one call in place of accelerator.backward(loss)."""
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), DataLoader(data, batch_size=4)
    )
    options = {"around": around(model)} if around else {}
    sharp = SharpBackward(model.parameters(), perturbation, backward=accelerator.backward, **options)
    if folder and not save_at:
        accelerator.load_state(folder)
        loader = accelerator.skip_first_batches(loader, 3)
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if save_at == step + 1:
            accelerator.save_state(folder)


def expected(perturbation, data, batch_size=4, **options):
    """The weights after a plain loop."""
    model = network()
    plain_loop(model, DataLoader(data, batch_size=batch_size), perturbation, gamma=1.0, **options)
    return flat(model.parameters())


CASES = [(ga_sam(0.1, steps=2), 1, None), (sam(0.1), 3, 0.25), (ga_sam(0.1, steps=2), 2, 0.25)]


@pytest.mark.parametrize(("walk", "accumulate", "clip"), CASES)
def test_five_steps_equal_a_plain_loop(walk, accumulate, clip):
    model, data, options = network(), rows(20 * accumulate), {"accumulate": accumulate, "clip": clip}
    accelerated(model, data, walk, **options)
    assert error(flat(model.parameters()), expected(walk, data, **options)) < EXACT


def test_saved_state_resumes_bit_for_bit(tmp_path):
    whole, resumed = network(), network(seed=5)
    accelerated(whole, rows(20), ga_sam(0.1, steps=2), folder=str(tmp_path), save_at=3)
    accelerated(resumed, rows(20), ga_sam(0.1, steps=2), folder=str(tmp_path))
    assert same_bits(resumed.parameters(), whole.parameters())


def worker(rank, path):
    """Both workers end with the same weights; Accelerate gives every other batch of four to each."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    for accumulate in (1, 2):
        model = network()
        accelerated(
            model, rows(40 * accumulate), ga_sam(0.1, steps=2), accumulate=accumulate, clip=0.25, around=shared_walk
        )
        everyone = [torch.empty_like(flat(model.parameters())) for _ in range(2)]
        dist.all_gather(everyone, flat(model.parameters()))
        assert torch.equal(*everyone)
        torch.save(everyone[rank], f"{path}/{accumulate}.pt")


def test_two_processes_equal_one_on_the_joint_batch(tmp_path, monkeypatch):
    """One walk for all workers by `shared_walk`, also while `accumulate` does not synchronise."""
    run_two(worker, tmp_path, monkeypatch)
    for accumulate in (1, 2):
        found = torch.load(tmp_path / f"{accumulate}.pt", weights_only=True)
        options = {"accumulate": accumulate, "clip": 0.25, "batch_size": 8}
        assert error(found, expected(ga_sam(0.1, steps=2), rows(40 * accumulate), **options)) < EXACT
