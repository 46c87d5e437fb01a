"""Hugging Face Trainer: the same weights as a plain loop, on a classifier, a language model, a translator and LoRA."""

import peft
import pytest
import torch
from torch.nn.functional import cross_entropy
from trainer_models import (
    GA_SAM,
    SMOOTH,
    arguments,
    classifier,
    language_model,
    next_word,
    own_mean,
    pairs,
    plain_loop,
    sentences,
    seq2seq_arguments,
    smoothed,
    texts,
    translator,
    words_of,
)
from transformers import Trainer

from gasam import SharpBackward, asam, friendly_sam, ga_sam, look_sam, multi_step_defense, sam, same_noise
from gasam.integrations.transformers import (
    SharpnessAwareSeq2SeqTrainer,
    SharpnessAwareTrainer,
    SharpnessAwareTrainerMixin,
)
from tolerances import EXACT, SINGLE, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


def trained(model, rows, args, perturbation=GA_SAM, kind=SharpnessAwareTrainer, **options):
    trainer = kind(model=model, args=args, train_dataset=rows, perturbation=perturbation, **options)
    trainer.train()
    return trainer


def weights(model):
    return flat(model.parameters())


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("clip", [0.0, 0.2])
@pytest.mark.parametrize("perturbation", [GA_SAM, sam(0.1), asam(0.1)], ids=["ga_sam", "sam", "asam"])
def test_classifier_equals_a_plain_loop(tmp_path, accumulate, clip, perturbation):
    model, expected, rows = classifier(), classifier(), sentences(20 * accumulate)
    trainer = trained(model, rows, arguments(tmp_path, accumulate, max_grad_norm=clip), perturbation)
    plain_loop(expected, rows, own_mean, perturbation, accumulate=accumulate, clip=clip)
    assert error(weights(model), weights(expected)) < EXACT
    assert trainer.sharp.last.climbed


@pytest.mark.parametrize("accumulate", [1, 3])
def test_language_model_walks_by_the_mean_of_each_micro_batch(tmp_path, accumulate):
    """The Trainer divides sums over words by the words of all micro-batches; T must not see it."""
    model, expected, rows = language_model(), language_model(), texts(20 * accumulate)
    trainer = trained(model, rows, arguments(tmp_path, accumulate), SMOOTH)
    traces = plain_loop(expected, rows, next_word, SMOOTH, accumulate=accumulate, count=words_of)
    assert error(weights(model), weights(expected)) < SINGLE
    assert error(torch.stack(trainer.sharp.last.norms), torch.stack(traces[-1][1].norms)) < SINGLE


@pytest.mark.parametrize("accumulate", [1, 2])
def test_translator_with_smoothed_labels_equals_a_plain_loop(tmp_path, accumulate):
    """Smoothing takes the labels out of the inputs, so the later passes need a copy. It sums in float32, and Adam
    would make a step of the rounding in the keys' biases."""
    model, expected, rows = translator(), translator(), pairs(20 * accumulate)
    args = seq2seq_arguments(tmp_path, accumulate, label_smoothing_factor=0.1, optim="sgd")
    trainer = trained(model, rows, args, SMOOTH, kind=SharpnessAwareSeq2SeqTrainer)
    plain_loop(
        expected, rows, smoothed, SMOOTH, accumulate=accumulate, count=lambda batch: words_of(batch, shift=0),
        base=torch.optim.SGD,
    )  # fmt: skip
    assert error(weights(model), weights(expected)) < SINGLE
    assert trainer.sharp.last.climbed
    assert trainer.model.generate(rows[0]["input_ids"].unsqueeze(0), num_beams=2, max_new_tokens=3).shape[0] == 1


