"""Accelerate: SharpBackward with its backward equals a plain loop; saved state resumes bit for bit."""

import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from two_processes import run_two

from gasam import SharpBackward, SharpnessAware, ga_sam, sam, shared_walk
from problems import batch, network
from tolerances import EXACT, SINGLE, error, flat, same_bits

PERTURBATIONS = {"ga_sam": ga_sam(0.1, steps=2), "sam": sam(0.1)}


def rows(count, dtype=torch.float64):
    x, y = batch(dtype, rows=count)
    return list(zip(x, y, strict=True))


def accelerated(
    model, data, perturbation, *, accumulate=1, clip=None, precision="no", folder=None, save_at=None, around=None
):  # fmt: skip
    """The loop that Accelerate's pages show, with one call in place of accelerator.backward(loss)."""
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(gradient_accumulation_steps=accumulate, mixed_precision=precision, cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), DataLoader(data, batch_size=4)
    )
    options = {"around": around(model)} if around else {}
    sharp = SharpBackward(model.parameters(), perturbation, backward=accelerator.backward, **options)
    norms = []
    if folder and not save_at:
        accelerator.load_state(folder)
        loader = accelerator.skip_first_batches(loader, 3)
    for step, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            sharp(lambda: cross_entropy(model(x), y))  # noqa: B023
            norms.append(torch.stack(sharp.last.norms))
            if clip and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if save_at == step + 1:
            accelerator.save_state(folder)
    return torch.stack(norms)


def plain_loop(model, data, perturbation, *, accumulate=1, clip=None, autocast=nullcontext, batch_size=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sharp = SharpBackward(model.parameters(), perturbation, backward=lambda loss: (loss / accumulate).backward())

    def loss():
        with autocast():
            return cross_entropy(model(x).float() if autocast is not nullcontext else model(x), y)

    for i, (x, y) in enumerate(DataLoader(data, batch_size=batch_size)):  # noqa: B007 - the loss function reads them
        sharp(loss)
        if (i + 1) % accumulate == 0:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(("name", "accumulate", "clip"), [("ga_sam", 1, None), ("sam", 3, 0.25), ("ga_sam", 2, 0.25)])
def test_five_steps_equal_a_plain_loop(name, accumulate, clip):
    model, expected, data = network(), network(), rows(20 * accumulate)
    accelerated(model, data, PERTURBATIONS[name], accumulate=accumulate, clip=clip)
    plain_loop(expected, data, PERTURBATIONS[name], accumulate=accumulate, clip=clip)
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT


def test_bf16_equals_autocast_in_a_plain_loop():
    model, expected = network(torch.float32), network(torch.float32)
    data = rows(20, torch.float32)
    norms = accelerated(model, data, ga_sam(0.1), precision="bf16")
    plain_loop(expected, data, ga_sam(0.1), autocast=lambda: torch.autocast("cpu", torch.bfloat16))
    assert error(flat(model.parameters()), flat(expected.parameters())) < SINGLE
    assert (norms[:, 1] > 0).all()


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
        expected, found = network(), torch.load(tmp_path / f"{accumulate}.pt", weights_only=True)
        data = rows(40 * accumulate)
        plain_loop(expected, data, ga_sam(0.1, steps=2), accumulate=accumulate, clip=0.25, batch_size=8)
        assert error(found, flat(expected.parameters())) < EXACT


def test_closure_optimizer_survives_prepare():
    """Accelerate puts the optimizer's state through state_dict and back; the closure is handed on."""
    model, expected, (x, y) = network(), network(), batch()
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    sharp = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), ga_sam(0.1))
    model, optimizer = accelerator.prepare(model, sharp)

    def closure():
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss

    for _ in range(5):
        optimizer.step(closure)
    reference = SharpnessAware(torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9), ga_sam(0.1))

    def plain_closure():
        loss = cross_entropy(expected(x), y)
        loss.backward()
        return loss

    for _ in range(5):
        reference.step(plain_closure)
    assert error(flat(model.parameters()), flat(expected.parameters())) < EXACT
