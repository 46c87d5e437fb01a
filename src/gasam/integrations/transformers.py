"""Hugging Face Trainer: a mixin that runs the walk in the backward of `training_step`."""

from __future__ import annotations

import math
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gasam.backward import SharpBackward
from gasam.contexts import same_noise
from gasam.integrations import require
from gasam.integrations.first_pass import FirstPass, Part, check_optimizers, check_order, checked, part_of, shadowed
from gasam.perturbation import Perturbation
from gasam.recommended import Setting, chosen
from gasam.scales import reads_gradient
from gasam.schedule import Schedule, StrengthOfStep

require("transformers", "transformers", "accelerate")

from transformers import Seq2SeqTrainer, Trainer  # noqa: E402 - after the check for missing packages

if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object

_REFUSED = ("DEEPSPEED", "FSDP", "MEGATRON_LM")


class SharpnessAwareTrainerMixin(_Trainer):
    """A mixin for Trainer. Put it first in the list of bases.

    The Trainer runs the first pass of the batch; other passes call `compute_loss` again. Optimizer, scheduler,
    clipping, accumulation, checkpoints and callbacks work as usual. The state of the schedule is saved next to that of
    the optimizer. The mixin also logs `sharpness`, the mean of L(w + a_K) - L(w) in units of the loss, if the first
    pass is at w, and `perturbation_norm`, the mean of |a_K|. Override `create_sharp_backward` to set other options of
    SharpBackward.

    Args:
        *args: Passed to the Trainer.
        perturbation: The walk, for example `ga_sam(1e-4)`, or a pair with its schedule, as `recommended(passes=1)`
            returns it. None means `recommended()`.
        schedule: When to walk and how strongly: a `Schedule`, or a function from the step to a strength in [0, 1].
        ascent_fraction: Find the ascent on this share of the examples, the first ones of each batch: 0.25 means that a
            step with K = 1 costs 1.25 passes. Examples are the first dimension of every tensor.
        part: A function from the inputs to another part of them on which the ascent is found.
        **kwargs: Passed to the Trainer.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, SharpnessAwareTrainerMixin, "Trainer")

    def __init__(
        self,
        *args: Any,
        perturbation: Perturbation | Setting | None = None,
        schedule: Schedule | StrengthOfStep | None = None,
        ascent_fraction: float | None = None,
        part: Part | None = None,
        **kwargs: Any,
    ) -> None:
        self.perturbation, self.schedule = chosen(perturbation, schedule)
        self._part = part_of(ascent_fraction, part)
        self._sharp: SharpBackward | None = None
        self._made_for: nn.Module | None = None
        # (step, |a_K| and sharpness) of walks since the last log; they stay on the device until the next one.
        self._seen: list[tuple[int, Tensor]] = []
        self._multiple: float | None = None
        super().__init__(*args, **kwargs)

    def create_sharp_backward(self) -> SharpBackward:
        """Return the SharpBackward of the model. Called once per model, on the first access to `self.sharp`."""
        assert self.model is not None
        return SharpBackward(self.model, self.perturbation, schedule=self.schedule)

    @property
    def sharp(self) -> SharpBackward:
        """The SharpBackward, with its `enabled`, `perturbation` and `last`."""
        if self._sharp is None or self._made_for is not self.model:
            self._sharp = checked(self.create_sharp_backward(), "create_sharp_backward")
            self._made_for, self._multiple = self.model, None
        return self._sharp

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        _refuse(self)
        sharp = self.sharp
        check_optimizers(sharp, filter(None, [self.optimizer]), model, "create_sharp_backward")
        if sharp.clock.total_steps is None:
            sharp.clock.total_steps = self.state.max_steps
        sharp.begin_step(self.state.global_step, last=self.accelerator.sync_gradients)
        items = _items(self, model, inputs, num_items_in_batch)
        first, compute_loss, accelerated = FirstPass(sharp, model), self.compute_loss, self.accelerator.backward

        def first_loss(model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            def again(inputs: dict[str, Any], **others: Any) -> Any:
                with self.compute_loss_context_manager():
                    return compute_loss(model, dict(inputs), *args, **kwargs | others)

            ascent = None
            if self._part is not None and sharp.could_walk:  # its own mean loss, because it has other items
                ascent = partial(again, self._part(inputs), num_items_in_batch=None)
            run = partial(compute_loss, model, inputs, *args, **kwargs)
            # From a copy, because label smoothing removes the labels from the inputs.
            return first.forward(run, partial(again, dict(inputs)), ascent, accelerated)

        def backward(loss: Tensor, **kwargs: Any) -> None:
            factor = first.fold(loss, partial(accelerated, **kwargs), items=items)
            assert sharp.last is not None
            if not sharp.last.between_walks:
                norm, rise = sharp.last.norms[-1], sharp.last.sharpness * factor
                seen = torch.stack([norm, rise.to(norm) if first.has_clean_pass else norm * math.nan])
                self._seen.append((self.state.global_step, seen))

        with closing(first), shadowed(self, compute_loss=first_loss), shadowed(self.accelerator, backward=backward):
            return super().training_step(model, inputs, num_items_in_batch)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self.sharp.has_state:
            torch.save(self.sharp.state_dict(), self._state_file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        file = self._state_file(checkpoint)
        if file.exists():
            self.sharp.load_state_dict(torch.load(file, map_location=self.args.device, weights_only=True))
        elif self.sharp.clock.schedule is not None:
            warnings.warn(f"{file} is missing, so the schedule begins again at step 0", stacklevel=2)

    def _state_file(self, folder: str) -> Path:
        """The file of this process. Each process has one because each has other losses."""
        return Path(folder, f"walk{f'_{self.args.process_index}' if self.args.world_size > 1 else ''}.pt")

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._seen:
            # The sharpness is summed over micro-batches and averaged over steps, as the Trainer does with the loss.
            steps, (norms, rises) = len({step for step, _ in self._seen}), torch.stack([s for _, s in self._seen]).T
            means = self.accelerator.gather(torch.stack([norms.mean(), rises.sum() / steps]).unsqueeze(0)).mean(0)
            logs["perturbation_norm"], sharpness = means.tolist()
            logs |= {} if math.isnan(sharpness) else {"sharpness": sharpness}
            self._seen.clear()
        super().log(logs, *args, **kwargs)


class SharpnessAwareTrainer(SharpnessAwareTrainerMixin, Trainer):
    """`Trainer` with the arguments `perturbation` and `schedule`."""


class SharpnessAwareSeq2SeqTrainer(SharpnessAwareTrainerMixin, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with the arguments `perturbation` and `schedule`."""


