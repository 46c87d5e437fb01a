"""Hugging Face Trainer: the clean loss in the logs, evaluation, callbacks, workers, and what is said to mistakes."""

import os

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState
from trainer_models import GA_SAM, SMOOTH, arguments, classifier, own_mean, plain_loop, sentences, stacked
from transformers import TrainerCallback
from two_processes import run_two

from gasam import SharpBackward, ga_sam
from gasam.integrations.transformers import SharpnessAwareTrainer
from tolerances import EXACT, error, flat

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")


def made(folder, rows, accumulate=1, kind=SharpnessAwareTrainer, model=None, **options):
    extra = {
        name: options.pop(name)
        for name in ("eval_dataset", "callbacks", "model_init", "perturbation")
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


def test_new_model_gets_a_walk_of_its_own(tmp_path):
    trainer = made(tmp_path, sentences(20), model_init=lambda: classifier(), max_steps=1)
    trainer.train()
    first = trainer.sharp
    trainer.train()
    assert trainer.sharp is not first
    assert trainer.sharp.last.climbed


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
