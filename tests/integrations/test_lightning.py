"""Lightning: the same weights as a plain loop, whatever the Trainer is told to do."""

import lightning
import pytest
import pytorch_lightning
import torch
import torch.distributed as dist
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning_modules import PERTURBATIONS, QUIET, Plain, Sharp, batches, fit, loader, plain_loop, weights
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from two_processes import run_two

from gasam import SharpBackward, friendly_sam, frozen_batchnorm, ga_sam, look_sam, same_noise, together
from gasam.integrations.lightning import SharpnessAwareModule
from problems import network
from tolerances import EXACT, SINGLE, error, flat, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),  # five batches
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning calls what torch 2.13 deprecates
]


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 0.25])
def test_five_steps_equal_a_plain_loop(name, accumulate, clip):
    data, expected = batches(5 * accumulate), network()
    module = Sharp(perturbation=PERTURBATIONS[name])
    fit(module, data, accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    plain_loop(expected, data, PERTURBATIONS[name], accumulate=accumulate, clip=clip)
    assert error(weights(module), weights(expected)) < EXACT
    assert module.sharp.last.climbed


def test_bf16_mixed_equals_autocast_in_a_plain_loop():
    data, expected = batches(10, torch.float32), network(torch.float32)
    module = Sharp(network(torch.float32), ga_sam(0.1, steps=2))
    fit(module, data, precision="bf16-mixed", accumulate_grad_batches=2)
    plain_loop(
        expected, data, ga_sam(0.1, steps=2), accumulate=2, autocast=lambda: torch.autocast("cpu", torch.bfloat16)
    )
    assert error(weights(module), weights(expected)) < SINGLE
    assert module.sharp.last.climbed


@pytest.mark.parametrize("overflow", [False, True])
def test_16_mixed_equals_a_loss_scaler_in_a_plain_loop(overflow):
    data, expected = batches(10, torch.float32), network(torch.float32)
    if overflow:  # the second micro-batch of step 3: beyond the largest float16
        data[5] = (data[5][0] * 1e6, data[5][1])
    module = Sharp(network(torch.float32), ga_sam(0.1))
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)]
    plugin = MixedPrecision("16-mixed", "cpu", scalers[0])
    fit(module, data, plugins=plugin, accumulate_grad_batches=2, gradient_clip_val=0.5)
    plain_loop(
        expected, data, ga_sam(0.1), accumulate=2, clip=0.5, scaler=scalers[1],
        autocast=lambda: torch.autocast("cpu", torch.float16),
    )  # fmt: skip
    assert error(weights(module), weights(expected)) < SINGLE
    assert weights(module).isfinite().all()
    assert [scaler.get_scale() for scaler in scalers] == [2.0**9 if overflow else 2.0**10] * 2


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
def test_off_is_plain_lightning_bit_for_bit(off):
    plain, module = Plain(), Sharp(perturbation=ga_sam(0.0 if off == "epsilon" else 0.1, steps=3))
    module.sharp.enabled = off != "enabled"
    for each in (plain, module):
        fit(each, batches(6), accumulate_grad_batches=3, gradient_clip_val=0.25)
    assert same_bits(module.model.parameters(), plain.model.parameters())
    assert module.calls == plain.calls == 6
    assert module.outputs == plain.outputs


def test_accumulation_does_not_change_the_walk():
    norms = []
    for accumulate in (1, 3):
        module = Sharp(perturbation=ga_sam(0.1, steps=2), lr=0.0)
        fit(module, batches(6), accumulate_grad_batches=accumulate)
        norms.append(torch.stack([torch.stack(trace.norms) for trace in module.traces]))
    assert error(norms[1], norms[0]) < EXACT


@pytest.mark.parametrize(
    "perturbation", [ga_sam(0.1, steps=2), friendly_sam(0.1), look_sam(0.1)], ids=["ga", "friendly", "look"]
)
def test_resumed_run_equals_one_never_stopped(perturbation, tmp_path):
    def made():
        torch.manual_seed(0)
        dropout = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3)).double()
        return Sharp(dropout, perturbation)

    class Reseeded(lightning.Callback):
        """Lightning's checkpoints have no state of the generators."""

        def on_train_batch_start(self, trainer, *_):
            torch.manual_seed(trainer.global_step)

    whole = made()
    fit(whole, batches(5), max_epochs=2, callbacks=[Reseeded()])
    half = fit(made(), batches(5), max_epochs=1, callbacks=[Reseeded()])
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = made()
    fit(resumed, batches(5), max_epochs=2, callbacks=[Reseeded()], ckpt_path=tmp_path / "half.ckpt")
    assert same_bits(resumed.model.parameters(), whole.model.parameters())


