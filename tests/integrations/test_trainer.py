"""Hugging Face Trainer: the weights of a plain loop, the clean loss in the logs, the schedule, and what is refused."""

import dataclasses
import itertools
import os

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
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
    smoothed,
    stacked,
    texts,
    translator,
    words_of,
)
from transformers import Seq2SeqTrainingArguments, Trainer, TrainerCallback
from two_processes import run_two

from gasam import (
    MovingAverage,
    Schedule,
    SharpBackward,
    SharpnessAware,
    asam,
    friendly_sam,
    ga_sam,
    look_sam,
    random_offsets,
    recommended,
    sam,
    same_noise,
)
from gasam.integrations.transformers import (
    SharpnessAwareSeq2SeqTrainer,
    SharpnessAwareTrainer,
    SharpnessAwareTrainerMixin,
)
from tolerances import EXACT, SINGLE, error, flat, same_bits

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


def made(model, rows, args, kind=SharpnessAwareTrainer, **options):
    return kind(model=model, args=args, train_dataset=rows, **{"perturbation": GA_SAM} | options)


def trained(*given, **options):
    trainer = made(*given, **options)
    trainer.train()
    return trainer


def weights(model):
    return flat(model.parameters())


def equal_a_plain_loop(
    folder, make, rows, loss, perturbation=GA_SAM, *, accumulate=1, given=None, kind=SharpnessAwareTrainer,
    schedule=None, tolerance=EXACT, part=None, **options,
):  # fmt: skip
    """Compare the weights after five steps. Returns the trainer, and the traces of the loop with their weights."""
    model, expected = make(), make()
    args = arguments(folder, accumulate, **given or {})
    options |= {"accumulate": accumulate, "schedule": schedule, "part": part}
    fraction = len(part) / 4 if part else None
    trainer = trained(
        model, rows, args, perturbation=perturbation, schedule=schedule, kind=kind, ascent_fraction=fraction
    )
    traces = plain_loop(expected, rows, loss, perturbation, **options)
    assert error(weights(model), weights(expected)) < tolerance
    return trainer, traces


EVERY = Schedule(every=3, weight=3.0)
CASES = [(GA_SAM, 1, 0.0, None), (sam(0.1), 3, 0.2, EVERY), (asam(0.1), 2, 0.2, None), (GA_SAM, 3, 0.0, EVERY)]


@pytest.mark.parametrize(("perturbation", "accumulate", "clip", "schedule"), CASES)
def test_classifier_equals_a_plain_loop(tmp_path, perturbation, accumulate, clip, schedule):
    options = {"accumulate": accumulate, "clip": clip, "schedule": schedule, "given": {"max_grad_norm": clip}}
    case = classifier, sentences(20 * accumulate), own_mean
    trainer, traces = equal_a_plain_loop(tmp_path, *case, perturbation, **options)
    assert len(trainer.sharp.last.losses) == len(traces[-1][1].losses)


AVERAGE = dataclasses.replace(SMOOTH, method=MovingAverage(0.7))
# Walks in which the Trainer's own pass is displaced, on which of four examples, and numbers of micro-batches.
CHEAP = {
    "average": (AVERAGE, None, 3),
    "random": (random_offsets(0.05), None, 2),
    "part": (dataclasses.replace(ga_sam(budget=0.02, cap=0.05), floor=1e-4), [0], 2),
    "part, mean of two steps": (GA_SAM, [0, 1], 1),
    "part, last of two steps": (sam(0.1, steps=2), [0], 2),
}


@pytest.mark.parametrize("name", CHEAP)
def test_cheaper_walks_equal_a_plain_loop(tmp_path, name):
    walk, part, accumulate = CHEAP[name]
    options = {"accumulate": accumulate, "clip": 0.2, "given": {"max_grad_norm": 0.2}, "part": part}
    trainer, traces = equal_a_plain_loop(tmp_path, classifier, sentences(20 * accumulate), own_mean, walk, **options)
    assert error(trainer.sharp.last.norms[-1], traces[-1][1].norms[-1]) < EXACT
    assert trainer.sharp.last.passes == walk.steps + (part is not None)
    assert not any("sharpness" in entry for entry in trainer.state.log_history)
    assert trainer.state.log_history[-2]["perturbation_norm"] > 0


