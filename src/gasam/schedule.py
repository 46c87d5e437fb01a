"""`Schedule`, which holds when to walk and how strongly, and `Clock`, the position of a run in it."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

BLOCK = 10  # optimizer steps between two updates of the smoothed loss
SMOOTHING = 0.6
PATIENCE = 1000  # steps without progress before the user is warned


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The strength of the walk, from 0 (one plain pass) to 1; it multiplies epsilon or the budget.

    It is the product of the strengths that follow from `progress`, `start` and `warmup`.

    Args:
        progress: The strength is 1 when the loss has fallen by this share of its initial value, and in proportion
            before: 0.2 for 20 percent. It shrinks if the loss rises. None means no dependence on the loss.
        start: The first step with a walk, as an int, or as a float for a share of training, which needs `total_steps`.
        warmup: The number of steps after `start` over which the strength grows linearly to 1, as an int or a share.
        every: Walk only on the steps 0, n, 2n, ...; each other step runs one plain pass.
        weight: v in g_0 + v (fold - g_0), the gradient of a step with a walk, where `fold` is its usual gradient and
            g_0 the clean one. None means the value of `every`, so that the walk has the same weight over time. Give
            all trained parameters to the walk, because others are not rescaled.
    """

    progress: float | None = None
    start: float = 0
    warmup: float = 0
    every: int = 1
    weight: float | None = None

    def __post_init__(self) -> None:
        check_positive("progress", self.progress)
        for name, value in (("start", self.start), ("warmup", self.warmup)):
            is_right = is_whole(value, at_least=0) or (isinstance(value, float) and 0 <= value < 1)
            check(name, value, is_right, "a number of steps (int) or a share in [0, 1) (float)")
        check("every", self.every, is_whole(self.every, at_least=1), "a whole number of steps >= 1")
        is_right = self.weight is None or (is_number(self.weight) and 0.001 <= self.weight <= 1000)
        check("weight", self.weight, is_right, "a number from 0.001 to 1000 or None")


StrengthOfStep = Callable[[int], float]


@dataclass(frozen=True, eq=False)
class State:
    """What a run changes. It is replaced as a whole, so that a failure or an interrupt changes nothing."""

    step: int
    calls: int  # micro-batches of this step so far
    initial: float | None  # the mean loss of the first block; 0 if it can't be used
    smoothed: float
    losses: Tensor  # the sum of the finite losses of this block, and their number


