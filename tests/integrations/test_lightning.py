"""Lightning: the weights of a plain loop, the clean loss in the logs, the schedule, and what is said to mistakes."""

import gc
import weakref
from contextlib import nullcontext

import lightning
import pytest
import pytorch_lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import BaseFinetuning
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning_modules import AVERAGE, QUIET, WALKS, Plain, Sharp, batches, fit, loader, plain_loop, weights
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy
from two_processes import run_two

from gasam import (
    MovingAverage,
    Schedule,
    SharpBackward,
    SharpnessAware,
    ga_sam,
    gsam,
    random_offsets,
    recommended,
    sam,
    same_noise,
)
from gasam.integrations.lightning import SharpnessAwareModule, lightning_closure
from problems import batch, network
from tolerances import EXACT, SINGLE, error, flat, same_bits

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),  # five batches
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning calls what torch 2.13 deprecates
]


class Odd(nn.Module):
    """Has a parameter in a product with itself, noise, running statistics, and a part that backward computes again."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.factor = nn.Parameter(torch.rand(6).double() + 0.5)
        self.body = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.2), nn.Tanh()).double()
        self.head = nn.Linear(5, 3).double()

    def forward(self, x):
        return checkpoint(self.head, self.body(x * self.factor * self.factor), use_reentrant=False)


class Noisy(Sharp):
    """Its passes share their noise: the generators' states are those before the framework's forward pass."""

    def configure_sharp_backward(self):
        return SharpBackward(self, self.perturbation, schedule=self.walk_schedule, around=same_noise())

    def on_train_batch_start(self, batch, batch_idx):
        torch.manual_seed(batch_idx)


@pytest.mark.parametrize("name", WALKS)
def test_five_steps_equal_a_plain_loop(name):
    """The framework's own pass may be displaced. Callbacks before and after its backward see the weights at home."""
    walk, on_part, accumulate, clip, every = WALKS[name]

    class Watching(lightning.Callback):
        def on_train_batch_start(self, trainer, module, *_):
            self.home = weights(module).clone()

        def at_home(self, trainer, module, *_):
            assert torch.equal(weights(module), self.home)

        on_before_zero_grad = on_before_backward = on_after_backward = at_home

    data, module, expected, calls = batches(5 * accumulate), Noisy(Odd(), walk), Odd(), []
    expected.register_forward_hook(lambda *_: calls.append(1))
    module.ascent_fraction = 0.3 if on_part else None
    module.walk_schedule = schedule = Schedule(every=every, weight=3.0) if every else None
    options = {"accumulate": accumulate, "clip": clip, "schedule": schedule, "part": 3 if on_part else None}
    trainer = fit(module, data, callbacks=[Watching()], accumulate_grad_batches=accumulate, gradient_clip_val=clip)
    seeded = ((torch.manual_seed(i), each)[1] for i, each in enumerate(data))
    losses = plain_loop(expected, seeded, walk, around=same_noise(), **options)
    assert error(weights(module), weights(expected)) < EXACT
    assert module.outputs == pytest.approx([loss / accumulate for loss in losses], rel=1e-12)
    assert module.calls == len(calls)
    found, expected = module.model.body[1], expected.body[1]
    assert found.num_batches_tracked == len(data)
    assert error(found.running_mean, expected.running_mean) < EXACT
    assert error(found.running_var, expected.running_var) < EXACT
    metrics = trainer.callback_metrics
    assert metrics["loss_step"].item() == pytest.approx(losses[-1])
    walked = {"perturbation_norm"} if walk.method or on_part else {"perturbation_norm", "sharpness"}
    assert metrics.keys() & {"perturbation_norm", "sharpness"} == (set() if every == 3 else walked)


@pytest.mark.parametrize("on_part", [False, True])
def test_a_walk_that_is_switched_off_between_forward_and_backward_ends_as_it_began(on_part):
    class Switching(Sharp):
        def on_before_backward(self, loss):
            self.sharp.enabled = not self.sharp.enabled

    module, expected = Switching(perturbation=sam(0.1) if on_part else random_offsets(0.1)), network()
    module.ascent_fraction = 0.25 if on_part else None
    fit(module, batches(4))
    schedule = lambda step: float(step % 2 == 0)  # noqa: E731
    plain_loop(expected, batches(4), module.perturbation, part=2 if on_part else None, schedule=schedule)
    assert error(weights(module), weights(expected)) < EXACT


