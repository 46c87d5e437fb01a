"""Hugging Face Trainer: a mixin that runs the walk in the backward of `training_step`."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from gasam.backward import METHOD, SharpBackward
from gasam.contexts import same_noise
from gasam.integrations import require
from gasam.integrations.first_pass import FirstPass, check_optimizers, check_order, check_parts, knows_all, shadowed
from gasam.perturbation import Perturbation
from gasam.recommended import chosen
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

    The Trainer runs the clean pass; displaced passes call `compute_loss` again. Optimizer, scheduler, clipping,
    accumulation, checkpoints and callbacks work as usual. The state of the schedule is saved next to that of the
    optimizer. The mixin also logs `sharpness`, the mean of L(w + a_K) - L(w) in units of the loss, and
    `perturbation_norm`, the mean of |a_K|. Override `create_sharp_backward` to set other options of SharpBackward.

    Args:
        *args: Passed to the Trainer.
        perturbation: The walk, for example `ga_sam(1e-4)`. None means `recommended()`, with its schedule.
        schedule: When to walk and how strongly: a `Schedule`, or a function from the step to a strength in [0, 1].
        **kwargs: Passed to the Trainer.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, SharpnessAwareTrainerMixin, "Trainer")

    def __init__(
        self,
        *args: Any,
        perturbation: Perturbation | None = None,
        schedule: Schedule | StrengthOfStep | None = None,
        **kwargs: Any,
    ) -> None:
        self.perturbation, self.schedule = chosen(perturbation, schedule)
        self._sharp: SharpBackward | None = None
        self._made_for: nn.Module | None = None
        self._seen = _Seen()
        self._multiple: float | None = None
        self._checked = False
        super().__init__(*args, **kwargs)

    def create_sharp_backward(self) -> SharpBackward:
        """Return the SharpBackward of the model. Called once per model, on the first access to `self.sharp`."""
        assert self.model is not None
        return SharpBackward(self.model, self.perturbation, schedule=self.schedule)

    @property
    def sharp(self) -> SharpBackward:
        """The SharpBackward, with its `enabled`, `perturbation` and `last`."""
        if self._sharp is None or self._made_for is not self.model:
            self._sharp, self._made_for = self.create_sharp_backward(), self.model
            self._multiple, self._checked = None, False
        return self._sharp

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        _refuse(self)
        sharp = self.sharp
        if not self._checked or not knows_all(sharp, filter(None, [self.optimizer])):
            check_parts(sharp, model, "create_sharp_backward")
            check_optimizers(filter(None, [self.optimizer]), "SharpnessAwareTrainer")
            self._checked = True
        if sharp.clock.total_steps is None:
            sharp.clock.total_steps = self.state.max_steps
        sharp.begin_step(self.state.global_step)
        items = _items(self, model, inputs, num_items_in_batch)
        first = FirstPass(sharp, model)
        losses = _Losses(self.compute_loss, self.compute_loss_context_manager, first)
        accelerated = self.accelerator.backward

        def backward(loss: Tensor, **kwargs: Any) -> None:
            factor = first.fold(loss, partial(accelerated, **kwargs), losses.again, items=items)
            assert sharp.last is not None
            if not sharp.last.between_walks:
                self._seen.sharpness.append(sharp.last.sharpness * factor)
                self._seen.norms.append(sharp.last.norms[-1])
                self._seen.steps.add(self.state.global_step)

        with closing(first), shadowed(self, compute_loss=losses), shadowed(self.accelerator, backward=backward):
            return super().training_step(model, inputs, num_items_in_batch)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = self.sharp.state_dict()
        kept = state.pop(METHOD, None)
        if self.sharp.clock.schedule is not None:
            self._state_file(output_dir).write_text(json.dumps(state))
        if kept is not None:
            torch.save(kept, self._method_file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        state, file = self.sharp.state_dict(), self._state_file(checkpoint)
        if file.exists():
            state = json.loads(file.read_text())
        elif self.sharp.clock.schedule is not None:
            warnings.warn(f"{file} is missing, so the schedule begins again at step 0", stacklevel=2)
        kept = self._method_file(checkpoint)
        if kept.exists():
            state[METHOD] = torch.load(kept, map_location=self.args.device, weights_only=True)
        self.sharp.load_state_dict(state)

    def _state_file(self, folder: str) -> Path:
        """The file of this process. Each process has one because each has other losses."""
        return Path(folder, f"walk_schedule{self._of_process()}.json")

    def _method_file(self, folder: str) -> Path:
        """The tensors that the method keeps; each process has its own, because they may be sharded."""
        return Path(folder, f"walk_method{self._of_process()}.pt")

    def _of_process(self) -> str:
        return f"_{self.args.process_index}" if self.args.world_size > 1 else ""

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._seen.steps:
            logs |= self._seen.means(self.accelerator.gather)
            self._seen = _Seen()
        super().log(logs, *args, **kwargs)


class SharpnessAwareTrainer(SharpnessAwareTrainerMixin, Trainer):
    """`Trainer` with the arguments `perturbation` and `schedule`."""


class SharpnessAwareSeq2SeqTrainer(SharpnessAwareTrainerMixin, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with the arguments `perturbation` and `schedule`."""


