"""Lightning: a mixin that runs the walk in the module's backward, and `lightning_closure` for SharpnessAware."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from gasam.backward import SharpBackward
from gasam.integrations import require
from gasam.integrations.first_pass import FirstPass, Part, check_optimizers, check_order, checked, part_of, shadowed
from gasam.passes import Around
from gasam.perturbation import Perturbation
from gasam.recommended import Setting
from gasam.schedule import Schedule, StrengthOfStep

if find_spec("pytorch_lightning") is None:  # the older package name works as well
    require("lightning", "lightning")

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule
else:
    LightningModule = object

_STATE = "gasam_walk_schedule"  # key of a checkpoint
_REFUSED = {"FSDPStrategy", "DeepSpeedStrategy"}


class SharpnessAwareModule(LightningModule):
    """A mixin for LightningModule. Put it first in the list of bases.

    Set `self.perturbation` and `self.walk_schedule` to choose a walk. By default it is the recommended one. The state
    of the schedule is saved in Lightning's checkpoints. Set `self.ascent_fraction = 0.25` to find the ascent on the
    first quarter of the examples, or `self.part` to a function from the batch to another part.

    The optimizer, accumulation, clipping, precision, DDP and FSDP2 work as usual. `training_step` runs K+1 times. Only
    Lightning's own pass is logged and counted in torchmetrics; `self.clean_pass` is True during it. It is the clean
    pass, or the first pass of the whole batch if there is none. The mixin logs `sharpness`, which is L(w + a_K) - L(w),
    if there is a clean pass, and `perturbation_norm`, which is |a_K|. Override `configure_sharp_backward` to set other
    options of SharpBackward.
    """

    # No default values here, because they would hide those of the classes that follow in the list of bases.
    perturbation: Perturbation | Setting
    walk_schedule: Schedule | StrengthOfStep | None
    ascent_fraction: float | None
    part: Part | None
    clean_pass = True
    _sharp: SharpBackward | None = None
    _first: FirstPass | None = None
    _inside = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, SharpnessAwareModule, "LightningModule")
        step = getattr(cls, "training_step", None)
        if step is not None and step.__qualname__ != "LightningModule.training_step":
            cls.training_step = _keeping(step)  # type: ignore[method-assign]

    def configure_sharp_backward(self) -> SharpBackward:
        """Return the SharpBackward of this module. Called once, on the first access to `self.sharp`."""
        return SharpBackward(self, getattr(self, "perturbation", None), schedule=getattr(self, "walk_schedule", None))

    @property
    def sharp(self) -> SharpBackward:
        """The SharpBackward, with its `enabled`, `perturbation` and `last`."""
        if self._sharp is None:
            self._sharp = checked(self.configure_sharp_backward(), "configure_sharp_backward")
        return self._sharp

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.sharp.has_state:
            # Of all processes, because they have different losses. Lightning calls this in each of them.
            states: list[Any] = [self.sharp.state_dict()] * self.trainer.world_size
            if len(states) > 1:
                dist.all_gather_object(states, states[0])
            checkpoint[_STATE] = states

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if _STATE in checkpoint:
            states, rank = checkpoint[_STATE], self.global_rank
            self.sharp.load_state_dict(states[rank if rank < len(states) else 0])

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        first, self._first = self._first, None
        if first is None:  # not called by Trainer.fit
            super().backward(loss, *args, **kwargs)
            return
        backward = super().backward
        with closing(first):
            first.fold(loss, lambda share: backward(share, *args, **kwargs))
        last, trainer = self.sharp.last, self.trainer
        # Skipped if nobody reads the values, because each call of `log` costs a millisecond.
        is_read = not trainer.barebones and (trainer.is_last_batch or trainer._logger_connector.should_update_logs)
        if last is not None and not last.between_walks and is_read:
            if first.has_clean_pass:
                self.log("sharpness", last.sharpness)
            self.log("perturbation_norm", last.norms[-1])

    def _of_ascent(self, loss: Tensor) -> None:
        """Backward of passes that only find a direction."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        super().backward(loss if scaler is None else scaler.scale(loss))


