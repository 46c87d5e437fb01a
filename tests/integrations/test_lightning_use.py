"""Lightning: the clean loss in the logs, the closure form, and what is said to mistakes."""

import copy
from dataclasses import replace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
from lightning_modules import PERTURBATIONS, QUIET, Plain, Sharp, batches, fit, plain_loop, weights
from torch.nn.functional import cross_entropy
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from gasam import SharpBackward, SharpnessAware, ga_sam, sam
from gasam.integrations.lightning import SharpnessAwareModule, lightning_closure
from problems import batch, network
from tolerances import EXACT, error

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),  # five batches
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning calls what torch 2.13 deprecates
]


def test_clean_loss_is_logged_and_handed_on():
    data = batches(5)
    module, expected = Sharp(perturbation=ga_sam(0.1, steps=2)), network()
    trainer = fit(module, data)
    losses = plain_loop(expected, data, ga_sam(0.1, steps=2))
    assert module.calls == 15
    assert trainer.callback_metrics["loss_step"].item() == pytest.approx(losses[-1], rel=1e-6)
    assert trainer.callback_metrics["loss_epoch"].item() == pytest.approx(sum(losses) / 5, rel=1e-6)
    assert module.outputs == pytest.approx(losses)
    last = module.traces[-1]
    assert trainer.callback_metrics["sharpness"].item() == pytest.approx(last.sharpness.item(), rel=1e-6)
    assert trainer.callback_metrics["perturbation_norm"].item() == pytest.approx(last.norms[-1].item(), rel=1e-6)
    assert last.sharpness > 0


def test_validation_sees_the_weights_at_home():
    class Validated(Sharp):
        def validation_step(self, batch, batch_idx):
            x, y = batch
            self.log("val_loss", cross_entropy(self.model(x), y), batch_size=len(y))

    module, data = Validated(perturbation=ga_sam(0.1)), batches(4)
    trainer = fit(module, data, validation=data[:1], val_check_interval=1.0, num_sanity_val_steps=0)
    x, y = data[0]
    expected = cross_entropy(module.model(x), y).item()
    assert trainer.callback_metrics["val_loss"].item() == pytest.approx(expected, rel=1e-6)
    assert module.calls == 8


def test_walk_may_start_late():
    class Late(Sharp):
        def on_train_epoch_start(self):
            self.sharp.enabled = self.current_epoch >= 1

    module = Late(perturbation=ga_sam(0.1))
    fit(module, batches(3), max_epochs=2)
    assert module.calls == 3 + 6
    assert [bool(trace.climbed) for trace in module.traces] == [False] * 3 + [True] * 3


def test_metrics_count_the_clean_pass_only():
    class Measured(Sharp):
        def __init__(self, **options):
            super().__init__(**options)
            self.accuracy = MulticlassAccuracy(3, average="micro")
            self.both = MetricCollection({"a": MulticlassAccuracy(3), "b": MulticlassAccuracy(3)})
            self.clean = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            scores = self.model(batch[0]).detach()
            self.log("accuracy", self.accuracy(scores, batch[1]))
            self.both.update(scores, batch[1])
            self.clean.append(self.clean_pass)
            return {"loss": loss, "extra": 1}

    module = Measured(perturbation=ga_sam(0.1, steps=2))
    fit(module, batches(4))
    assert module.accuracy._update_count == module.both["a"]._update_count == 4
    assert module.clean == [True, False, False] * 4
    assert module.clean_pass


def test_copies_and_steps_by_hand_are_plain():
    module = copy.deepcopy(Sharp(perturbation=ga_sam(0.1)))
    with pytest.warns(UserWarning, match="reference is not registered"):
        loss = module.training_step(batch(), 0)
    module.backward(loss)
    assert module.calls == 1
    assert module.model[0].weight.grad is not None


def test_failing_step_leaves_weights_at_home_and_contexts_closed():
    class Failing(Sharp):
        def training_step(self, batch, batch_idx):
            if not self.clean_pass and batch_idx == 1:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    module, expected = Failing(perturbation=ga_sam(0.1)), network()
    with pytest.raises(SystemExit):
        fit(module, batches(2))
    plain_loop(expected, batches(1), ga_sam(0.1))
    assert error(weights(module), weights(expected)) < EXACT
    assert module.clean_pass
    assert "log" not in vars(module)


class Closure(Plain):
    def configure_optimizers(self):
        base = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        optimizer = SharpnessAware(base, self.perturbation, around=lightning_closure(self))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_closure_form_equals_a_plain_loop(name):
    data, module, expected = batches(5), Closure(perturbation=PERTURBATIONS[name]), network()
    trainer = fit(module, data)
    losses = plain_loop(expected, data, PERTURBATIONS[name])
    assert error(weights(module), weights(expected)) < EXACT
    assert trainer.callback_metrics["loss_epoch"].item() == pytest.approx(sum(losses) / 5, rel=1e-6)