OF_BUDGET = dataclasses.replace(ga_sam(budget=0.02, norm=2.0, cap=1e9), floor=1e-4)


@pytest.mark.parametrize(("walk", "part", "accumulate"), [
    (dataclasses.replace(OF_BUDGET, method=AVERAGE.method), None, 3), (OF_BUDGET, [0], 2), (SMOOTH, None, 1),
    (SMOOTH, None, 3),
])  # fmt: skip
def test_language_model_walks_by_the_mean_of_each_micro_batch(tmp_path, walk, part, accumulate):
    """The Trainer divides sums over words by the words of all micro-batches; neither T nor the budget may see it."""
    options = {"accumulate": accumulate, "count": words_of, "tolerance": SINGLE, "part": part}
    trainer, traces = equal_a_plain_loop(tmp_path, language_model, texts(20 * accumulate), next_word, walk, **options)
    assert error(torch.stack(trainer.sharp.last.norms), torch.stack(traces[-1][1].norms)) < SINGLE


def test_translator_with_smoothed_labels_equals_a_plain_loop(tmp_path):
    """Smoothing takes the labels out of the inputs, so the later passes need a copy. It sums in float32, and Adam
    would make a step of the rounding in the keys' biases."""
    rows = pairs(40)
    given = {"kind": Seq2SeqTrainingArguments, "label_smoothing_factor": 0.1, "optim": "sgd"}
    options = {"accumulate": 2, "count": lambda batch: words_of(batch, shift=0), "base": torch.optim.SGD}
    trainer, _ = equal_a_plain_loop(
        tmp_path, translator, rows, smoothed, SMOOTH,
        given=given, kind=SharpnessAwareSeq2SeqTrainer, tolerance=SINGLE, **options,
    )  # fmt: skip
    assert trainer.sharp.last.climbed
    assert trainer.model.generate(rows[0]["input_ids"].unsqueeze(0), num_beams=2, max_new_tokens=3).shape[0] == 1


def test_lora_moves_its_own_weights_only(tmp_path):
    import peft  # takes seconds, which collecting need not

    seen, config = [], peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])

    class Watching(SharpnessAwareTrainer):
        def compute_loss(self, model, *args, **kwargs):
            seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
            return super().compute_loss(model, *args, **kwargs)

    case = lambda: peft.get_peft_model(language_model(), config), texts(20), next_word
    equal_a_plain_loop(tmp_path, *case, SMOOTH, kind=Watching, tolerance=SINGLE)
    assert all(torch.equal(each[name], seen[0][name]) for each in seen for name in each if "lora" not in name)
    assert all(not torch.equal(seen[1][name], seen[0][name]) for name in seen[0] if "lora_B" in name)


def test_bf16_equals_autocast_in_a_plain_loop(tmp_path):
    """A cached low-precision copy of the old weights would switch the method off silently."""
    case = lambda: language_model().float(), texts(40), next_word
    options = {"accumulate": 2, "count": words_of, "autocast": lambda: torch.autocast("cpu", torch.bfloat16)}
    trainer, _ = equal_a_plain_loop(tmp_path, *case, given={"bf16": True}, tolerance=SINGLE, **options)
    assert trainer.sharp.last.losses[0] != trainer.sharp.last.losses[1]


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("perturbation", [GA_SAM, AVERAGE])
def test_gradient_checkpointing_changes_nothing(tmp_path, use_reentrant, perturbation):
    given = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": use_reentrant}}
    equal_a_plain_loop(tmp_path, classifier, sentences(20), own_mean, perturbation, given=given)


