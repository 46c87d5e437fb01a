"""Lightning and the Trainer with the recommended walk: its schedule follows their steps, and is saved and resumed."""

from dataclasses import replace

import lightning
import pytest
import torch
from lightning_modules import QUIET, Plain, Sharp, batches, fit, loader, plain_loop, weights
from torch import nn
from trainer_models import arguments, classifier, sentences
from transformers import Trainer, TrainerCallback

from gasam import Schedule, SharpnessAware, ga_sam, recommended, sam
from gasam.integrations.lightning import SharpnessAwareModule
from gasam.integrations.transformers import SharpnessAwareTrainer, SharpnessAwareTrainerMixin
from problems import network
from tolerances import EXACT, error, flat, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
]
HALVES = Schedule(start=0.25, warmup=0.5)


def strengths(module):
    return [trace.strength for trace in module.traces]


def test_lightning_uses_the_recommended_walk():
    module = Sharp()
    fit(module, batches(3))
    assert (module.sharp.perturbation, module.sharp.clock.schedule) == recommended()
    assert module.sharp.weights.names[0] == "model.0.weight"
    assert strengths(module) == [0.0] * 3


def test_lightning_knows_the_number_of_steps():
    module = Sharp(perturbation=ga_sam(0.1))
    module.walk_schedule = HALVES
    fit(module, batches(8))
    assert strengths(module) == pytest.approx([0, 0, 0.2, 0.4, 0.6, 0.8, 1, 1])


def test_lightnings_micro_batches_share_a_strength():
    module = Sharp(perturbation=ga_sam(0.1))
    module.walk_schedule = lambda step: step / 10
    fit(module, batches(8), accumulate_grad_batches=2)
    assert strengths(module) == [0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]


@pytest.mark.parametrize("risk", ["mean", "final"])
def test_lightning_walks_on_every_second_step_as_a_plain_loop_does(risk):
    walk, schedule = replace(ga_sam(0.1), risk=risk), Schedule(every=2, weight=3.0)
    module, plain = Sharp(perturbation=walk), network()
    module.walk_schedule = schedule
    fit(module, batches(8), accumulate_grad_batches=2)
    plain_loop(plain, batches(8), walk, accumulate=2, schedule=schedule)
    assert [len(trace.losses) for trace in module.traces] == [2, 2, 1, 1, 2, 2, 1, 1]
    assert error(weights(module), weights(plain)) < EXACT


def test_lightning_keeps_running_statistics_from_displaced_passes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()
    fit(Sharp(model=model, perturbation=ga_sam(0.1)), batches(3))
    assert model[1].num_batches_tracked == 3


def resumable():
    module = Sharp(model=network(), perturbation=ga_sam(budget=0.1, cap=0.05))
    module.walk_schedule = Schedule(progress=0.01, warmup=5)
    return module


def test_lightning_resumes_the_schedule(tmp_path):
    """13 steps an epoch, so the checkpoint falls into a block of 10."""
    data, options = batches(13), {**QUIET, "default_root_dir": tmp_path}
    whole, first, resumed = resumable(), resumable(), resumable()
    lightning.Trainer(**options | {"max_epochs": 3}).fit(whole, loader(data))
    trainer = lightning.Trainer(**options)
    trainer.fit(first, loader(data))
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    lightning.Trainer(**options | {"max_epochs": 3}).fit(resumed, loader(data), ckpt_path=tmp_path / "stopped.ckpt")
    assert strengths(whole)[-1] > 0
    assert strengths(resumed) == strengths(whole)[13:]
    assert same_bits(resumed.parameters(), whole.parameters())


def test_mixin_after_the_frameworks_class_is_refused():
    with pytest.raises(TypeError, match=r"Wrong has SharpnessAwareModule after LightningModule .* class Wrong\("):
        type("Wrong", (Plain, SharpnessAwareModule), {})
    with pytest.raises(TypeError, match=r"Wrong has SharpnessAwareTrainerMixin after Trainer .* class Wrong\("):
        type("Wrong", (Trainer, SharpnessAwareTrainerMixin), {})


def test_two_walks_at_once_are_refused(tmp_path):
    class Twice(Sharp):
        def configure_optimizers(self):
            return SharpnessAware(torch.optim.SGD(self.parameters(), lr=0.1), sam(0.1))

    with pytest.raises(RuntimeError, match="SharpnessAwareModule and SharpnessAware are both used"):
        fit(Twice(perturbation=ga_sam(0.1)), batches(2))
    model = classifier()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), sam(0.1))
    trainer = SharpnessAwareTrainer(
        model=model, args=arguments(tmp_path), train_dataset=sentences(8), optimizers=(optimizer, None)
    )
    with pytest.raises(RuntimeError, match="SharpnessAwareTrainer and SharpnessAware are both used"):
        trainer.train()


