"""Hugging Face Trainer: the weights of a plain loop, the clean loss in the logs, the schedule, and what is refused."""

import dataclasses
import os

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
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
from transformers import Seq2SeqTrainingArguments, Trainer
from two_processes import run_two

from gasam import (
    MovingAverage,
    Schedule,
    SharpBackward,
    SharpnessAware,
    asam,
    ga_sam,
    random_offsets,
    recommended,
    sam,
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


AVERAGE = dataclasses.replace(SMOOTH, method=MovingAverage(0.7))
EVERY = Schedule(every=3, weight=3.0)
# Walks, on which of four examples the ascent is, numbers of micro-batches, schedules, and activation checkpointing. The
# Trainer's own pass is clean in the first three and displaced in the others.
WALKS = {
    "mean of two steps": (GA_SAM, None, 1, None, None),
    "every third step": (sam(0.1), None, 3, EVERY, None),
    "checkpointing": (GA_SAM, None, 1, None, {"use_reentrant": True}),
    "average": (AVERAGE, None, 3, None, None),
    "average, checkpointing": (AVERAGE, None, 1, None, {"use_reentrant": False}),
    "random": (random_offsets(0.05), None, 2, None, None),
    "part": (dataclasses.replace(ga_sam(budget=0.02, cap=0.05), floor=1e-4), [0], 2, None, None),
    "part, mean of two steps": (GA_SAM, [0, 1], 1, None, None),
    "part, last of two steps": (sam(0.1, steps=2), [0], 2, None, None),
}


@pytest.mark.parametrize("name", WALKS)
def test_classifier_equals_a_plain_loop(tmp_path, name):
    walk, part, accumulate, schedule, checkpointing = WALKS[name]
    given = {"gradient_checkpointing": checkpointing is not None, "gradient_checkpointing_kwargs": checkpointing}
    clip = 0.2 if accumulate > 1 else 0.0
    options = {"accumulate": accumulate, "clip": clip, "schedule": schedule, "part": part}
    case = classifier, sentences(20 * accumulate), own_mean, walk
    trainer, traces = equal_a_plain_loop(tmp_path, *case, given=given | {"max_grad_norm": clip}, **options)
    last, expected = trainer.sharp.last, traces[-1][1]
    assert error(torch.stack(last.norms), torch.stack(expected.norms)) < EXACT
    assert last.passes == expected.passes
    logs = [{"perturbation_norm", "sharpness"} & entry.keys() for entry in trainer.state.log_history[:-1]]
    walked = {"perturbation_norm"} if walk.method or part else {"perturbation_norm", "sharpness"}
    assert logs == [set() if schedule and step % 3 else walked for step in range(5)]


OF_BUDGET = dataclasses.replace(ga_sam(budget=0.02, norm=2.0, cap=1e9), floor=1e-4)


def with_lora():
    import peft  # takes seconds, which collecting need not

    return peft.get_peft_model(language_model(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


@pytest.mark.parametrize(("make", "walk", "part", "accumulate"), [
    (language_model, dataclasses.replace(OF_BUDGET, method=AVERAGE.method), None, 3),
    (language_model, OF_BUDGET, [0], 2), (language_model, SMOOTH, None, 3), (with_lora, SMOOTH, None, 1),
])  # fmt: skip
def test_language_model_walks_by_the_mean_of_each_micro_batch(tmp_path, make, walk, part, accumulate):
    """The Trainer divides sums over words by the words of all micro-batches; neither T nor the budget may see it."""
    options = {"accumulate": accumulate, "count": words_of, "tolerance": SINGLE, "part": part}
    trainer, traces = equal_a_plain_loop(tmp_path, make, texts(20 * accumulate), next_word, walk, **options)
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


def test_bf16_equals_autocast_in_a_plain_loop(tmp_path):
    """A cached low-precision copy of the old weights would switch the method off silently."""
    case = lambda: language_model().float(), texts(40), next_word
    options = {"accumulate": 2, "count": words_of, "autocast": lambda: torch.autocast("cpu", torch.bfloat16)}
    trainer, _ = equal_a_plain_loop(tmp_path, *case, given={"bf16": True}, tolerance=SINGLE, **options)
    assert trainer.sharp.last.losses[0] != trainer.sharp.last.losses[1]


class Masked:
    """Hides words at random where the loss is computed, and notes where the generator stood in each pass."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.states = [*getattr(self, "states", []), torch.get_rng_state()]
        words = inputs["input_ids"]
        masked = inputs | {"input_ids": words.where(torch.rand(words.shape) < 0.8, 0)}
        return super().compute_loss(model, masked, *args, **kwargs)


class MaskedTrainer(Masked, Trainer):
    pass


class MaskedSharp(SharpnessAwareTrainerMixin, MaskedTrainer):
    """The mixin goes before a trainer of the user's own."""


OFF = [("epsilon", "clean pass"), ("enabled", "clean pass"), ("epsilon", "average"), ("enabled", "part")]


@pytest.mark.parametrize(("off", "walk"), OFF)
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


@pytest.mark.parametrize("perturbation", [ga_sam(0.02, steps=2), AVERAGE], ids=str)
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


def own(method):
    """A Trainer that makes its walk so."""
    return type("Own", (SharpnessAwareTrainer,), {"create_sharp_backward": method})


TWICE = SharpnessAware(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1), sam(0.1))
REFUSED = [
    (
        r"Wrong has SharpnessAwareTrainerMixin after Trainer .* class Wrong\(",
        {"kind": lambda **given: type("Wrong", (Trainer, SharpnessAwareTrainerMixin), {})},
    ),
    ("perturbation must be a Perturbation such as ga_sam", {"perturbation": ga_sam}),
    (
        "'classifier.weight' is trained, but create_sharp_backward",
        {"kind": own(lambda self: SharpBackward(self.model.bert.parameters(), self.perturbation))},
    ),
    ("create_sharp_backward must return a SharpBackward, got NoneType", {"kind": own(lambda self: None)}),
    ("the mixin and SharpnessAware are both used", {"optimizers": (TWICE, None)}),
]


@pytest.mark.parametrize(("words", "options"), REFUSED)
def test_mistakes_are_named(tmp_path, words, options):
    with pytest.raises((TypeError, RuntimeError), match=words):
        trained(classifier(), sentences(20), arguments(tmp_path), **options)


def test_what_shards_weights_or_steps_inside_backward_is_refused_by_name(tmp_path, monkeypatch):
    trainer = made(classifier(), sentences(20), arguments(tmp_path))

    def refused(words):
        with pytest.raises(RuntimeError, match=words):
            trainer.training_step(trainer.model, {})

    kinds = type(trainer.accelerator.distributed_type)
    for kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
        with monkeypatch.context() as patch:
            patch.setattr(type(trainer.accelerator), "distributed_type", kinds[kind])
            refused(f"{kind} shards weights or gradients.*use DDP")
    trainer.args.optim = "lomo"
    refused("optim=lomo steps inside backward")
    trainer.args._n_gpu = 2
    refused("start one process per device with torchrun")


# Walks, shares of the ascent, numbers of micro-batches, and options. The Trainer multiplies the loss by the number of
# workers where it thinks that the model divides by the tokens of all.
RUNS = {
    "doubled": (SMOOTH, None, 1, {"learning_rate": 0.01}),
    "average": (AVERAGE, None, 2, {"average_tokens_across_devices": False}),
    "part": (SMOOTH, 0.5, 2, {"average_tokens_across_devices": False}),
    "accumulating": (SMOOTH, None, 2, {"average_tokens_across_devices": False}),
}


def worker(rank, path):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    AcceleratorState._reset_state(True)
    for name, (walk, fraction, accumulate, options) in RUNS.items():
        options = {"optim": "sgd", "max_grad_norm": 0.0, "per_device_train_batch_size": 2} | options
        args = arguments(f"{path}/{name}", accumulate, **options)
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
    for name, (walk, fraction, accumulate, _) in RUNS.items():
        expected, rows = classifier(), sentences(20 * accumulate)
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