class Masked:
    """Hides words at random where the loss is computed, and notes where the generator stood in each pass."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.states = [*getattr(self, "states", []), torch.get_rng_state()]
        words = inputs["input_ids"]
        masked = inputs | {"input_ids": words.where(torch.rand(words.shape) < 0.8, 0)}
        return super().compute_loss(model, masked, *args, **kwargs)


class MaskedTrainer(Masked, Trainer):
    pass


class MaskedSharp(Masked, SharpnessAwareTrainer):
    pass


@pytest.mark.parametrize("off", ["epsilon", "enabled"])
@pytest.mark.parametrize("walk", ["clean pass", "average", "part"])
def test_off_is_the_plain_trainer_bit_for_bit(tmp_path, off, walk):
    plain = MaskedTrainer(model=classifier(0.1), args=arguments(tmp_path, 2), train_dataset=sentences(40))
    plain.train()
    perturbation = ga_sam(0.0 if off == "epsilon" else 0.1, method=MovingAverage() if walk == "average" else None)
    options = {"perturbation": perturbation, "part": (lambda inputs: 1 / 0) if walk == "part" else None}
    sharp = made(classifier(0.1), sentences(40), arguments(tmp_path, 2), kind=MaskedSharp, **options)
    sharp.sharp.enabled = off != "enabled"
    sharp.train()
    assert same_bits(sharp.model.parameters(), plain.model.parameters())
    logs = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (plain, sharp)]
    assert logs[0] == logs[1]
    assert len(sharp.states) == len(plain.states) == 10  # no loss beside the Trainer's


def test_model_is_asked_from_where_the_generators_stand_and_leaves_them_there(tmp_path):
    """Three losses where the number of items is ignored, two where the loss is divided by it, then two passes each; a
    scale that does not see the gradient needs no other loss."""
    for model, rows, walk, asked in (
        (classifier(), sentences(40), ga_sam(1e-3), 3),
        (language_model(), texts(40), ga_sam(1e-3), 2),
        (language_model(), texts(40), asam(0.1, eta=0.01), 0),
    ):
        trainer = trained(model, rows, arguments(tmp_path, 2), perturbation=walk, kind=MaskedSharp)
        assert len(trainer.states) == asked + 20
        assert all(torch.equal(state, trainer.states[0]) for state in trainer.states[1 : asked + (asked > 0)])
        assert not torch.equal(trainer.states[asked + 1], trainer.states[0])


RESUMED = [ga_sam(0.02, steps=2), friendly_sam(0.05), look_sam(0.05), AVERAGE, random_offsets(0.05)]


@pytest.mark.parametrize("perturbation", RESUMED, ids=str)
def test_resumed_run_equals_one_never_stopped(tmp_path, perturbation):
    def options(folder):
        args = arguments(tmp_path / folder, max_steps=12, save_strategy="steps", save_steps=7)
        schedule = Schedule(warmup=20) if perturbation.method is None else None
        return {"args": args, "rows": sentences(48), "perturbation": perturbation, "schedule": schedule}

    whole = trained(classifier(0.2), **options("whole"))
    resumed = made(classifier(0.2), **options("again"))
    checkpoint = tmp_path / "whole" / "checkpoint-7"
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert same_bits(resumed.model.parameters(), whole.model.parameters())
    assert resumed.sharp.last.strength == whole.sharp.last.strength
    if perturbation.method is None:
        (checkpoint / "walk.pt").unlink()
        with pytest.warns(UserWarning, match="the schedule begins again at step 0"):
            made(classifier(0.2), **options("third")).train(resume_from_checkpoint=str(checkpoint))


def test_contexts_surround_the_trainers_own_pass(tmp_path):
    """same_noise has to know where the generators stood before the Trainer's forward pass, not after it."""
    noise, steps, seeds = same_noise(), itertools.count(), itertools.count()

    class Same(SharpnessAwareTrainer):
        def create_sharp_backward(self):
            return SharpBackward(self.model.named_parameters(), self.perturbation, around=same_noise())

        def training_step(self, *given):
            torch.manual_seed(next(steps))
            return super().training_step(*given)

    def seeding_around(k, last):
        if k == 0:
            torch.manual_seed(next(seeds))
        return noise(k, last)

    equal_a_plain_loop(tmp_path, lambda: classifier(0.3), sentences(20), own_mean, kind=Same, around=seeding_around)


