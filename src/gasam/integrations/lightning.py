"""Lightning: a mixin that runs the walk in the module's backward, and `lightning_closure` for SharpnessAware."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from gasam.backward import SharpBackward
from gasam.integrations import require
from gasam.integrations.first_pass import FirstPass, Part, check_order, check_parts, knows_all, part_of, shadowed
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
    _checked: object = None  # the Trainer for which the checks were made

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_order(cls, SharpnessAwareModule, "LightningModule")
        step = getattr(cls, "training_step", None)
        if step is not None and step.__qualname__ != "LightningModule.training_step" and not hasattr(step, "_kept"):
            cls.training_step = _keeping(step)  # type: ignore[method-assign]

    def configure_sharp_backward(self) -> SharpBackward:
        """Return the SharpBackward of this module. Called once, on the first access to `self.sharp`."""
        return SharpBackward(self, getattr(self, "perturbation", None), schedule=getattr(self, "walk_schedule", None))

    @property
    def sharp(self) -> SharpBackward:
        """The SharpBackward, with its `enabled`, `perturbation` and `last`."""
        if self._sharp is None:
            self._sharp = self.configure_sharp_backward()
        return self._sharp

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if self.sharp.has_state:
            checkpoint[_STATE] = _of_all(self.sharp.state_dict())

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        if _STATE in checkpoint:
            states, rank = checkpoint[_STATE], _rank()
            self.sharp.load_state_dict(states[rank if rank < len(states) else 0])

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        first, self._first = self._first, None
        if first is None:  # not called by Trainer.fit
            super().backward(loss, *args, **kwargs)
            return
        backward = super().backward
        try:
            first.fold(loss, lambda share: backward(share, *args, **kwargs))
        finally:
            first.close()
        if self.sharp.last is not None and not self.sharp.last.between_walks and _is_read(self.trainer):
            if first.has_clean_pass:
                self.log("sharpness", self.sharp.last.sharpness)
            self.log("perturbation_norm", self.sharp.last.norms[-1])

    def _run(self, *arguments: Any, **named: Any) -> Any:
        """Run `training_step` once more."""
        with shadowed(self, clean_pass=False), _quiet(self):
            return self.trainer.strategy.training_step(*arguments, **named)

    def _ascent(self, batch: Any, *others: Any, **named: Any) -> Callable[[], Any] | None:
        """`training_step` on a part of the batch, if that is asked for."""
        take = part_of(getattr(self, "ascent_fraction", None), getattr(self, "part", None))
        if take is None or not self.sharp.could_walk:
            return None
        return functools.partial(self._run, take(batch), *others, **named)

    def _of_ascent(self, loss: Tensor) -> None:
        """Backward of passes that only find a direction."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        super().backward(loss if scaler is None else scaler.scale(loss))


def _keeping(step: Callable[..., Any]) -> Callable[..., Any]:
    """A training_step that keeps its arguments and its loss for the displaced passes."""
    if "dataloader_iter" in signature(step).parameters:
        raise TypeError("training_step(dataloader_iter) can't be run again on the same batch: use (batch, batch_idx)")

    @functools.wraps(step)
    def training_step(self: SharpnessAwareModule, *args: Any, **kwargs: Any) -> Any:
        if self._inside or not self.clean_pass or self._trainer is None or not self._trainer.training:
            return step(self, *args, **kwargs)  # called by super(), in a displaced pass, or outside of Trainer.fit
        _refuse(self)
        if self._first is not None:  # backward was not called after the last training_step
            self._first.close()
        if self._checked is not self._trainer or not knows_all(self.sharp, self._trainer.optimizers):
            check_parts(self.sharp, self, self._trainer.optimizers, "configure_sharp_backward")
            self._checked = self._trainer
            if self.sharp.clock.total_steps is None:
                self.sharp.clock.total_steps = _total_steps(self._trainer)
        trainer = self._trainer
        last = trainer.is_last_batch or (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self.sharp.begin_step(trainer.global_step, last=last)
        first, self._first = FirstPass(self.sharp, self.trainer.strategy.model), None

        def run() -> Any:
            with shadowed(self, _inside=True):
                return step(self, *args, **kwargs)

        with ExitStack() as failing:
            failing.callback(first.close)
            again = functools.partial(self._run, *args, **kwargs)
            output = first.forward(run, again, self._ascent(*args, **kwargs), self._of_ascent)
            if first.loss is not None:
                self._first = first
                failing.pop_all()
        return output

    training_step._kept = True  # type: ignore[attr-defined]
    return training_step


def _of_all(state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all processes, which have different losses. Lightning calls this in all of them."""
    if not (dist.is_available() and dist.is_initialized()):
        return [state]
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _total_steps(trainer: Any) -> int | None:
    """The number of optimizer steps, or None if the Trainer does not know it."""
    total = trainer.estimated_stepping_batches
    return int(total) if 0 < total < float("inf") else None


def lightning_closure(module: LightningModule) -> Around:
    """The argument `around` of a SharpnessAware that you return from `configure_optimizers`.

    It disables logging in displaced passes. It raises for options that a closure can't support: accumulation and the
    Trainer's gradient clipping. Precision "16-mixed" passes no closure, so `SharpnessAware.step` raises.
    """

    def around(k: int, last: bool) -> AbstractContextManager[None]:
        trainer = module.trainer
        if trainer.accumulate_grad_batches != 1:
            raise RuntimeError(
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} is not possible with a closure, because "
                "Lightning gives it the last micro-batch only: use SharpnessAwareModule with the plain optimizer"
            )
        if trainer.gradient_clip_val:
            raise RuntimeError(
                f"gradient_clip_val={trainer.gradient_clip_val} would clip in every pass, not the final gradient: "
                "use SharpnessAwareModule with the plain optimizer, or clip in SharpnessAware's before_step"
            )
        return nullcontext() if k == 0 else _quiet(module)

    return around


def _is_read(trainer: Any) -> bool:
    """Whether values logged now are used. Otherwise `log` is skipped, because each call costs a millisecond."""
    return not trainer.barebones and (trainer.is_last_batch or trainer._logger_connector.should_update_logs)


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

    nothing = functools.partial(_answer, None)
    with ExitStack() as stack:
        stack.enter_context(shadowed(module, log=nothing))
        for metric in module.modules():
            if isinstance(metric, Metric):
                answer = functools.partial(_answer, metric._forward_cache)
                stack.enter_context(shadowed(metric, update=nothing, forward=answer))
        yield


def _answer(value: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the value and ignore the arguments."""
    return value