@pytest.mark.parametrize(("options", "sentence"), [
    ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2 is not possible.*use SharpnessAwareModule"),
    ({"gradient_clip_val": 0.5}, "gradient_clip_val=0.5 would clip in every pass.*use SharpnessAwareModule"),
    ({"plugins": "16-mixed"}, "needs a closure.*use SharpBackward with the plain optimizer"),
])  # fmt: skip
def test_closure_form_refuses_what_it_cannot_do(options, sentence):
    if "plugins" in options:
        options = {"plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))}
    module = Closure(network(torch.float32), ga_sam(0.1))
    before = weights(module).clone()
    with pytest.raises(RuntimeError, match=sentence):
        fit(module, batches(2, torch.float32), **options)
    assert torch.equal(weights(module), before)


def test_manual_optimisation_is_refused_and_the_cure_works():
    class Manual(Sharp):
        automatic_optimization = False

    with pytest.raises(RuntimeError, match=r"SharpBackward\(self, backward=self.manual_backward"):
        fit(Manual(perturbation=ga_sam(0.1)), batches(1))

    class Cured(Plain):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            x, y = batch
            sharp = SharpBackward(self.parameters(), self.perturbation, backward=self.manual_backward)
            sharp(lambda: cross_entropy(self.model(x), y))
            self.optimizers().step()
            self.optimizers().zero_grad()
            self.lr_schedulers().step()
            return {"loss": torch.zeros(())}

    module, expected = Cured(perturbation=ga_sam(0.1)), network()
    fit(module, batches(5))
    plain_loop(expected, batches(5), ga_sam(0.1))
    assert error(weights(module), weights(expected)) < EXACT


class Derived(FSDPStrategy):
    pass


@pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy, Derived])
def test_strategies_that_cut_weights_anyhow_are_refused_by_name(strategy):
    """Neither can be set up on a CPU; the module asks what the Trainer has before it does anything."""
    module, trainer = Sharp(perturbation=ga_sam(0.1)), lightning.Trainer(**QUIET)
    module.trainer, trainer.training = trainer, True
    trainer._accelerator_connector.strategy = strategy.__new__(strategy)
    told = f"^{strategy.__name__} does not shard weights by rows.*'ddp', or ModelParallelStrategy"
    with pytest.raises(RuntimeError, match=told):
        module.training_step(batch(), 0)
    assert module.calls == 0


def test_mistakes_are_named():
    with pytest.raises(TypeError, match="perturbation must be a Perturbation"):
        fit(Sharp(perturbation=0.05), batches(1))
    with pytest.raises(TypeError, match="can't be run again on the same batch"):
        type("Iterating", (SharpnessAwareModule,), {"training_step": lambda self, dataloader_iter: None})

    class Partly(Sharp):
        def configure_sharp_backward(self):
            return SharpBackward(self.model[0].parameters(), self.perturbation)

    told = r"parameter 'model.2.weight' is trained, but configure_sharp_backward did not give it"
    with pytest.raises(RuntimeError, match=told):
        fit(Partly(perturbation=ga_sam(0.1)), batches(1))

    class Backing(Sharp):
        def configure_sharp_backward(self):
            return SharpBackward(self.parameters(), self.perturbation, backward=lambda loss: loss.backward())

    with pytest.raises(ValueError, match="must not give SharpBackward a backward"):
        fit(Backing(perturbation=ga_sam(0.1)), batches(1))


class Unfreezing(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.model[0])

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.model[0], optimizer, lr=0.1)


class Finetuned(Sharp):
    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


def test_layers_may_be_unfrozen_where_the_walk_knows_them():
    """The risk is "final": of a layer it does not know the gradients of both passes would add up."""
    data, module, expected = batches(3), Finetuned(perturbation=sam(0.1)), network()
    fit(module, data, max_epochs=2, callbacks=[Unfreezing()])
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    sharp = SharpBackward(expected.parameters(), sam(0.1))
    for epoch in range(2):
        expected[0].requires_grad_(epoch == 1)
        for x, y in data:
            sharp(lambda x=x, y=y: cross_entropy(expected(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert error(weights(module), weights(expected)) < EXACT


def test_layers_that_the_walk_does_not_know_are_not_trained_later():
    class Trained(Finetuned):
        def configure_sharp_backward(self):
            return SharpBackward([p for p in self.parameters() if p.requires_grad], self.perturbation)

    module = Trained(perturbation=sam(0.1))
    with pytest.raises(RuntimeError, match=r"parameter 'model.0.weight' is trained, but.*including frozen ones"):
        fit(module, batches(3), max_epochs=2, callbacks=[Unfreezing()])
    assert module.calls == 6

    class Growing(Sharp):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.model.append(torch.nn.Linear(3, 3).double())
                self.trainer.optimizers[0].add_param_group({"params": self.model[3].parameters()})

    module = Growing(perturbation=sam(0.1))
    with pytest.raises(RuntimeError, match=r"parameter 'model.3.weight' is trained, but.*and add no module later"):
        fit(module, batches(3), max_epochs=2)
    assert module.calls == 6


def test_perturbation_may_be_an_attribute_of_a_class_behind_the_mixin():
    class Described(Plain):
        perturbation = ga_sam(0.1)

        def __init__(self):
            super().__init__()
            del self.perturbation

    class Both(SharpnessAwareModule, Described):
        pass

    module = Both()
    fit(module, batches(1))
    assert module.sharp.perturbation == ga_sam(0.1)
    assert module.sharp.last.climbed


def test_walk_changes_with_the_perturbation_of_sharp():
    module = Sharp(perturbation=ga_sam(0.1))
    module.sharp.perturbation = replace(module.sharp.perturbation, steps=3)
    fit(module, batches(2))
    assert module.calls == 8
