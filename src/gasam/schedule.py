"""`Schedule`, which holds when to walk and how strongly, and `Strength`, its state during a run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gasam.sharded import sharding
from gasam.weights import undone_after_failure

BLOCK = 10
"""Optimizer steps between two updates of the smoothed loss."""
SMOOTHING = 0.6
PATIENCE = 1000
"""Steps without progress before the user is warned."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The strength of the walk, from 0 (one plain pass) to 1; it multiplies epsilon or the budget.

    The strengths that follow from `progress`, `start` and `warmup` are multiplied. Instead of a Schedule you can give a
    function from the step to a strength.

    Args:
        progress: The strength grows in proportion as the loss falls, and is 1 when the loss has fallen by this share of
            its initial value: 0.2 for 20 percent. It shrinks again if the loss rises. None means no dependence on the
            loss.
        start: The first step with a walk, as an int, or as a float for a share of training, which needs `total_steps`.
        warmup: The number of steps after `start` over which the strength grows linearly to 1, as an int or a share.
        every: Walk only on the steps 0, n, 2n, ...; each other step runs one plain pass. With `every=4` and one ascent
            step, a step costs 1.25 passes on average instead of 2.
        weight: v in g_0 + v (fold - g_0), the gradient of a step with a walk, where `fold` is the usual gradient of the
            walk and g_0 the clean gradient. None means the value of `every`, so that the walk has the same weight over
            time. Give all trained parameters to the walk, because others are not rescaled.
    """

    progress: float | None = None
    start: float = 0
    warmup: float = 0
    every: int = 1
    weight: float | None = None

    def __post_init__(self) -> None:
        if self.progress is not None and not (is_number(self.progress) and 0 < self.progress < math.inf):
            raise ValueError(f"progress must be a finite number > 0, such as 0.2, or None, got {self.progress!r}")
        for name, value in (("start", self.start), ("warmup", self.warmup)):
            if not is_whole(value, at_least=0) and not (isinstance(value, float) and 0 <= value < 1):
                raise ValueError(f"{name} must be a number of steps (int) or a share in [0, 1) (float), got {value!r}")
        if not is_whole(self.every, at_least=1):
            raise ValueError(f"every must be a whole number of steps >= 1, got {self.every!r}")
        if self.weight is not None and not (is_number(self.weight) and 0.001 <= self.weight <= 1000):
            raise ValueError(f"weight must be a number from 0.001 to 1000 or None, got {self.weight!r}")

    def of_step(self, step: int, total_steps: int | None) -> float:
        """The strength that follows from `start` and `warmup` at a step; steps count from 0."""
        start, warmup = (_in_steps(name, getattr(self, name), total_steps) for name in ("start", "warmup"))
        return min(1.0, max(0.0, (step - start + 1) / (warmup + 1)))


StrengthOfStep = Callable[[int], float]


class Strength:
    """The strength of each step of a run, and the state it depends on: the step and the losses so far.

    Losses are summed on the device. Every 10 optimizer steps their mean is read, averaged over the processes of the
    group, and smoothed. The strength is therefore the same in every process.
    """

    def __init__(
        self,
        schedule: Schedule | StrengthOfStep | None,
        tensors: Sequence[Tensor],
        *,
        accumulation: int = 1,
        total_steps: int | None = None,
        process_group: Any = None,
    ) -> None:
        if not is_whole(accumulation, at_least=1):
            raise ValueError(f"accumulation must be a whole number >= 1, got {accumulation!r}")
        if schedule is not None and not isinstance(schedule, Schedule) and not callable(schedule):
            raise TypeError(f"schedule must be a Schedule or a function of the step, got {type(schedule).__name__}")
        self.schedule = schedule
        self._options = schedule if isinstance(schedule, Schedule) else Schedule()
        self.total_steps = total_steps
        self.process_group = process_group
        self.accumulation = accumulation
        self.step = 0
        self.manual = False  # whether the training loop calls begin_step
        self._like = tensors[0] if tensors else torch.zeros(())  # the sums are kept on its device
        self._calls = 0  # micro-batches of this step so far
        self._steps_in_block = 0
        self._initial: float | None = None
        self._smoothed = 0.0
        self._without_progress = False  # the initial loss can't be used
        self._told = False
        self._step_sum = torch.zeros(2)  # sum of the losses, and their number
        self._block_sum = torch.zeros(2)  # sum of the steps' mean losses, and their number
        self._follow_device()

    @property
    def weight(self) -> float:
        """v in g_0 + v (fold - g_0), the gradient of a step with a walk."""
        return float(self._options.every if self._options.weight is None else self._options.weight)

    @property
    def between_walks(self) -> bool:
        """Whether `every` skips the walk of this step."""
        return self.step % self._options.every != 0

    def __call__(self) -> float:
        """The strength of the current step."""
        return 0.0 if self.between_walks else self.of_walk()

    def of_walk(self) -> float:
        """The strength of a walk in the current step, also if `every` leaves this step out."""
        if callable(self.schedule):
            return _checked(self.schedule(self.step), self.step)
        strength = self._options.of_step(self.step, self.total_steps)
        if self._options.progress is None or self._without_progress:
            return strength
        if self._initial is None:
            return 0.0
        fallen = (self._initial - self._smoothed) / (self._options.progress * abs(self._initial))
        return strength * min(1.0, max(0.0, fallen))

    def begin_step(self, step: int) -> None:
        """Begin an optimizer step; all calls until the next one use its strength. Repeating a step has no effect."""
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(f"step must be a whole number, got {step!r}")
        recall = self.remembered()
        with undone_after_failure(recall), undone_after_failure(recall):
            self.manual = True
            if step != self.step:
                self._end_step()
            self.step = step

    @torch.no_grad()
    def count(self, loss: Tensor, loss_scale: Tensor | float | None = 1.0) -> None:
        """Count a successful call, with the loss of its clean pass. If this fails, nothing is counted."""
        if self.schedule is None:
            return
        recall = self.remembered()
        with undone_after_failure(recall), undone_after_failure(recall):
            self._count(loss, loss_scale)

    def remembered(self) -> Callable[[], None]:
        """A function that sets the state back to the present one. No method changes a tensor of the state in place."""
        before = dict(self.__dict__)
        return lambda: self.__dict__.update(before)

    def _count(self, loss: Tensor, loss_scale: Tensor | float | None) -> None:
        if self._options.progress is not None:
            self._follow_device()
            loss = (loss.detach() / (1.0 if loss_scale is None else loss_scale)).reshape(()).to(self._step_sum)
            finite = loss.isfinite()
            self._step_sum = self._step_sum + torch.stack([torch.where(finite, loss, 0.0), finite.to(loss)])
        self._calls += 1
        if not self.manual and self._calls >= self.accumulation:
            self._end_step()
            self.step += 1

    def _follow_device(self) -> None:
        """Move the sums to the device of the model, which may have changed."""
        device = self._like.device
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._step_sum, self._block_sum = self._step_sum.to(device, kind), self._block_sum.to(device, kind)

    def _end_step(self) -> None:
        if self._calls == 0:
            return
        total, number = self._step_sum
        self._block_sum = self._block_sum + torch.stack([total / number.clamp(min=1), (number > 0).to(number)])
        self._step_sum = torch.zeros_like(self._step_sum)
        self._calls = 0
        self._steps_in_block += 1
        if self._steps_in_block == BLOCK:
            self._end_block()

    def _end_block(self) -> None:
        self._steps_in_block = 0
        if self._options.progress is None:
            return
        total, number = self._over_processes(self._block_sum).tolist()
        self._block_sum = torch.zeros_like(self._block_sum)
        if self._initial is None and not self._without_progress:
            self._begin(total / number if number else math.nan)
        elif self._initial is not None and number:
            self._smoothed = SMOOTHING * self._smoothed + (1 - SMOOTHING) * total / number
        if (
            not self._told
            and self.step >= PATIENCE
            and self.of_walk() == 0
            and self._options.of_step(self.step, self.total_steps)
        ):
            self._told = True
            warnings.warn(
                f"the walk has not begun after {self.step} steps, because the loss has not fallen below its initial "
                f"value {self._initial:.4g}: give schedule=Schedule(), which walks from the start",
                UserWarning,
                stacklevel=4,
            )

    def _begin(self, loss: float) -> None:
        if math.isfinite(loss) and loss != 0:
            self._initial = self._smoothed = loss
            return
        self._without_progress = True
        warnings.warn(
            f"the schedule can't follow the progress of the loss, because its mean over the first {BLOCK} steps is "
            f"{loss:g}: from now on the strength depends on `start` and `warmup` only",
            UserWarning,
            stacklevel=5,
        )

    def _over_processes(self, sums: Tensor) -> Tensor:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return sums
        total = sums.clone()
        torch.distributed.all_reduce(total, group=self.process_group)
        return total

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers. Reading them synchronises with the device."""
        return {
            "step": self.step,
            "calls": self._calls,
            "steps_in_block": self._steps_in_block,
            "initial": self._initial,
            "smoothed": self._smoothed,
            "without_progress": self._without_progress,
            "told": self._told,
            "step_sum": self._step_sum.tolist(),
            "block_sum": self._block_sum.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if missing := self.state_dict().keys() - state.keys():
            raise KeyError(f"the state of a schedule has no {min(missing)!r}: give a SharpBackward.state_dict()")
        self.step, self._calls, self._steps_in_block = state["step"], state["calls"], state["steps_in_block"]
        self._initial, self._smoothed = state["initial"], state["smoothed"]
        self._without_progress, self._told = state["without_progress"], state["told"]
        self._step_sum = self._step_sum.new_tensor(state["step_sum"])
        self._block_sum = self._block_sum.new_tensor(state["block_sum"])


def group_of(model: nn.Module | None, tensors: Sequence[Tensor]) -> Any:
    """The process group of a DDP or FSDP2 model; None means the default group."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    meshes = {shard[0] for shard in map(sharding, tensors) if shard is not None}
    if len(meshes) == 1 and next(iter(meshes)).ndim == 1:
        return next(iter(meshes)).get_group()
    return None


def _in_steps(name: str, value: float, total_steps: int | None) -> int:
    if isinstance(value, int):
        return value
    if value and total_steps is None:
        raise ValueError(f"{name}={value} is a share of training: give total_steps, or {name} as a number of steps")
    return round(value * (total_steps or 0))


def _checked(strength: object, step: int) -> float:
    if not isinstance(strength, float | int) or not 0 <= strength <= 1:
        raise ValueError(f"the schedule must give a strength in [0, 1], got {strength!r} for step {step}")
    return float(strength)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