def test_contexts_surround_the_trainers_own_pass():
    """same_noise has to know where the generators stood before Lightning's forward pass, not after it."""

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()

    class Contexts(Sharp):
        def configure_sharp_backward(self):
            around = together(same_noise(), frozen_batchnorm(self.model))
            return SharpBackward(self.named_parameters(), self.perturbation, around=around)

        def on_train_batch_start(self, batch, batch_idx):
            torch.manual_seed(batch_idx)

    data, module, expected = batches(5), Contexts(made(), ga_sam(0.1, steps=2)), made()
    fit(module, data)
    seeded = ((torch.manual_seed(i), each)[1] for i, each in enumerate(data))
    plain_loop(expected, seeded, ga_sam(0.1, steps=2), around=together(same_noise(), frozen_batchnorm(expected)))
    assert error(weights(module), weights(expected)) < EXACT
    assert module.model[1].num_batches_tracked == expected[1].num_batches_tracked == 5
    assert error(module.model[1].running_var, expected[1].running_var) < EXACT


def test_mixin_works_before_a_plain_module_and_under_the_older_name():
    class Older(SharpnessAwareModule, pytorch_lightning.LightningModule):
        perturbation = ga_sam(0.1)

        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch):
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data, module, expected = batches(2), Older(), network()
    pytorch_lightning.Trainer(**QUIET).fit(module, loader(data))
    sharp, optimizer = SharpBackward(expected.parameters(), ga_sam(0.1)), torch.optim.SGD(expected.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        sharp(lambda: cross_entropy(expected(x), y))  # noqa: B023
        optimizer.step()
    assert error(weights(module), weights(expected)) < EXACT


def halves(rank):
    """A module that trains on a half of every batch."""

    class Half(Sharp):
        def training_step(self, batch, batch_idx):
            half = slice(rank * 4, rank * 4 + 4)
            return super().training_step((batch[0][half], batch[1][half]), batch_idx)

        def configure_model(self):
            if isinstance(self.trainer.strategy, ModelParallelStrategy):
                for layer in (self.model[0], self.model[2], self.model):
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    return Half(perturbation=ga_sam(0.1, steps=2))


# Accumulation, clipping. DDP's clipping is that of one process; that of shards has to be seen.
RUNS = {"ddp": [(1, None), (2, None)], "shards": [(1, None), (2, 0.25)]}


def worker(rank, path):
    """Both workers end with the same weights."""
    for engine, runs in RUNS.items():
        for accumulate, clip in runs:
            sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
            module = halves(rank)
            fit(
                module, batches(5 * accumulate), strategy="ddp" if engine == "ddp" else sharded, devices=2,
                accumulate_grad_batches=accumulate, gradient_clip_val=clip, use_distributed_sampler=False,
            )  # fmt: skip
            whole = [p.full_tensor() if engine == "shards" else p for p in module.model.parameters()]
            everyone = [torch.empty_like(flat(whole)) for _ in range(2)]
            dist.all_gather(everyone, flat(whole))
            assert torch.equal(*everyone)
            torch.save(flat(whole), f"{path}/{engine}-{accumulate}.pt")


def test_two_processes_equal_one_on_the_joint_batch(tmp_path, monkeypatch):
    """DDP and FSDP2: one walk for all workers, also while accumulating, where Lightning's DDP does not synchronise."""
    run_two(worker, tmp_path, monkeypatch)
    for engine, runs in RUNS.items():
        for accumulate, clip in runs:
            expected, found = network(), torch.load(tmp_path / f"{engine}-{accumulate}.pt", weights_only=True)
            plain_loop(expected, batches(5 * accumulate), ga_sam(0.1, steps=2), accumulate=accumulate, clip=clip)
            assert error(found, weights(expected)) < EXACT, (engine, accumulate)
