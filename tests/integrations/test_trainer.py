"""Hugging Face Trainer: the weights of a plain loop, the clean loss in the logs, the schedule, and what is refused."""

import os
from dataclasses import replace

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
    seq2seq_arguments,
    smoothed,
    stacked,
    texts,
    translator,
    words_of,
)
from transformers import Trainer, TrainerCallback
from two_processes import run_two

from gasam import (
    Schedule,
    SharpBackward,
    SharpnessAware,
    asam,
    friendly_sam,
    ga_sam,
    look_sam,
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


def trained(model, rows, args, perturbation=GA_SAM, kind=SharpnessAwareTrainer, **options):
    trainer = kind(model=model, args=args, train_dataset=rows, perturbation=perturbation, **options)
    trainer.train()
    return trainer


def weights(model):
    return flat(model.parameters())


CASES = [(GA_SAM, 1, 0.0), (sam(0.1), 3, 0.2), (asam(0.1), 2, 0.2), (GA_SAM, 3, 0.0)]


@pytest.mark.parametrize(("perturbation", "accumulate", "clip"), CASES)
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


@pytest.mark.parametrize("accumulate", [2])
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
    import peft  # takes seconds, which collecting need not

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


def test_off_computes_no_loss_beside_the_trainers(tmp_path):
    plain = MaskedTrainer(model=language_model(), args=arguments(tmp_path, 2), train_dataset=texts(40))
    plain.train()
    sharp = MaskedSharp(
        model=language_model(), args=arguments(tmp_path, 2), train_dataset=texts(40),
        perturbation=ga_sam(0.1),
    )  # fmt: skip
    sharp.sharp.enabled = False
    sharp.train()
    assert len(sharp.states) == len(plain.states) == 10
    assert same_bits(sharp.model.parameters(), plain.model.parameters())


@pytest.mark.parametrize("perturbation", [sam(0.1), asam(0.1, eta=0.01)])
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


def made(folder, rows, accumulate=1, kind=SharpnessAwareTrainer, model=None, **options):
    extra = {
        name: options.pop(name)
        for name in ("eval_dataset", "callbacks", "model_init", "perturbation", "optimizers", "schedule")
        if name in options
    }
    if "model_init" not in extra:
        extra["model"] = model or classifier()
    return kind(
        args=arguments(folder, accumulate, **options), train_dataset=rows, **{"perturbation": GA_SAM} | extra
    )  # fmt: skip


def test_clean_loss_and_trace_go_to_the_logs(tmp_path):
    """Averaged over steps and summed over micro-batches, as the Trainer does with the loss."""
    rows = sentences(40)
    trainer = made(tmp_path, rows, accumulate=2, logging_steps=5)
    trainer.train()
    traces = [trace for _, trace in plain_loop(classifier(), rows, own_mean, accumulate=2)]
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(sum(trace.losses[0].item() for trace in traces) / 5, rel=1e-6)
    assert logged["sharpness"] == pytest.approx(sum(trace.sharpness.item() for trace in traces) / 5)
    assert logged["perturbation_norm"] == pytest.approx(sum(trace.norms[-1].item() for trace in traces) / 10)
    assert logged["sharpness"] > 0


def test_evaluation_is_untouched(tmp_path):
    rows = sentences(20)
    trainer = made(tmp_path, rows, eval_dataset=rows[:4], eval_strategy="steps", eval_steps=5)
    trainer.train()
    expected = own_mean(trainer.model.eval(), stacked(rows[:4])).item()
    (evaluated,) = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluated["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert "sharpness" not in evaluated


def test_walk_may_start_late(tmp_path):
    class Late(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            trainer.sharp.enabled = state.global_step >= 3

    trainer = made(tmp_path, sentences(20), callbacks=[Late()])
    trainer.train()
    norms = [entry["perturbation_norm"] for entry in trainer.state.log_history if "loss" in entry]
    assert [norm > 0 for norm in norms] == [False] * 3 + [True] * 2


def test_failing_pass_leaves_all_at_home(tmp_path):
    class Failing(SharpnessAwareTrainer):
        calls = 0

        def compute_loss(self, *args, **kwargs):
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().compute_loss(*args, **kwargs)

    trainer, before = made(tmp_path, sentences(20), kind=Failing), flat(classifier().parameters())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert torch.equal(flat(trainer.model.parameters()), before)
    assert "compute_loss" not in vars(trainer)
    assert "backward" not in vars(trainer.accelerator)
    assert trainer.sharp.backward is torch.Tensor.backward


def test_mistakes_are_named(tmp_path, monkeypatch):
    with pytest.raises(TypeError, match="perturbation must be a Perturbation such as ga_sam"):
        SharpnessAwareTrainer(model=classifier(), args=arguments(tmp_path), perturbation=ga_sam)

    class Partly(SharpnessAwareTrainer):
        def create_sharp_backward(self):
            return SharpBackward(self.model.bert.parameters(), self.perturbation)

    with pytest.raises(RuntimeError, match=r"'classifier.weight' is trained, but create_sharp_backward"):
        made(tmp_path, sentences(20), kind=Partly).train()

    class Nothing(SharpnessAwareTrainer):
        def create_sharp_backward(self):
            return None

    with pytest.raises(TypeError, match="create_sharp_backward must return a SharpBackward, got NoneType"):
        made(tmp_path, sentences(20), kind=Nothing).train()


class Unfreezing(TrainerCallback):
    """The embeddings are trained from the third step on."""

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == 2:
            optimizer.param_groups[0]["params"] += model.bert.embeddings.requires_grad_(True).parameters()


def partly_frozen():
    model = classifier()
    model.bert.embeddings.requires_grad_(False)
    return model


def test_layers_are_unfrozen_only_where_the_walk_knows_them(tmp_path):
    class Trained(SharpnessAwareTrainer):
        def create_sharp_backward(self):
            return SharpBackward([p for p in self.model.parameters() if p.requires_grad], self.perturbation)

    trainer = made(tmp_path, sentences(20), kind=Trained, model=partly_frozen(), callbacks=[Unfreezing()])
    with pytest.raises(RuntimeError, match=r"embeddings.weight' is trained, but.*including frozen ones"):
        trainer.train()
    assert trainer.state.global_step == 2
    trainer = made(tmp_path, sentences(20), model=partly_frozen(), callbacks=[Unfreezing()])
    trainer.train()
    words = trainer.model.bert.embeddings.word_embeddings.weight
    assert not torch.equal(words, partly_frozen().bert.embeddings.word_embeddings.weight)


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP", "MEGATRON_LM"])
def test_sharded_training_is_refused_by_name(tmp_path, kind, monkeypatch):
    trainer = made(tmp_path, sentences(20))
    monkeypatch.setattr(type(trainer.accelerator), "distributed_type", type(trainer.accelerator.distributed_type)[kind])
    with pytest.raises(RuntimeError, match=f"{kind} shards weights or gradients.*use DDP"):
        trainer.training_step(trainer.model, {})


def test_other_backwards_are_refused_by_name(tmp_path, monkeypatch):
    trainer = made(tmp_path, sentences(20))
    trainer.args.optim = "lomo"
    with pytest.raises(RuntimeError, match="optim=lomo steps inside backward"):
        trainer.training_step(trainer.model, {})
    trainer.args._n_gpu = 2
    with pytest.raises(RuntimeError, match="start one process per device with torchrun"):
        trainer.training_step(trainer.model, {})


# The Trainer multiplies the loss by the workers where it thinks that the model divides by the tokens of all.
SGD = {"optim": "sgd", "max_grad_norm": 0.0, "perturbation": SMOOTH}
RUNS = {
    "one": (1, {"average_tokens_across_devices": False}),
    "accumulating": (2, {"average_tokens_across_devices": False}),
    "doubled": (1, {"learning_rate": 0.01}),
}


def worker(rank, path):
    os.environ["ACCELERATE_USE_CPU"] = "true"
    AcceleratorState._reset_state(True)
    for name, (accumulate, options) in RUNS.items():
        rows = sentences(20 * accumulate)
        trainer = made(f"{path}/{name}", rows, accumulate, per_device_train_batch_size=2, **SGD | options)
        assert trainer.args.world_size == 2
        trainer.train()
        weights = flat(trainer.model.parameters())
        everyone = [torch.empty_like(weights) for _ in range(2)]
        dist.all_gather(everyone, weights)
        assert torch.equal(*everyone)
        assert [entry for entry in trainer.state.log_history if entry.get("sharpness", 0) > 0]
        torch.save(weights, f"{path}/{name}.pt")


def test_two_processes_equal_one_on_the_joint_batch(tmp_path, monkeypatch):
    """DDP: one walk for all workers, also while accumulating, where the Trainer does not synchronise."""
    run_two(worker, tmp_path, monkeypatch)
    for name, (accumulate, _) in RUNS.items():
        expected, rows = classifier(), sentences(20 * accumulate)
        plain_loop(expected, rows, own_mean, SMOOTH, accumulate=accumulate, clip=0.0, base=torch.optim.SGD)
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert error(found, flat(expected.parameters())) < EXACT, name


def trainer_of(tmp_path, rows, **options):
    options = {"perturbation": ga_sam(budget=0.1, cap=0.05), "schedule": Schedule(warmup=20)} | options
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
    rows, saving = sentences(64), {"max_steps": 16, "save_strategy": "steps", "save_steps": 9}
    whole = trainer_of(tmp_path / "whole", rows, max_steps=16)
    whole.train()
    assert whole.sharp.last.strength > 0
    trainer_of(tmp_path / "stopped", rows, **saving).train()
    checkpoint = tmp_path / "stopped" / "checkpoint-9"
    resumed = trainer_of(tmp_path / "stopped", rows, **saving)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert resumed.sharp.state_dict() == whole.sharp.state_dict()
    assert same_bits(resumed.model.parameters(), whole.model.parameters())
    (checkpoint / "walk_schedule.json").unlink()
    again = trainer_of(tmp_path / "stopped", rows, **saving)
    with pytest.warns(UserWarning, match="the schedule begins again at step 0"):
        again.train(resume_from_checkpoint=str(checkpoint))


@pytest.mark.parametrize("preset", [ga_sam, sam])
def test_trainers_budget_is_that_of_the_mean_loss(tmp_path, preset):
    """With accumulation the Trainer divides the loss; the budget must not see it, whatever the scale."""
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


def test_mixin_after_the_frameworks_class_and_two_walks_at_once_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"Wrong has SharpnessAwareTrainerMixin after Trainer .* class Wrong\("):
        type("Wrong", (Trainer, SharpnessAwareTrainerMixin), {})
    model = classifier()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), sam(0.1))
    trainer = made(tmp_path, sentences(8), model=model, optimizers=(optimizer, None))
    with pytest.raises(RuntimeError, match="SharpnessAwareTrainer and SharpnessAware are both used"):
        trainer.train()