def test_a_step_keeps_nothing_until_garbage_is_collected():
    """Neither the graph nor the batch."""
    seen = []

    class Noting(Sharp):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            seen.append(weakref.ref(loss))
            return loss

    module = Noting(perturbation=AVERAGE)
    module.ascent_fraction = 0.25
    gc.disable()
    try:
        fit(module, batches(4))
        assert [loss() for loss in seen] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("kind", ["clean pass", "average", "part"])
def test_a_skipped_or_failing_step_leaves_everything(kind):
    """A graph that has lost its weights raises, instead of giving a wrong gradient."""
    clean = kind == "clean pass"

    class Skipping(Sharp):
        def training_step(self, batch, batch_idx):
            self.loss = super().training_step(batch, batch_idx)
            if batch_idx == 3 and self.clean_pass != clean:  # in the last pass
                raise ArithmeticError("planted")
            return None if batch_idx == 2 and self.clean_pass else self.loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 2:
                assert torch.equal(weights(self), before)
                with nullcontext() if clean else pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    self.loss.backward()
            before.copy_(weights(self))

    module, expected = Skipping(perturbation=AVERAGE if kind == "average" else ga_sam(0.1)), network()
    module.ascent_fraction = 0.25 if kind == "part" else None
    before = weights(module).clone()
    with pytest.raises(ArithmeticError):
        fit(module, batches(4))
    assert torch.equal(weights(module), before)
    plain_loop(expected, batches(2), module.perturbation, part=2 if kind == "part" else None)
    assert error(before, weights(expected)) < EXACT
    assert not module.sharp.weights.keeps_graph
    assert module.clean_pass
    assert "log" not in vars(module)


class HeadInFloat32(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network(torch.float32)

    def forward(self, x):
        hidden = self.net[:2](x).float()
        with torch.autocast("cpu", enabled=False):
            return self.net[2](hidden)


@pytest.mark.parametrize(("walk", "dtype", "overflow"), [
    ("clean pass", torch.bfloat16, False), ("average", torch.bfloat16, False), ("part", torch.bfloat16, False),
    ("clean pass", torch.float16, True), ("average", torch.float16, True), ("part", torch.float16, True),
    ("part", torch.float16, False),
])  # fmt: skip
def test_mixed_precision_equals_a_plain_loop(walk, dtype, overflow):
    """With float16 also a loss scaler, which skips a step that overflows."""
    data, expected = batches(10, torch.float32), HeadInFloat32()
    if overflow:  # the second micro-batch of step 3: beyond the largest float16
        data[5] = (data[5][0] * 1e6, data[5][1])
    perturbation, part = AVERAGE if walk == "average" else sam(0.1), 2 if walk == "part" else None
    module, scalers = Sharp(HeadInFloat32(), perturbation), [None, None]
    module.ascent_fraction = 0.25 if part else None
    if dtype == torch.float16:
        scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10) for _ in range(2)]
    plugin = MixedPrecision("16-mixed" if scalers[0] else "bf16-mixed", "cpu", scalers[0])
    fit(module, data, plugins=plugin, accumulate_grad_batches=2, gradient_clip_val=0.5)
    autocast = lambda: torch.autocast("cpu", dtype)  # noqa: E731
    options = {"accumulate": 2, "clip": 0.5, "scaler": scalers[1], "autocast": autocast}
    plain_loop(expected, data, perturbation, part=part, **options)
    assert error(weights(module), weights(expected)) < SINGLE
    assert weights(module).isfinite().all()
    if scalers[0]:
        assert [scaler.get_scale() for scaler in scalers] == [2.0**9 if overflow else 2.0**10] * 2


OFF = [("epsilon", "clean pass"), ("enabled", "clean pass"), ("epsilon", "average"), ("enabled", "part")]


