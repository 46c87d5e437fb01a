"""The training loop of all tasks and methods, for one process or several, with interruption and resumption."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, recursively_apply, send_to_device
from torch import nn

from gasam import SharpBackward
from gasam.analysis.gradients import GradientNorms, transformer_layers
from gasam.lab.families.family import Encoded, Recipe, example_count
from gasam.lab.record import code
from gasam.lab.storage import Checkpoints, Interruption, Weights
from gasam.lab.training.plan import Plan
from gasam.trace import Trace


class Update(NamedTuple):
    """The progress of a run; `valid` is the score of the last finished epoch. With a `note`, only that counts."""

    done: int
    steps: int
    epoch: int
    epochs: int
    valid: float | None
    note: str = ""


OnUpdate = Callable[[Update], None]


@dataclass
class Progress:
    """The counters of a run, which its checkpoints hold; `step` and `loss` count since the last finished epoch."""

    epoch: int = 0
    step: int = 0
    updates: int = 0
    passes: float = 0  # of whole batches
    seconds: float = 0.0
    loss: float = 0.0
    best: float | None = None
    best_epoch: int | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)

    @property
    def diverged(self) -> bool:
        return bool(self.curve) and self.curve[-1]["loss"] is None


class WalkMeans:
    """How far the walks of an epoch moved the weights, and by how much the loss rose, summed up on the device."""

    def __init__(self, device: torch.device) -> None:
        self.walks, self.strength, self.rises = 0, 0.0, True  # whether a walk has a loss before it
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)  # finite walks, their |a|, their rise

    def add(self, trace: Trace) -> None:
        """Count a training step; one without a walk changes nothing."""
        if trace.plain is not None:
            return
        self.walks += 1
        self.strength += trace.strength
        self.rises = trace.first == 0
        norm, rise = trace.norms[-1].double(), trace.losses[-1].double() - trace.losses[0].double()
        numbers = torch.stack([torch.ones_like(norm), norm, rise])
        self.sums += torch.where(numbers.isfinite().all(), numbers, 0.0)

    def row(self, accelerator: Accelerator, weights: float | None) -> dict[str, Any]:
        """The entry `walk` of the epoch's row, if there was a walk, with means over the finite ones.

        `ratio` is |a| divided by `weights`, the norm of the weights at the end of the epoch.
        """
        finite, norm, rise = accelerator.reduce(self.sums, reduction="mean").tolist()
        if not self.walks:
            return {}
        row: dict[str, Any] = {"walks": self.walks, "strength": self.strength / self.walks}
        if finite and weights:
            row["ratio"] = norm / finite / weights
        if finite and self.rises:
            row["rise"] = rise / finite
        return {"walk": row}


def optimizer_for(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    rate, decay = recipe.learning_rate, recipe.weight_decay
    parameters: Any = model.parameters()
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, weight_decay=decay)
    adam = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return adam(parameters, rate, recipe.betas, weight_decay=decay, fused=True)


def rate_factor(recipe: Recipe, epoch: int, update: int, updates: int) -> float:
    """The learning rate of an update as a multiple of the full one, without a state to save in a checkpoint.

    "halving" halves it in every epoch after `halve_after`. The others rise linearly for `warmup` updates, then fall.
    Epoch and update count from 1, the update over all `updates` of the run.
    """
    warmup = max(1, recipe.warmup)
    if recipe.schedule == "halving":
        return float(0.5 ** max(0, epoch - recipe.halve_after))
    if recipe.schedule == "inverse_sqrt":
        return min(update / warmup, math.sqrt(warmup / update))
    if recipe.schedule == "constant":
        return 1.0
    if update <= recipe.warmup:
        return update / warmup
    left = (updates - update + 1) / max(1, updates - recipe.warmup)
    return left if recipe.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2


class Training:
    """One run in progress. Seeds derived from seed, epoch and step save it from keeping states of generators."""

    def __init__(
        self,
        plan: Plan,
        data: Encoded,
        checkpoints: Checkpoints,
        accelerator: Accelerator,
        on_update: OnUpdate = lambda update: None,
        gradient_norms: bool = False,
    ) -> None:
        self.plan, self.checkpoints, self.accelerator, self.on_update = plan, checkpoints, accelerator, on_update
        self.settings, self.family = plan.settings, plan.family(data)
        torch.manual_seed(self.seed_for("model"))
        self.model = accelerator.prepare(self.family.model())
        optimizer = self.family.optimizer(self.plain_model) or optimizer_for(self.plain_model, self.settings)
        self.optimizer = accelerator.prepare(optimizer)
        self.full_rates = [group["lr"] for group in optimizer.param_groups]
        self.total_updates = 1
        self.sharp = plan.walk.backward(self.family, self.plain_model, accelerator.backward)
        self.walks = WalkMeans(accelerator.device)
        self.norms = GradientNorms(self.plain_model, transformer_layers) if gradient_norms else None
        self.progress = Progress()
        self.on_epoch: Callable[[dict[str, Any]], None] = lambda row: None  # called when its checkpoint is written
        self.carried: Any = None
        self.loss = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        self.code = code()  # now, because the user may change it during the training

    @property
    def plain_model(self) -> torch.nn.Module:
        return self.accelerator.unwrap_model(self.model)  # type: ignore[no-any-return]

    def seed_for(self, *what: object) -> int:
        """Derive a separate seed for each random draw from the run's seed."""
        text = " ".join(str(part) for part in (self.plan.seed, *what))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def train(self) -> None:
        self.model.train()
        with Interruption() as interruption:
            while self.progress.epoch < self.settings.epochs and not self.progress.diverged:
                self.train_epoch(interruption)
                self.end_epoch()
                self.save()
                self.on_epoch(self.progress.curve[-1])
                interruption.stop_if_wanted()

    def train_epoch(self, interruption: Interruption) -> None:
        progress = self.progress
        order = torch.Generator().manual_seed(self.seed_for("order", progress.epoch))
        batches = self.family.batches(order)
        self.sharp.enabled = progress.epoch + 1 >= self.plan.walk.start_epoch
        self.total_updates = len(batches) * self.settings.epochs
        if isinstance(self.sharp, SharpBackward):
            self.sharp.clock.total_steps = self.total_updates
        shown = begun = time.perf_counter()
        for chosen in batches[progress.step :]:
            self.train_step(chosen)
            progress.step += 1
            now = time.perf_counter()
            if interruption.wanted and self.accelerator.num_processes == 1:  # processes may be at different steps
                progress.seconds += now - begun
                self.save()
                interruption.stop_if_wanted()
            if now - shown > 0.5:
                self.show(len(batches))
                shown = now
        progress.seconds += time.perf_counter() - begun

    def train_step(self, chosen: Any) -> None:
        progress = self.progress
        others = [self.accelerator.process_index] if self.accelerator.process_index else []
        torch.manual_seed(self.seed_for("step", progress.epoch, progress.step, *others))
        batch, chosen = self.share((self.family.batch(chosen), chosen))
        whole, fraction = (send_to_device(batch, self.accelerator.device), self.carried), self.plan.walk.ascent_fraction
        factor = rate_factor(self.settings, progress.epoch + 1, progress.updates + 1, self.total_updates)
        for group, full_rate in zip(self.optimizer.param_groups, self.full_rates, strict=True):
            group["lr"] = full_rate * factor
        self.optimizer.zero_grad()
        share: float = 1  # a whole number, as are the passes that it is added to
        options = dict[str, Any]()
        if fraction < 1:
            part, share = self.family.part(whole, chosen.shape[self.family.example_dim], fraction)
            options["ascent"] = lambda: self.family.loss(self.model, *part)
        loss, self.carried = self.sharp(lambda: self.family.loss(self.model, *whole), **options)
        if self.norms is not None:
            self.norms.record(progress.epoch + 1)
        if self.settings.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        self.loss += loss
        progress.updates += 1
        assert self.sharp.last is not None
        counted = len(self.sharp.last.losses)  # the others found the ascent on a part of the batch
        progress.passes += counted + share * (self.sharp.last.passes - counted)
        self.walks.add(self.sharp.last)

    def share(self, batch: Any) -> Any:
        """This process's part of the batch: the batch size does not grow with the number of processes.

        If there are more processes than examples, every process takes the whole batch, which gives the same mean.
        """
        count, dim = self.accelerator.num_processes, self.family.example_dim
        if count == 1 or example_count(batch, dim) < count:
            return batch
        own = self.accelerator.process_index
        return recursively_apply(lambda part: part.tensor_split(count, dim=dim)[own], batch)

    def end_epoch(self) -> None:
        """Validate, keep the weights, and add the epoch to the curve."""
        progress, begun = self.progress, time.perf_counter()
        steps, progress.epoch, progress.step, self.carried = progress.step, progress.epoch + 1, 0, None
        loss = float(self.accelerator.reduce(self.loss, reduction="mean")) / steps
        self.loss.zero_()
        self.model.eval()
        valid = self.family.validate(self.plain_model) if math.isfinite(loss) else math.nan
        self.model.train()
        self.keep_weights(valid)
        progress.seconds += time.perf_counter() - begun
        row: dict[str, Any] = {"epoch": progress.epoch, "loss": finite(loss), "valid": finite(valid)}
        row |= {"gradient_evaluations": round(progress.passes, 2), "seconds": round(progress.seconds, 2)}
        weights = None  # what |a| is compared with, unless the walk moves the outputs of embeddings
        if isinstance(self.sharp, SharpBackward):
            weights = float(nn.utils.get_total_norm([each.detach() for each in self.plain_model.parameters()]))
        row |= self.walks.row(self.accelerator, weights)
        self.walks = WalkMeans(self.accelerator.device)
        if self.norms is not None:
            mean = self.norms.mean(progress.epoch)
            row |= {"gradient_norm": mean.whole, "layer_gradient_norms": mean.layers, "gradient_norms": mean.tensors}
        progress.curve.append(row)
        self.show(steps)

    def keep_weights(self, valid: float) -> None:
        """After an epoch, save its weights if they may be chosen or averaged."""
        progress, checkpoints, averaged = self.progress, self.checkpoints, self.settings.average
        if averaged:
            self.write(checkpoints.epoch(progress.epoch), self.weights())
            # Keep one more than is averaged: a run that is killed before it saves its state resumes one epoch earlier.
            checkpoints.epoch(progress.epoch - averaged - 1).unlink(missing_ok=True)
        better = progress.best is None or self.family.followed.gain(valid, progress.best) > 0
        if math.isfinite(valid) and better:
            progress.best, progress.best_epoch = valid, progress.epoch
            if not averaged:
                self.write(checkpoints.best, self.weights())

    def chosen_weights(self) -> Weights | None:
        """The mean of the last epochs, or the best epoch on validation; None without a finite validation score."""
        progress, averaged = self.progress, self.settings.average
        if averaged and not progress.diverged:
            return self.checkpoints.average(progress.epoch, min(averaged, progress.epoch))
        return self.checkpoints.load(self.checkpoints.best)

    def show(self, steps: int) -> None:
        progress, epochs = self.progress, self.settings.epochs
        valid = progress.curve[-1]["valid"] if progress.curve else None
        done = progress.epoch * steps + progress.step
        self.on_update(Update(done, steps * epochs, progress.epoch + 1, epochs, valid))

    def weights(self) -> Weights:
        return {name: tensor.detach() for name, tensor in self.plain_model.state_dict().items()}

    def write(self, file: Path, value: dict[str, Any]) -> None:
        """Write the file in the main process; the other processes wait for it."""
        if self.accelerator.is_main_process:
            self.checkpoints.save(file, value)
        self.accelerator.wait_for_everyone()

    def save(self) -> None:
        self.progress.loss = float(self.loss)
        state = {"model": self.weights(), "optimizer": self.optimizer.state_dict(), "carried": self.carried}
        state["walks"] = vars(self.walks)
        if isinstance(self.sharp, SharpBackward) and self.sharp.has_state:
            state["schedule"] = gather_object([self.sharp.state_dict()])  # each process has its own losses
        norms = self.norms.state_dict() if self.norms is not None else None
        self.write(self.checkpoints.last, state | {"progress": asdict(self.progress), "norms": norms})

    def resume(self) -> None:
        """Resume from the checkpoint if there is one."""
        file = self.checkpoints.last
        saved = self.checkpoints.load(file)
        if saved is None:
            return
        try:
            self.plain_model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.progress = Progress(**saved["progress"])
            self.loss.fill_(self.progress.loss)
            self.carried = send_to_device(saved["carried"], self.accelerator.device)
            if isinstance(self.sharp, SharpBackward) and "schedule" in saved:
                states, own = saved["schedule"], self.accelerator.process_index
                self.sharp.load_state_dict(states[own if own < len(states) else 0])
            vars(self.walks).update(send_to_device(saved["walks"], self.accelerator.device))
            if self.norms is not None:
                self.norms.load_state_dict(saved["norms"])
        except Exception:  # a part that is missing or of another model; the kind of error depends on which
            raise self.checkpoints.damaged(file) from None


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