def test_lora_moves_its_own_weights_only(tmp_path):
    def made():
        return peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))

    seen = []

    class Watching(SharpnessAwareTrainer):
        def compute_loss(self, model, *args, **kwargs):
            seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
            return super().compute_loss(model, *args, **kwargs)

    model, expected, rows = made(), made(), texts(20)
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if "lora" not in name}
    trained(model, rows, arguments(tmp_path), SMOOTH, kind=Watching)
    plain_loop(expected, rows, next_word, SMOOTH)
    assert len(seen) == 15
    assert all(torch.equal(passed[name], frozen[name]) for passed in seen for name in frozen)
    assert all(not torch.equal(seen[1][name], seen[0][name]) for name in seen[0] if "lora_B" in name)
    assert error(weights(model), weights(expected)) < SINGLE


def test_bf16_equals_autocast_in_a_plain_loop(tmp_path):
    """A cached low-precision copy of the old weights would switch the method off silently."""
    model, expected, rows = language_model().float(), language_model().float(), texts(40)
    trainer = trained(model, rows, arguments(tmp_path, 2, bf16=True))
    plain_loop(
        expected, rows, next_word, accumulate=2, count=words_of, autocast=lambda: torch.autocast("cpu", torch.bfloat16)
    )
    assert error(weights(model), weights(expected)) < SINGLE
    assert trainer.sharp.last.losses[0] != trainer.sharp.last.losses[1]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(tmp_path, use_reentrant):
    model, expected, rows = classifier(), classifier(), sentences(20)
    options = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": use_reentrant}}
    trained(model, rows, arguments(tmp_path, **options))
    plain_loop(expected, rows, own_mean)
    assert error(weights(model), weights(expected)) < EXACT


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
def test_off_is_the_plain_trainer_bit_for_bit(tmp_path, off):
    models, logs = (classifier(0.1), classifier(0.1)), []
    for model, kind in zip(models, (Trainer, SharpnessAwareTrainer), strict=True):
        extra = {"perturbation": ga_sam(0.0 if off == "epsilon" else 0.1)} if kind is not Trainer else {}
        trainer = kind(model=model, args=arguments(tmp_path, 2), train_dataset=sentences(40), **extra)
        if kind is not Trainer:
            trainer.sharp.enabled = off != "enabled"
        trainer.train()
        logs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert same_bits(models[1].parameters(), models[0].parameters())
    assert logs[0] == logs[1]