@pytest.mark.parametrize(("off", "walk"), OFF)
def test_off_is_plain_lightning_bit_for_bit(off, walk):
    method = MovingAverage() if walk == "average" else None
    plain, module = Plain(), Sharp(perturbation=ga_sam(0.0 if off == "epsilon" else 0.1, steps=3, method=method))
    if walk == "part":
        module.part = lambda batch: 1 / 0
    module.sharp.enabled = off != "enabled"
    for each in (plain, module):
        fit(each, batches(6), accumulate_grad_batches=3, gradient_clip_val=0.25)
    assert same_bits(module.model.parameters(), plain.model.parameters())
    assert module.calls == plain.calls == 6
    assert module.outputs == plain.outputs


@pytest.mark.parametrize("perturbation", [ga_sam(0.1, steps=2), AVERAGE, random_offsets(0.1)], ids=str)
def test_resumed_run_equals_one_never_stopped(perturbation, tmp_path):
    """13 steps an epoch, so the checkpoint falls into a block of the schedule's losses."""

    def trained(epochs, checkpoint=None):
        torch.manual_seed(0)
        dropout = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3)).double()
        module = Noisy(dropout, perturbation)  # Lightning's checkpoints have no state of the generators
        module.walk_schedule = Schedule(progress=0.01, warmup=5) if perturbation.method is None else None
        return module, fit(module, batches(13), max_epochs=epochs, ckpt_path=checkpoint)

    whole, _ = trained(3)
    trained(1)[1].save_checkpoint(tmp_path / "stopped.ckpt")
    resumed, _ = trained(3, tmp_path / "stopped.ckpt")
    assert same_bits(resumed.model.parameters(), whole.model.parameters())
    assert strengths(resumed) == strengths(whole)[13:]
    assert max(strengths(whole)) > 0


class Bare(pytorch_lightning.LightningModule):
    perturbation = ga_sam(0.1)

    def __init__(self):
        super().__init__()
        self.model = network()

    def training_step(self, batch):
        return cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_mixin_works_before_a_plain_module_and_under_the_older_name():
    """Its perturbation may be an attribute of a class behind the mixin."""

    class Older(SharpnessAwareModule, Bare):
        pass

    data, module, expected = batches(1), Older(), network()
    pytorch_lightning.Trainer(**QUIET).fit(module, loader(data))
    plain_loop(expected, data, ga_sam(0.1))
    assert error(weights(module), weights(expected)) < EXACT


def halves(rank, walk):
    """A module that trains on a half of every batch."""

    class Half(Sharp):
        def training_step(self, batch, batch_idx):
            half = slice(0, len(batch[1]) // 2) if rank == 0 else slice(len(batch[1]) // 2, None)
            return super().training_step((batch[0][half], batch[1][half]), batch_idx)

        def configure_model(self):
            if isinstance(self.trainer.strategy, ModelParallelStrategy):
                for layer in (self.model[0], self.model[2], self.model):
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])

    return Half(perturbation=walk)


# Engine, walk, accumulation, clipping. DDP's clipping is that of one process; that of shards has to be seen. The ascent
# on a part comes first, because DDP's first backward is then inside of its forward.
RUNS = {
    "ddp, part": ("ddp", ga_sam(0.1), 1, None),
    "ddp, part, accumulating": ("ddp", ga_sam(0.1, steps=2), 2, None),
    "ddp": ("ddp", ga_sam(0.1, steps=2), 1, None),
    "ddp, accumulating": ("ddp", ga_sam(0.1, steps=2), 2, None),
    "ddp, average": ("ddp", AVERAGE, 2, None),
    "shards": ("shards", ga_sam(0.1, steps=2), 1, None),
    "shards, accumulating": ("shards", ga_sam(0.1, steps=2), 2, 0.25),
}


def worker(rank, path):
    """Both workers end with the same weights."""
    for name, (engine, walk, accumulate, clip) in RUNS.items():
        sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        module = halves(rank, walk)
        module.part = (lambda batch: [each[[0, 1, 4, 5]] for each in batch]) if "part" in name else None
        strategy = DDPStrategy(gradient_as_bucket_view=accumulate == 2) if engine == "ddp" else sharded
        fit(
            module, batches(5 * accumulate), strategy=strategy, devices=2, accumulate_grad_batches=accumulate,
            gradient_clip_val=clip, use_distributed_sampler=False,
        )  # fmt: skip
        whole = [p.full_tensor() if engine == "shards" else p for p in module.model.parameters()]
        everyone = [torch.empty_like(flat(whole)) for _ in range(2)]
        dist.all_gather(everyone, flat(whole))
        assert torch.equal(*everyone)
        torch.save(flat(whole), f"{path}/{name}.pt")
    sharded = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    with pytest.raises(RuntimeError, match=r"give recommended\(passes=2\)"):  # in the first step, before any walk
        fit(halves(rank, None), batches(2), strategy=sharded, devices=2, use_distributed_sampler=False)


