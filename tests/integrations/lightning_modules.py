"""A module as people write them, with and without the mixin, and the same training in a plain loop."""

from contextlib import nullcontext
from dataclasses import replace

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from gasam import MovingAverage, SharpBackward, friendly_sam, ga_sam, random_offsets, sam
from gasam.integrations.lightning import SharpnessAwareModule
from problems import batch, network
from tolerances import flat

AVERAGE = replace(ga_sam(budget=0.1, cap=0.05), method=MovingAverage(0.7))
# Walks, whether the ascent is on a part, numbers of micro-batches, clipping, and walks on every step or on some. The
# framework's own pass is clean in the first three and displaced in the others.
WALKS = {
    "mean of two steps": (ga_sam(0.1, steps=2), False, 1, None, None),
    "every other step": (sam(0.1), False, 3, 0.25, 2),
    "every third step": (ga_sam(budget=0.1, cap=0.05), False, 3, None, 3),
    "average": (AVERAGE, False, 3, 0.25, None),
    "average, two steps, part": (replace(sam(0.1, steps=2), method=MovingAverage(0.7)), True, 1, None, None),
    "random": (random_offsets(0.05), False, 2, None, None),
    "part": (ga_sam(budget=0.1, cap=0.05), True, 2, 0.25, None),
    "part, mean of two steps": (ga_sam(0.1, steps=2), True, 1, None, None),
    "part, last of two steps": (sam(0.1, steps=2), True, 3, None, None),
    "part, friendly_sam": (friendly_sam(0.1), True, 1, None, None),
}
QUIET = {
    "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False, "max_epochs": 1,
}  # fmt: skip


class Plain(lightning.LightningModule):
    """A module as people write them; remembers what it was given to log."""

    def __init__(self, model=None, perturbation=None, lr=0.1):
        super().__init__()
        self.model = network() if model is None else model
        self.perturbation, self.lr = perturbation, lr
        self.calls, self.outputs, self.traces = 0, [], []

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.calls += 1
        loss = cross_entropy(self.model(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True, batch_size=len(y))
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.outputs.append(outputs["loss"].item())
        if getattr(self, "_sharp", None) is not None:
            self.traces.append(self.sharp.last)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Sharp(SharpnessAwareModule, Plain):
    pass


def batches(count, dtype=torch.float64):
    return [batch(dtype, rows=8, seed=seed) for seed in range(count)]


def loader(data):
    return DataLoader(data, batch_size=None)


def fit(module, data, *, validation=None, ckpt_path=None, **options):
    trainer = lightning.Trainer(**QUIET | options)
    trainer.fit(module, loader(data), loader(validation) if validation else None, ckpt_path=ckpt_path)
    return trainer


def plain_loop(
    model, data, perturbation, *, accumulate=1, clip=None, autocast=nullcontext, scaler=None, around=None,
    schedule=None, gamma=0.5, part=None,
):  # fmt: skip
    """The same training without Lightning, or without Accelerate where the rate is constant, gamma=1."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=gamma)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    sharp = SharpBackward(
        model, perturbation, backward=lambda loss: scaler.scale(loss / accumulate).backward(),
        around=around, schedule=schedule, accumulation=accumulate,
    )  # fmt: skip

    def loss(rows=slice(None)):
        with autocast():
            return cross_entropy(model(x[rows]), y[rows])

    losses, part = [], slice(part) if isinstance(part, int) else part
    for i, (x, y) in enumerate(data):  # noqa: B007 - the loss function reads them
        losses.append(sharp(loss, ascent=part and (lambda: loss(part))).item())
        if (i + 1) % accumulate == 0:
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            rates.step()
    return losses


def weights(module):
    return flat(getattr(module, "model", module).parameters())
