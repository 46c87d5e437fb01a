"""Lightning: a mixin for the module. The optimizer, accumulation, clipping and mixed precision do not change."""

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from gasam import SharpnessAware, ga_sam, recommended
from gasam.integrations.lightning import SharpnessAwareModule, lightning_closure


class Classifier(SharpnessAwareModule, lightning.LightningModule):
    perturbation = ga_sam(budget=0.1, cap=0.01)

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = cross_entropy(self.model(x), y)
        self.log("loss", loss, on_epoch=True)  # logs the clean loss; the mixin logs sharpness and perturbation_norm
        return loss

    def on_train_epoch_start(self):
        self.sharp.enabled = self.current_epoch >= 1  # optional: one epoch of plain training first

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class OnePass(Classifier):
    perturbation = recommended(passes=1)


class Quarter(Classifier):
    ascent_fraction = 0.25


class WithClosure(lightning.LightningModule):
    """The closure form. It cannot use accumulation, clipping by the Trainer, or 16-mixed precision."""

    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        base = torch.optim.Adam(self.parameters(), lr=1e-2)
        return SharpnessAware(base, ga_sam(budget=0.1, cap=0.01), model=self, around=lightning_closure(self))


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, enable_model_summary=False, **quiet, **options)


lightning.seed_everything(0, verbose=False)
data = DataLoader(TensorDataset(torch.randn(64, 20), torch.randint(3, (64,))), batch_size=8)

classifier = Classifier()
fitting = trainer(accumulate_grad_batches=2, gradient_clip_val=1.0, precision="bf16-mixed")
fitting.fit(classifier, data)

one, quarter = OnePass(), Quarter()
trainer().fit(one, data)
trainer().fit(quarter, data)

simple = WithClosure()
trainer().fit(simple, data)

assert fitting.callback_metrics["sharpness"] > 0
assert classifier.sharp.last.climbed
assert (one.sharp.last.passes, quarter.sharp.last.passes) == (1, 2)
assert quarter.sharp.last.ascent_loss is not None
assert simple.optimizers().optimizer.last.climbed