def test_two_processes_equal_one_on_the_joint_batch(tmp_path, monkeypatch):
    """DDP and FSDP2: one walk for all workers, also while accumulating, where Lightning's DDP does not synchronise."""
    run_two(worker, tmp_path, monkeypatch)
    for name, (_, walk, accumulate, clip) in RUNS.items():
        expected, found = network(), torch.load(tmp_path / f"{name}.pt", weights_only=True)
        part = [0, 1, 4, 5] if "part" in name else None
        plain_loop(expected, batches(5 * accumulate), walk, accumulate=accumulate, clip=clip, part=part)
        assert error(found, weights(expected)) < EXACT, name


def test_logs_and_metrics_are_those_of_the_clean_pass_and_validation_sees_the_weights_at_home():
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
            return {"loss": loss}

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", cross_entropy(self.model(batch[0]), batch[1]), batch_size=len(batch[1]))

    data, module = batches(5), Measured(perturbation=ga_sam(0.1, steps=2))
    trainer = fit(module, data, validation=data[:1], num_sanity_val_steps=0)
    losses, last = plain_loop(network(), data, ga_sam(0.1, steps=2)), module.traces[-1]
    assert module.calls == 15
    assert module.outputs == pytest.approx(losses)
    assert last.sharpness > 0
    expected = {
        "loss_epoch": sum(losses) / 5, "sharpness": last.sharpness.item(),
        "perturbation_norm": last.norms[-1].item(),
        "val_loss": cross_entropy(module.model(data[0][0]), data[0][1]).item(),
    }  # fmt: skip
    assert {name: trainer.callback_metrics[name].item() for name in expected} == pytest.approx(expected, rel=1e-6)
    assert module.accuracy._update_count == module.both["a"]._update_count == 5
    assert module.clean == [True, False, False] * 5
    assert module.clean_pass


class Closure(Plain):
    def configure_optimizers(self):
        base = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        optimizer = SharpnessAware(base, self.perturbation, around=lightning_closure(self))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_closure_form_equals_a_plain_loop():
    module, expected = Closure(perturbation=ga_sam(0.1, steps=2)), network()
    trainer = fit(module, batches(5))
    losses = plain_loop(expected, batches(5), ga_sam(0.1, steps=2))
    assert error(weights(module), weights(expected)) < EXACT
    assert trainer.callback_metrics["loss_epoch"].item() == pytest.approx(sum(losses) / 5, rel=1e-6)


@pytest.mark.parametrize("strategy", [FSDPStrategy, DeepSpeedStrategy, type("Derived", (FSDPStrategy,), {})])
def test_strategies_that_cut_weights_anyhow_are_refused_by_name(strategy):
    """Neither can be set up on a CPU; the module asks what the Trainer has before it does anything."""
    module, trainer = Sharp(perturbation=ga_sam(0.1)), lightning.Trainer(**QUIET)
    module.trainer, trainer.training = trainer, True
    trainer._accelerator_connector.strategy = strategy.__new__(strategy)
    told = f"^{strategy.__name__} does not shard weights by rows.*'ddp', or ModelParallelStrategy"
    with pytest.raises(RuntimeError, match=told):
        module.training_step(batch(), 0)
    assert module.calls == 0


class Finetuned(Sharp):
    def configure_optimizers(self):
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