class Masked:
    """Hides words at random where the loss is computed, and notes where the generator stood in each pass."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.states = [*getattr(self, "states", []), torch.get_rng_state()]
        words = inputs["input_ids"]
        return super().compute_loss(
            model, inputs | {"input_ids": words.where(torch.rand(words.shape) < 0.8, 0)}, *args, **kwargs
        )


class MaskedTrainer(Masked, Trainer):
    pass


class MaskedSharp(Masked, SharpnessAwareTrainer):
    pass


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
def test_off_computes_no_loss_beside_the_trainers(tmp_path, off):
    plain = MaskedTrainer(model=language_model(), args=arguments(tmp_path, 2), train_dataset=texts(40))
    plain.train()
    sharp = MaskedSharp(
        model=language_model(), args=arguments(tmp_path, 2), train_dataset=texts(40),
        perturbation=ga_sam(0.0 if off == "epsilon" else 0.1),
    )  # fmt: skip
    sharp.sharp.enabled = off != "enabled"
    sharp.train()
    assert len(sharp.states) == len(plain.states) == 10
    assert same_bits(sharp.model.parameters(), plain.model.parameters())


@pytest.mark.parametrize("perturbation", [sam(0.1), asam(0.1, eta=0.01), multi_step_defense(0.1, steps=1)])
def test_scale_that_does_not_see_the_gradient_needs_no_other_loss(tmp_path, perturbation):
    trainer = trained(language_model(), texts(40), arguments(tmp_path, 2), perturbation, kind=MaskedSharp)
    assert len(trainer.states) == 20


def test_model_is_asked_from_where_the_generators_stand_and_leaves_them_there(tmp_path):
    """Three losses where the number of items is ignored, two where the loss is divided by it, then two passes each."""
    for model, rows, asked in ((classifier(), sentences(40), 3), (language_model(), texts(40), 2)):
        trainer = trained(model, rows, arguments(tmp_path, 2), ga_sam(1e-3), kind=MaskedSharp)
        assert len(trainer.states) == asked + 20
        assert all(torch.equal(state, trainer.states[0]) for state in trainer.states[1 : asked + 1])
        assert not torch.equal(trainer.states[asked + 1], trainer.states[0])


def test_accumulation_does_not_change_the_walk(tmp_path):
    class Tracing(SharpnessAwareTrainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            norms[-1].append(torch.stack(self.sharp.last.norms))
            return loss

    for made, rows, tolerance in ((classifier, sentences(24), EXACT), (language_model, texts(24), SINGLE)):
        norms = []
        for accumulate in (1, 3):
            norms.append([])
            args = arguments(tmp_path, accumulate, max_steps=6 // accumulate, learning_rate=0.0)
            trained(made(), rows, args, SMOOTH, kind=Tracing)
        assert error(torch.stack(norms[1]), torch.stack(norms[0])) < tolerance


@pytest.mark.parametrize("perturbation", [GA_SAM, friendly_sam(0.05), look_sam(0.05)], ids=["ga", "friendly", "look"])
def test_resumed_run_equals_one_never_stopped(perturbation, tmp_path):
    whole, rows = classifier(0.2), sentences(24)
    trained(whole, rows, arguments(tmp_path / "whole", save_strategy="steps", save_steps=3), perturbation)
    resumed = SharpnessAwareTrainer(
        model=classifier(0.2), args=arguments(tmp_path / "again"), train_dataset=rows, perturbation=perturbation
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert same_bits(resumed.model.parameters(), whole.parameters())
    assert not list((tmp_path / "whole" / "checkpoint-3").glob("*sharp*"))


def test_contexts_surround_the_trainers_own_pass(tmp_path):
    """same_noise has to know where the generators stood before the Trainer's forward pass, not after it."""

    class Same(SharpnessAwareTrainer):
        def create_sharp_backward(self):
            return SharpBackward(self.model.named_parameters(), self.perturbation, around=same_noise())

        def training_step(self, model, inputs, *rest):
            torch.manual_seed(int(inputs["input_ids"].sum()))  # the same for the same batch
            return super().training_step(model, inputs, *rest)

    model, expected, rows = classifier(0.3), classifier(0.3), sentences(20)
    trained(model, rows, arguments(tmp_path), kind=Same)
    noise, seeds = (
        same_noise(),
        iter([int(sum(row["input_ids"].sum() for row in rows[i : i + 4])) for i in range(0, 20, 4)]),
    )

    def seeding_around(k, last):
        if k == 0:
            torch.manual_seed(next(seeds))
        return noise(k, last)

    plain_loop(expected, rows, own_mean, around=seeding_around)
    assert error(weights(model), weights(expected)) < EXACT


class Weighted(Trainer):
    """A trainer of somebody's own, with a loss of their own: a mean over its batch."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return cross_entropy(model(**inputs).logits, labels, weight=torch.tensor([1.0, 2.0, 3.0]).double())


def test_mixin_goes_before_a_trainer_of_ones_own(tmp_path):
    class Mine(SharpnessAwareTrainerMixin, Weighted):
        pass

    model, expected, rows = classifier(), classifier(), sentences(40)
    trainer = trained(model, rows, arguments(tmp_path, 2), kind=Mine)

    def loss(model, batch):
        weight = torch.tensor([1.0, 2.0, 3.0]).double()
        return cross_entropy(model(batch["input_ids"]).logits, batch["labels"], weight=weight)

    traces = plain_loop(expected, rows, loss, accumulate=2, count=lambda batch: 1)
    assert error(weights(model), weights(expected)) < EXACT
    assert error(torch.stack(trainer.sharp.last.norms), torch.stack(traces[-1][1].norms)) < EXACT