class _Losses:
    """A `compute_loss` that keeps its arguments, because label smoothing removes the labels from the inputs."""

    def __init__(self, compute_loss: Callable[..., Any], context: Callable[[], Any], first: FirstPass) -> None:
        self.compute_loss, self.context, self.first = compute_loss, context, first
        self.given: tuple[nn.Module, dict[str, Any], tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.given = model, dict(inputs), args, kwargs
        self.first.loss = self.compute_loss(model, inputs, *args, **kwargs)
        return self.first.loss

    def again(self) -> Any:
        assert self.given is not None
        model, inputs, args, kwargs = self.given
        with self.context():
            return self.compute_loss(model, dict(inputs), *args, **kwargs)


class _Seen:
    """Measurements of the walks since the last log; they stay on the device until the next one."""

    def __init__(self) -> None:
        self.sharpness: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.steps: set[int] = set()

    def means(self, gather: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """The sharpness is summed over micro-batches and averaged over steps, as the Trainer does with the loss."""
        sharpness = torch.stack(self.sharpness).sum() / len(self.steps)
        norm = torch.stack(self.norms).mean().to(sharpness)
        means = gather(torch.stack([sharpness, norm]).unsqueeze(0)).mean(0).tolist()
        return dict(zip(("sharpness", "perturbation_norm"), means, strict=True))


def _items(trainer: SharpnessAwareTrainerMixin, model: nn.Module, inputs: dict[str, Any], of_all: Any) -> Any:
    """The loss of a micro-batch divided by the mean over its examples.

    The Trainer divides a sum over tokens by the number of tokens in all micro-batches and workers, and multiplies by
    the number of workers. The value is needed only if there is a walk and if T or epsilon depends on the size of the
    gradient.
    """
    single = trainer.current_gradient_accumulation_steps == 1 and trainer.args.world_size == 1
    if of_all is None or single or not trainer.sharp.walks() or _is_blind(trainer.sharp.perturbation):
        return 1.0
    if trainer._multiple is None:
        trainer._multiple = _multiple(trainer, model, inputs)
    if trainer._multiple != math.inf:
        return trainer._multiple or 1.0
    own = trainer._get_num_items_in_batch([inputs], trainer.args.device)
    return 1.0 if own is None else own / of_all


def _is_blind(perturbation: Perturbation) -> bool:
    """Whether neither T nor epsilon depends on the size of the gradient. False for functions of the user."""
    if perturbation.budget is not None or perturbation.method is not None:
        return False
    return not reads_gradient(perturbation.scale_function)


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