def trainer_of(tmp_path, rows, **options):
    options = {"perturbation": ga_sam(budget=0.1, cap=0.05), "schedule": Schedule(progress=0.01, warmup=5)} | options
    perturbation, schedule = options.pop("perturbation"), options.pop("schedule")
    return SharpnessAwareTrainer(
        model=classifier(),
        args=arguments(tmp_path, **options),
        train_dataset=rows,
        perturbation=perturbation,
        schedule=schedule,
    )


def test_trainer_uses_the_recommended_walk(tmp_path):
    trainer = SharpnessAwareTrainer(model=classifier(), args=arguments(tmp_path), train_dataset=sentences(8))
    trainer.train()
    assert (trainer.sharp.perturbation, trainer.sharp.clock.schedule) == recommended()
    assert trainer.sharp.clock.total_steps == trainer.state.max_steps


@pytest.mark.parametrize("risk", ["mean", "final"])
def test_trainer_walks_on_every_third_step_with_its_weight(tmp_path, risk):
    """One step from the same weights: g_0 + 3 (fold - g_0), read off the change of the weights by SGD."""
    walk = replace(ga_sam(0.02), risk=risk, floor=1e-4)
    rows, once = (
        sentences(4),
        {"max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"}
        | {"max_grad_norm": 1e9},
    )

    def change(perturbation, schedule):
        before = flat(classifier().parameters()).detach().clone()
        trainer = trainer_of(tmp_path, rows, perturbation=perturbation, schedule=schedule, **once)
        trainer.train()
        return flat(trainer.model.parameters()) - before

    clean, full = change(ga_sam(0.0), Schedule()), change(walk, Schedule())
    assert error(change(walk, Schedule(every=3)), clean + 3 * (full - clean)) < 1e-9
    counted = trainer_of(tmp_path, sentences(40), perturbation=walk, schedule=Schedule(every=3), max_steps=5)
    passes = []
    counted.add_callback(Counting(counted, passes))
    counted.train()
    assert passes == [2, 1, 1, 2, 1]


class Counting(TrainerCallback):
    def __init__(self, trainer, passes):
        self.trainer, self.passes = trainer, passes

    def on_step_end(self, args, state, control, **kwargs):
        self.passes.append(len(self.trainer.sharp.last.losses))


def test_trainer_resumes_the_schedule(tmp_path):
    rows, saving = sentences(160), {"max_steps": 40, "save_strategy": "steps", "save_steps": 23}
    whole = trainer_of(tmp_path / "whole", rows, max_steps=40)
    whole.train()
    assert whole.sharp.last.strength > 0
    trainer_of(tmp_path / "stopped", rows, **saving).train()
    checkpoint = tmp_path / "stopped" / "checkpoint-23"
    resumed = trainer_of(tmp_path / "stopped", rows, **saving)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.sharp.state_dict() == whole.sharp.state_dict()
    assert same_bits(resumed.model.parameters(), whole.model.parameters())
    (checkpoint / "walk_schedule.json").unlink()
    again = trainer_of(tmp_path / "stopped", rows, **saving)
    with pytest.warns(UserWarning, match="the schedule begins again at step 0"):
        again.train(resume_from_checkpoint=str(checkpoint))


@pytest.mark.parametrize("scale", ["gradient_strength", "one"])
def test_trainers_budget_is_that_of_the_mean_loss(tmp_path, scale):
    """With accumulation the Trainer divides the loss; the budget must not see it, whatever the scale."""
    preset = ga_sam if scale == "gradient_strength" else sam
    rises = []
    for accumulate in (1, 2):
        trainer = trainer_of(
            tmp_path / str(accumulate),
            sentences(8 * accumulate),
            perturbation=preset(budget=0.02, cap=1e9),
            schedule=None,
            accumulate=accumulate,
        )
        trainer.train()
        rises.append(trainer.sharp.last.predicted_rise.item())
    assert rises == pytest.approx([0.02, 0.02], rel=1e-5)


def test_lightnings_weights_are_those_of_a_plain_loop_with_a_budget():
    module, expected = Sharp(perturbation=ga_sam(budget=0.1, cap=0.05)), network()
    fit(module, batches(5))
    plain_loop(expected, batches(5), ga_sam(budget=0.1, cap=0.05))
    assert error(weights(module), flat(expected.parameters())) < EXACT