class Clock:
    """The position in a run, and the strength of the walk that follows from it and from the losses so far.

    Losses are summed on the device. Every 10 optimizer steps their mean is read, averaged over the processes of the
    group, and smoothed, so that the strength is the same in every process.
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
        check("accumulation", accumulation, is_whole(accumulation, at_least=1), "a whole number >= 1")
        if not isinstance(schedule, Schedule | None) and not callable(schedule):
            raise TypeError(f"schedule must be a Schedule or a function of the step, got {type(schedule).__name__}")
        self.schedule, self._options = schedule, schedule if isinstance(schedule, Schedule) else Schedule()
        self.accumulation, self.total_steps, self.process_group = accumulation, total_steps, process_group
        self.manual = False  # whether the training loop calls begin_step
        self._is_last = True  # `last` of begin_step
        self._like = tensors[0] if tensors else torch.zeros(())  # the sums are kept on its device
        self.state = State(0, 0, None, 0.0, self._placed(torch.zeros(2)))

    @property
    def weight(self) -> float:
        """v in g_0 + v (fold - g_0), the gradient of a step with a walk."""
        return float(self._options.every if self._options.weight is None else self._options.weight)

    @property
    def between_walks(self) -> bool:
        """Whether `every` skips the walk of this step."""
        return self.state.step % self._options.every != 0

    def strength(self) -> float:
        """The strength of the current step, also if `every` skips its walk."""
        state, progress = self.state, self._options.progress
        if callable(self.schedule):
            given = self.schedule(state.step)
            if not isinstance(given, float | int) or not 0 <= given <= 1:
                raise ValueError(f"the schedule must give a strength in [0, 1], got {given!r} for step {state.step}")
            return float(given)
        strength = _clamped((state.step - self._in_steps("start") + 1) / (self._in_steps("warmup") + 1))
        if progress is None or state.initial == 0:
            return strength
        if state.initial is None:
            return 0.0
        return strength * _clamped((state.initial - state.smoothed) / (progress * abs(state.initial)))

    def _in_steps(self, name: str) -> int:
        """The schedule's `start` or `warmup`, as a number of steps."""
        value: float = getattr(self._options, name)
        if isinstance(value, int):
            return value
        if value and self.total_steps is None:
            raise ValueError(f"{name}={value} is a share of training: give total_steps, or {name} as a number of steps")
        return round(value * (self.total_steps or 0))

    @property
    def ends_step(self) -> bool:
        """Whether the call that runs, or else the next one, is the last one of an optimizer step."""
        return self._is_last if self.manual else self.state.calls + 1 >= self.accumulation

    def begin_step(self, step: int, *, last: bool = True) -> None:
        """Begin an optimizer step; all calls until the next one use its strength. Repeating a step has no effect."""
        if not is_whole(step, at_least=0):
            raise TypeError(f"step must be a whole number, got {step!r}")
        self.manual, self._is_last = True, last
        if step != self.state.step:
            self.state = self._at_step(step, self.state)

    @torch.no_grad()
    def after(self, loss: Tensor, loss_scale: Tensor | float | None = 1.0) -> State:
        """The state after a successful call, from the loss of its first pass. Assign it to `state` to count the call.

        Losses that are not finite are left out.
        """
        state = self.state
        if self._options.progress is not None:
            sums = self._placed(state.losses)
            loss = (loss / (1.0 if loss_scale is None else loss_scale)).reshape(()).to(sums)
            finite = loss.isfinite()
            state = replace(state, losses=sums + torch.stack([torch.where(finite, loss, 0.0), finite.to(loss)]))
        state = replace(state, calls=state.calls + 1)
        if self.manual or state.calls < self.accumulation:
            return state
        return self._at_step(state.step + 1, state)

    def _placed(self, sums: Tensor) -> Tensor:
        """On the device of the model, which may have changed."""
        device = self._like.device
        return sums.to(device, torch.float32 if device.type == "mps" else torch.float64)

    def _at_step(self, step: int, state: State) -> State:
        """The state at the beginning of another step. Every 10 steps, the mean loss of the block is read."""
        ends_block = state.calls > 0 and step // BLOCK != state.step // BLOCK
        begun = replace(state, step=step, calls=0)
        if not ends_block or self._options.progress is None:
            return begun
        sums = state.losses.clone()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums, group=self.process_group)
        total, number = sums.tolist()
        mean = total / number if number else math.nan
        initial, smoothed = state.initial, state.smoothed
        if initial is None:
            if mean == 0 or not math.isfinite(mean):
                warnings.warn(
                    f"the schedule can't follow the progress of the loss, because its mean over the first {BLOCK} "
                    f"steps is {mean:g}: from now on the strength depends on `start` and `warmup` only",
                    stacklevel=5,
                )
                mean = 0.0
            initial = smoothed = mean
        elif number:
            smoothed = SMOOTHING * smoothed + (1 - SMOOTHING) * mean
        if PATIENCE <= step < PATIENCE + BLOCK and state.initial and initial <= smoothed:
            warnings.warn(
                f"the walk has not begun after {step} steps, because the loss has not fallen below its initial value "
                f"{initial:.4g}: give schedule=Schedule(), which walks from the start",
                stacklevel=5,
            )
        return replace(begun, initial=initial, smoothed=smoothed, losses=torch.zeros_like(sums))

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers. Reading them synchronises with the device."""
        return vars(self.state) | {"losses": self.state.losses.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if missing := vars(self.state).keys() - state.keys():
            raise KeyError(f"the state of a schedule has no {min(missing)!r}: give a SharpBackward.state_dict()")
        losses = self._placed(torch.tensor(state["losses"], dtype=torch.float64))
        self.state = State(**{name: state[name] for name in vars(self.state)} | {"losses": losses})


def _clamped(value: float) -> float:
    return min(1.0, max(0.0, value))


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def check(name: str, value: object, is_right: bool, allowed: str) -> None:
    if not is_right:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    check(name, value, value is None or (is_number(value) and 0 < value < math.inf), "a finite number > 0, or None")