def _keeping(step: Callable[..., Any]) -> Callable[..., Any]:
    """A training_step that keeps its arguments and its loss for the displaced passes."""
    if "dataloader_iter" in signature(step).parameters:
        raise TypeError("training_step(dataloader_iter) can't be run again on the same batch: use (batch, batch_idx)")

    @functools.wraps(step)
    def training_step(self: SharpnessAwareModule, batch: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self._trainer
        if self._inside or trainer is None or not trainer.training:
            return step(self, batch, *args, **kwargs)  # inherited, in a later pass, or outside of Trainer.fit
        _refuse(self)
        if self._first is not None:  # backward was not called after the last training_step
            self._first.close()
        sharp, self._first = self.sharp, None
        check_optimizers(sharp, trainer.optimizers, self, "configure_sharp_backward")
        if sharp.clock.total_steps is None:
            total = trainer.estimated_stepping_batches
            sharp.clock.total_steps = int(total) if 0 < total < float("inf") else None  # None: nobody knows
        last = trainer.is_last_batch or (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0
        sharp.begin_step(trainer.global_step, last=last)

        def run() -> Any:
            with shadowed(self, _inside=True):
                return step(self, batch, *args, **kwargs)

        def again(batch: Any) -> Any:
            with shadowed(self, _inside=True, clean_pass=False), _quiet(self):
                return trainer.strategy.training_step(batch, *args, **kwargs)

        take = part_of(getattr(self, "ascent_fraction", None), getattr(self, "part", None))
        ascent = None if take is None or not sharp.could_walk else functools.partial(again, take(batch))
        first, output = FirstPass(sharp, trainer.strategy.model), None
        try:
            output = first.forward(run, functools.partial(again, batch), ascent, self._of_ascent)
            return output
        finally:
            if output is None:  # it has failed, or asks to skip the batch
                first.close()
            else:
                self._first = first

    return training_step


def lightning_closure(module: LightningModule) -> Around:
    """The argument `around` of a SharpnessAware that you return from `configure_optimizers`.

    It disables logging in displaced passes. It raises for options that a closure can't support: accumulation and the
    Trainer's gradient clipping. Precision "16-mixed" passes no closure, so `SharpnessAware.step` raises.
    """

    def around(k: int, last: bool) -> AbstractContextManager[None]:
        trainer = module.trainer
        if trainer.accumulate_grad_batches != 1:
            raise RuntimeError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} is not possible with a closure, which gets "
                "the last micro-batch only: use SharpnessAwareModule with the plain optimizer"
            )
        if trainer.gradient_clip_val:
            raise RuntimeError(
                f"gradient_clip_val={trainer.gradient_clip_val} would clip in every pass, not the final gradient: "
                "use SharpnessAwareModule with the plain optimizer, or clip in SharpnessAware's before_step"
            )
        return nullcontext() if k == 0 else _quiet(module)

    return around


def _refuse(module: SharpnessAwareModule) -> None:
    if not module.automatic_optimization:
        raise RuntimeError(
            "SharpnessAwareModule needs automatic optimisation: for manual optimisation use "
            "SharpBackward(self, backward=self.manual_backward) instead"
        )
    strategy = type(module.trainer.strategy)
    if not _REFUSED.isdisjoint(each.__name__ for each in strategy.__mro__):
        raise RuntimeError(
            f"{strategy.__name__} does not shard weights by rows, so the walk can't move them: use the strategy 'ddp', "
            "or ModelParallelStrategy with fully_shard in configure_model"
        )


@contextmanager
def _quiet(module: LightningModule) -> Iterator[None]:
    """Disable logging and metric updates inside the block. Metrics return their values of the clean pass."""
    from torchmetrics import Metric

    with ExitStack() as stack:
        stack.enter_context(shadowed(module, log=_always(None)))
        for metric in module.modules():
            if isinstance(metric, Metric):
                replaced = {"update": _always(None), "forward": _always(metric._forward_cache)}
                stack.enter_context(shadowed(metric, **replaced))
        yield


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value