class Unfreezing(BaseFinetuning):
    def freeze_before_training(self, module):
        self.freeze(module.model[0])

    def finetune_function(self, module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(module.model[0], optimizer, lr=0.1)


def changed(walk=ga_sam(0.1), base=Sharp, **attributes):  # noqa: B008
    return type("Changed", (base,), attributes)(perturbation=walk)


def with_walk(**options):
    """The method that makes a walk, with these options."""
    return {"configure_sharp_backward": lambda self: SharpBackward(self, self.perturbation, **options)}


def walking(parameters):
    """A module whose walk has these parameters of it."""
    return changed(base=Finetuned, configure_sharp_backward=lambda self: SharpBackward(parameters(self), sam(0.1)))


def sharp_optimizer(self):
    return SharpnessAware(torch.optim.SGD(self.parameters(), lr=0.1), sam(0.1))


def closure():
    return Closure(perturbation=ga_sam(0.1))


EVERY_OTHER, ELSEWHERE = Schedule(every=2), "use SharpBackward in your own training loop"
SCALED = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
REFUSED = [
    (lambda: Sharp(perturbation=0.05), "perturbation must be a Perturbation"),
    (lambda: walking(lambda module: module.model[0].parameters()), r"parameter 'model.2.weight' is trained, but"),
    (
        lambda: walking(lambda module: [p for p in module.parameters() if p.requires_grad]),
        r"parameter 'model.0.weight' is trained, but.*including frozen ones", {"callbacks": [Unfreezing()]},
    ),
    (lambda: changed(**with_walk(backward=torch.autograd.backward)), "must not give SharpBackward a backward"),
    (lambda: changed(automatic_optimization=False), r"SharpBackward\(self, backward=self.manual_backward"),
    (lambda: changed(configure_optimizers=sharp_optimizer), "the mixin and SharpnessAware are both used"),
    (lambda: changed(training_step=lambda self, dataloader_iter: None), "can't be run again on the same batch"),
    (lambda: type("Wrong", (Plain, SharpnessAwareModule), {}), "Wrong has SharpnessAwareModule after .*class Wrong"),
    (lambda: changed(AVERAGE, **with_walk(in_place=True)), ELSEWHERE),
    (lambda: changed(ascent_fraction=0.25, **with_walk(in_place=True)), ELSEWHERE),
    (lambda: changed(AVERAGE, walk_schedule=EVERY_OTHER), "give .*weight=1"),
    (lambda: changed(walk_schedule=EVERY_OTHER, part=staticmethod(lambda batch: batch)), "give .*weight=1"),
    (lambda: changed(gsam(0.1), ascent_fraction=0.25), "GSAM needs the clean gradient of the whole batch"),
    (lambda: changed(recommended(1.25)[0]), "ascent_fraction=0.25"),
    (closure, "accumulate_grad_batches=2 is not possible.*use SharpnessAwareModule", {"accumulate_grad_batches": 2}),
    (closure, "gradient_clip_val=0.5 would clip in every pass.*use SharpnessAwareModule", {"gradient_clip_val": 0.5}),
    (closure, "needs a closure.*use SharpBackward", {"plugins": SCALED}),
]  # fmt: skip


@pytest.mark.parametrize(("make", "words", "options"), [(*each, {})[:3] for each in REFUSED])
def test_what_is_refused_is_named_and_leaves_the_weights(make, words, options):
    modules, seen = [], []

    def train():
        modules.append(make())
        modules[0].on_train_batch_start = lambda batch, index: seen.append(weights(modules[0]).clone())
        fit(modules[0], batches(3), **{"max_epochs": 2} | options)

    with pytest.raises((TypeError, ValueError, RuntimeError), match=words):
        train()
    for module in modules:
        assert not seen or torch.equal(weights(module), seen[-1])
        assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_layers_may_be_unfrozen_where_the_walk_knows_them():
    module = Finetuned(perturbation=sam(0.1))
    fit(module, batches(3), max_epochs=2, callbacks=[Unfreezing()])
    assert not torch.equal(module.model[0].weight, network()[0].weight)


def strengths(module):
    return [trace.strength for trace in module.traces]


def test_lightning_uses_the_recommended_walk_and_knows_the_number_of_steps():
    module = Sharp()
    fit(module, batches(3))
    assert module.sharp.perturbation == recommended()[0]
    assert str(recommended()[1]) in repr(module.sharp)
    assert strengths(module) == [0.0] * 3
    module = Sharp(perturbation=ga_sam(0.1))
    module.walk_schedule = Schedule(start=0.25, warmup=0.5)
    fit(module, batches(16), accumulate_grad_batches=2)
    assert strengths(module) == pytest.approx([s for s in (0, 0, 0.2, 0.4, 0.6, 0.8, 1, 1) for _ in range(2)])