class Weighted(Trainer):
    """A trainer of somebody's own, with a loss of their own: a mean over its batch."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        return cross_entropy(model(**inputs).logits, labels, weight=torch.tensor([1.0, 2.0, 3.0]).double())


def test_mixin_goes_before_a_trainer_of_ones_own(tmp_path):
    class Mine(SharpnessAwareTrainerMixin, Weighted):
        pass

    def loss(model, batch):
        return Weighted.compute_loss(None, model, dict(batch))

    equal_a_plain_loop(tmp_path, classifier, sentences(40), loss, accumulate=2, kind=Mine, count=lambda batch: 1)
    with pytest.raises(TypeError, match=r"Wrong has SharpnessAwareTrainerMixin after Trainer .* class Wrong\("):
        type("Wrong", (Trainer, SharpnessAwareTrainerMixin), {})


def test_clean_loss_and_trace_go_to_the_logs_and_evaluation_is_untouched(tmp_path):
    """Averaged over steps and summed over micro-batches, as the Trainer does with the loss."""
    rows = sentences(40)
    args = arguments(tmp_path, 2, logging_steps=5, eval_strategy="steps", eval_steps=5)
    trainer = trained(classifier(), rows, args, eval_dataset=rows[:4])
    traces = [trace for _, trace in plain_loop(classifier(), rows, own_mean, accumulate=2)]
    logged, evaluated = trainer.state.log_history[:2]
    assert logged["loss"] == pytest.approx(sum(trace.losses[0].item() for trace in traces) / 5, rel=1e-6)
    assert logged["sharpness"] == pytest.approx(sum(trace.sharpness.item() for trace in traces) / 5)
    assert logged["perturbation_norm"] == pytest.approx(sum(trace.norms[-1].item() for trace in traces) / 10)
    assert logged["sharpness"] > 0
    expected = own_mean(trainer.model.eval(), stacked(rows[:4])).item()
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert "sharpness" not in evaluated


@pytest.mark.parametrize("fraction", [None, 0.25])
def test_failing_pass_leaves_all_at_home(tmp_path, fraction):
    class Failing(SharpnessAwareTrainer):
        calls = 0

        def compute_loss(self, *args, **kwargs):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().compute_loss(*args, **kwargs)

    trainer = made(classifier(), sentences(20), arguments(tmp_path), kind=Failing, ascent_fraction=fraction)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert torch.equal(weights(trainer.model), weights(classifier()))
    assert "compute_loss" not in vars(trainer)
    assert "backward" not in vars(trainer.accelerator)
    assert trainer.sharp.backward is torch.Tensor.backward


class Unfreezing(TrainerCallback):
    """The embeddings are trained from the third step on."""

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == 2:
            optimizer.param_groups[0]["params"] += model.bert.embeddings.requires_grad_(True).parameters()


def partly_frozen():
    model = classifier()
    model.bert.embeddings.requires_grad_(False)
    return model


def walking(parameters):
    """A Trainer whose walk has these parameters of the model."""

    def create(self):
        return SharpBackward(parameters(self.model), self.perturbation)

    return type("Own", (SharpnessAwareTrainer,), {"create_sharp_backward": create})


def test_layers_may_be_unfrozen_where_the_walk_knows_them(tmp_path):
    trainer = trained(partly_frozen(), sentences(20), arguments(tmp_path), callbacks=[Unfreezing()])
    words = trainer.model.bert.embeddings.word_embeddings.weight
    assert not torch.equal(words, partly_frozen().bert.embeddings.word_embeddings.weight)
    trained_ones = walking(lambda model: [p for p in model.parameters() if p.requires_grad])
    trainer = made(partly_frozen(), sentences(20), arguments(tmp_path), kind=trained_ones, callbacks=[Unfreezing()])
    with pytest.raises(RuntimeError, match=r"embeddings.weight' is trained, but.*including frozen ones"):
        trainer.train()
    assert trainer.state.global_step == 2


def test_mistakes_are_named(tmp_path):
    given = classifier(), sentences(20), arguments(tmp_path)
    with pytest.raises(TypeError, match="perturbation must be a Perturbation such as ga_sam"):
        made(*given, perturbation=ga_sam)
    with pytest.raises(RuntimeError, match=r"'classifier.weight' is trained, but create_sharp_backward"):
        trained(*given, kind=walking(lambda model: model.bert.parameters()))
    nothing = type("Nothing", (SharpnessAwareTrainer,), {"create_sharp_backward": lambda self: None})
    with pytest.raises(TypeError, match="create_sharp_backward must return a SharpBackward, got NoneType"):
        trained(*given, kind=nothing)
    twice = SharpnessAware(torch.optim.SGD(given[0].parameters(), lr=0.1), sam(0.1))
    with pytest.raises(RuntimeError, match="the mixin and SharpnessAware are both used"):
        trained(*given, optimizers=(twice, None))


def test_what_shards_weights_or_steps_inside_backward_is_refused_by_name(tmp_path, monkeypatch):
    trainer = made(classifier(), sentences(20), arguments(tmp_path))
    kinds = type(trainer.accelerator.distributed_type)
    for kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
        with monkeypatch.context() as patch:
            patch.setattr(type(trainer.accelerator), "distributed_type", kinds[kind])
            with pytest.raises(RuntimeError, match=f"{kind} shards weights or gradients.*use DDP"):
                trainer.training_step(trainer.model, {})
    trainer.args.optim = "lomo"
    with pytest.raises(RuntimeError, match="optim=lomo steps inside backward"):
        trainer.training_step(trainer.model, {})
    trainer.args._n_gpu = 2
    with pytest.raises(RuntimeError, match="start one process per device with torchrun"):
        trainer.training_step(trainer.model, {})


# The Trainer multiplies the loss by the workers where it thinks that the model divides by the tokens of all.
RUNS = {
    "one": (1, {"average_tokens_across_devices": False}),
    "accumulating": (2, {"average_tokens_across_devices": False}),
    "doubled": (1, {"learning_rate": 0.01}),
    "average": (2, {"average_tokens_across_devices": False}),
    "part": (2, {"average_tokens_across_devices": False}),
}


def walk_and_part(name):
    return AVERAGE if name == "average" else SMOOTH, 0.5 if name == "part" else None


def worker(rank, path):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    AcceleratorState._reset_state(True)
    for name, (accumulate, options) in RUNS.items():
        options = {"optim": "sgd", "max_grad_norm": 0.0, "per_device_train_batch_size": 2} | options
        args = arguments(f"{path}/{name}", accumulate, **options)
        walk, fraction = walk_and_part(name)
        rows = sentences(20 * accumulate)
        trainer = trained(classifier(), rows, args, perturbation=walk, ascent_fraction=fraction)
        assert trainer.args.world_size == 2
        found = weights(trainer.model)
        everyone = [torch.empty_like(found) for _ in range(2)]
        dist.all_gather(everyone, found)
        assert torch.equal(*everyone)
        assert [entry for entry in trainer.state.log_history if entry.get("perturbation_norm", 0) > 0]
        torch.save(found, f"{path}/{name}.pt")


def test_two_processes_equal_one_on_the_joint_batch(tmp_path, monkeypatch):
    """DDP: one walk for all workers, also while accumulating, where the Trainer does not synchronise."""
    run_two(worker, tmp_path, monkeypatch)
    for name, (accumulate, _) in RUNS.items():
        expected, rows = classifier(), sentences(20 * accumulate)
        walk, fraction = walk_and_part(name)
        options = {"accumulate": accumulate, "clip": 0.0, "base": torch.optim.SGD}
        plain_loop(expected, rows, own_mean, walk, part=[0, 2] if fraction else None, **options)
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert error(found, weights(expected)) < EXACT, name


def test_trainer_uses_the_recommended_walk_and_knows_the_number_of_steps(tmp_path):
    trainer = trained(classifier(), sentences(8), arguments(tmp_path), perturbation=None)
    assert trainer.sharp.perturbation == recommended()[0]
    assert str(recommended()[1]) in repr(trainer.sharp)
    trainer = trained(classifier(), sentences(8), arguments(tmp_path, max_steps=4), schedule=Schedule(warmup=0.9))
    assert trainer.sharp.last.strength == pytest.approx(0.8)


@pytest.mark.parametrize("preset", [ga_sam, sam])
def test_trainers_budget_is_that_of_the_mean_loss(tmp_path, preset):
    """With accumulation the Trainer divides the loss; the budget must not see it, whatever the scale."""
    for accumulate in (1, 2):
        args, walk = arguments(tmp_path, accumulate), preset(budget=0.02, cap=1e9)
        trainer = trained(classifier(), sentences(8 * accumulate), args, perturbation=walk)
        assert trainer.sharp.last.groups.predicted_rise.item() == pytest.approx(0.02, rel=1e-5)