def _items(trainer: SharpnessAwareTrainerMixin, model: nn.Module, inputs: dict[str, Any], of_all: Any) -> Any:
    """The loss of a micro-batch divided by the mean over its examples.

    The Trainer divides a sum over tokens by the tokens of all micro-batches and workers, and multiplies by the number
    of workers. It matters if T or epsilon may depend on the size of the gradient, or if the method learns from it.
    """
    sharp, plan = trainer.sharp, trainer.sharp.perturbation
    single = trainer.current_gradient_accumulation_steps == 1 and trainer.args.world_size == 1
    matters = plan.budget is not None or plan.method is not None or reads_gradient(plan.scale_function)
    if of_all is None or single or not matters or not (sharp.learns or sharp.walks()):
        return 1.0
    if trainer._multiple is None:
        trainer._multiple = _multiple(trainer, model, inputs)
    if trainer._multiple != math.inf:
        return trainer._multiple or 1.0
    own = trainer._get_num_items_in_batch([inputs], trainer.args.device)
    return 1.0 if own is None else own / of_all


@torch.no_grad()
def _multiple(trainer: SharpnessAwareTrainerMixin, model: nn.Module, inputs: dict[str, Any]) -> float | None:
    """The result of `compute_loss` divided by the mean loss, or infinity if it depends on the number of items.

    Some models accept the number of items and still return their mean loss, so this is tried once, in eval mode. All
    trials draw the same random numbers, and training draws them again.
    """
    training, prepared = model.training, trainer._prepare_inputs(inputs)
    noise = same_noise()
    with noise(0, False):  # saves the states of the generators
        pass

    def loss(items: int | None) -> float:
        count = None if items is None else torch.tensor(items, device=trainer.args.device)
        with noise(1, False), trainer.compute_loss_context_manager():
            return cast(Tensor, trainer.compute_loss(model, dict(prepared), num_items_in_batch=count)).item()

    model.eval()
    try:
        by_one, by_two = loss(1), loss(2)
        if by_one == 0 or not math.isfinite(by_one):  # for example a batch without labels: try the next one
            return None
        return math.inf if abs(by_one - 2 * by_two) < abs(by_one - by_two) else by_one / loss(None)
    finally:
        model.train(training)


def _refuse(trainer: Trainer) -> None:
    kind = trainer.accelerator.distributed_type.value
    if kind in _REFUSED:
        raise RuntimeError(
            f"{kind} shards weights or gradients, which is not supported with the Trainer: use DDP, or "
            "SharpBackward with fully_shard in your own training loop"
        )
    if trainer.args.n_gpu > 1:
        raise RuntimeError("DataParallel returns one loss per device: start one process per device with torchrun")
    if "lomo" in str(trainer.args.optim).lower():
        raise RuntimeError(
            f"optim={trainer.args.optim!s} steps inside backward, before the walk is complete: use another optimizer"
        )
