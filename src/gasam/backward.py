"""`SharpBackward`, which replaces `loss.backward()`, and the base class it shares with `SharpnessAware`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gasam import passes
from gasam.contexts import Statistics, freezing, frozen_batchnorm, includes, per_worker, synchronised, together
from gasam.fold import Fold, Overflow, check_overflow
from gasam.function_fold import make_fold
from gasam.mistakes import checked_once, explained, look_at_function, warn_of_statistics
from gasam.parameters import Parameters, read, weights_of
from gasam.passes import Around, Backward, GradientScale, Pass
from gasam.perturbation import Perturbation, check_perturbation, check_schedule, or_recommended
from gasam.schedule import Clock, Schedule, StrengthOfStep, group_of
from gasam.step import MethodState
from gasam.trace import BETWEEN, OFF, WAITING, Trace, plain_trace
from gasam.walk import traced_climb
from gasam.watch import Watch
from gasam.weights import undone_after_failure

METHOD = "method"
"""Key of a state dict for what the perturbation's functions keep."""


class Walker:
    """The base class of SharpBackward and SharpnessAware: checked options, the schedule and the last trace.

    You may change `enabled` and `perturbation` between steps. `last` is the trace of the last step.
    """

    def _set_up(
        self,
        model: nn.Module | None,
        tensors: Sequence[Tensor],
        perturbation: Perturbation | None,
        schedule: Schedule | StrengthOfStep | None,
        *,
        around: Around | None,
        gradient_scale: GradientScale,
        batchnorm: Statistics,
        on_overflow: Overflow,
        detailed: bool,
        total_steps: int | None,
        process_group: Any,
        accumulation: int = 1,
    ) -> None:
        around = passes.plainly if around is None else around
        self.perturbation, schedule = or_recommended(perturbation, schedule)
        check_perturbation(self.perturbation)
        check_schedule(self.perturbation, schedule)
        passes.check_around(around)
        self._per_worker = includes(around, per_worker)
        check_overflow(on_overflow, self._per_worker)
        group = process_group or group_of(model, tensors)
        self.clock = Clock(schedule, tensors, accumulation=accumulation, total_steps=total_steps, process_group=group)
        self.model = model
        self.around = freezing(model, batchnorm, around)
        self.gradient_scale = gradient_scale
        self.on_overflow = on_overflow
        self.detailed = detailed
        self.enabled = True
        self.last: Trace | None = None
        self.method_state = MethodState()
        # Whether a displaced pass was checked for updates of running statistics; not needed if they are restored.
        self._searched = model is not None or includes(around, frozen_batchnorm)
        self._knows_function = False  # until the first call has succeeded
        self._watch = Watch()

    @property
    def could_walk(self) -> bool:
        """Whether a strength above 0 leads to a walk."""
        return self.enabled and self.perturbation.size > 0

    @property
    def _folds_this_step(self) -> bool:
        """Whether the risk function changes the gradient of this step, in which `every` skips the walk."""
        return self.perturbation.folds_between and self.could_walk and self.clock.between_walks

    def _around_passes(self) -> Around:
        """`around`; for a risk function also synchronised, because it needs the reduced gradient of every pass."""
        if self.perturbation.risk_function is None:
            return self.around
        if self._per_worker:
            raise RuntimeError(
                "per_worker can't be used with a risk function, because it combines the gradients of the passes after "
                "they are reduced over the workers: leave per_worker out"
            )
        if isinstance(self.model, DistributedDataParallel):
            return together(synchronised(self.model), self.around)
        return self.around

    def _reason_for_no_walk(self) -> int:
        if not self.could_walk:
            return OFF
        return BETWEEN if self.clock.between_walks else WAITING

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step as plain numbers, for loggers. Reading them synchronises with the device."""
        return {} if self.last is None else self.last.metrics()


class SharpBackward(Walker):
    """Replaces `loss.backward()`: runs K+1 passes along the walk and adds their combined gradient to `.grad`.

    Call it with a function that returns the loss or (loss, anything), and that does not call backward. The call returns
    what the function returned in the clean pass, with the loss detached. With `enabled = False` or a perturbation of
    size 0 it runs one plain pass. `last` is the trace of the last step.

    Args:
        model: The model or its parameters: `model.named_parameters()`, `model.parameters()` or parameter groups. Put
            parameters that must not move into a group with "perturb": False; with "perturb": 0.5 they move half as far.
            If you leave trained parameters out, their gradients are wrong in two cases: if the risk is "final", as in
            SAM, or a function, they accumulate the gradients of all K+1 passes, and with a schedule weight other than
            1 they are not rescaled.
        perturbation: The walk, for example `ga_sam(1e-4)`. None means `recommended()`, with its schedule.
        schedule: When to walk and how strongly: a `Schedule`, or a function from the step to a strength in [0, 1].
            None means full strength in every step, unless `perturbation` is None.
        backward: Called instead of `loss.backward()`, for example `accelerator.backward`. With risk "mean" it receives
            the loss times 1 / (K+1). Factors that it applies, such as a loss scale, do not change the walk.
        around: A function of (k, last) that returns a context manager for pass k, for example `same_noise()`.
        gradient_scale: Your loss divided by the mean loss, for example the number of tokens if you return a sum: a
            number, or a function that returns one. If your function divides the loss, as in `loss / 8`, give 1/8.
        batchnorm: "clean pass" updates running statistics, for example of BatchNorm, in the clean pass only. "every
            pass" updates them in all passes. Has an effect only if you give the model.
        on_overflow: "keep" keeps a gradient that is not finite. "clean" uses the clean gradient instead, and needs
            memory for a copy of it.
        detailed: Also compare the clean and the displaced gradient of each group, and measure the rounding error of
            the offset. Needs memory for two copies of the gradient.
        accumulation: The number of calls per optimizer step. Only the schedule uses it; see also `begin_step`.
        total_steps: Optimizer steps of the whole training. Needed if the schedule contains shares of training.
        process_group: The processes over which the schedule averages the loss. By default those of the DDP or FSDP2
            model, or else all processes.
    """

    def __init__(
        self,
        model: Parameters,
        perturbation: Perturbation | None = None,
        *,
        schedule: Schedule | StrengthOfStep | None = None,
        backward: Backward = torch.Tensor.backward,
        around: Around | None = None,
        gradient_scale: GradientScale = 1.0,
        batchnorm: Statistics = "clean pass",
        on_overflow: Overflow = "keep",
        detailed: bool = False,
        accumulation: int = 1,
        total_steps: int | None = None,
        process_group: Any = None,
    ) -> None:
        entries = read(model)
        self.parameters = [entry.tensor for entry in entries]
        self._set_up(
            model if isinstance(model, nn.Module) else None,
            self.parameters,
            perturbation,
            schedule,
            around=around,
            gradient_scale=gradient_scale,
            batchnorm=batchnorm,
            on_overflow=on_overflow,
            detailed=detailed,
            total_steps=total_steps,
            process_group=process_group,
            accumulation=accumulation,
        )
        self.weights = weights_of(entries, self.perturbation, self.model)
        self.backward = backward

    def __repr__(self) -> str:
        return f"SharpBackward({len(self.parameters)} parameters, {self.perturbation}, {self.clock.schedule})"

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self._knows_function:
            look_at_function(function)
            function = checked_once(function, self.gradient_scale)
        strength = self.clock.strength()
        fold, undo = self._prepare(strength)
        with undone_after_failure(undo), undone_after_failure(undo):
            if fold is None:
                returned, trace = passes.plain_pass(
                    function,
                    self.backward,
                    self.around,
                    self.gradient_scale,
                    strength,
                    reason=self._reason_for_no_walk(),
                )
            elif strength > 0:
                returned, trace = self._walk(function, strength, fold)
                trace = self._watch.add(trace)
            else:
                returned, trace = self._fold_plain_pass(function, fold)
            self.clock.state = self.clock.after(trace.losses[0], trace.loss_scale)
        self.last, self._knows_function = trace, True
        return returned

    def _prepare(self, strength: float) -> tuple[Fold | None, Callable[[], None]]:
        """The fold of this step, None for a plain pass, and a function that undoes the step after a failure."""
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        fold, before = None, self.clock.state
        if self.could_walk and strength > 0:
            fold = make_fold(
                trained,
                self.perturbation,
                self.method_state,
                strength=strength,
                weight=self.clock.weight,
                separately=self.detailed and not self._per_worker,
                clean_if_overflow=self.on_overflow == "clean",
            )
        elif self._folds_this_step:
            fold = make_fold(trained, self.perturbation, self.method_state, strength=self.clock.strength_of_walk())

        def undo() -> None:
            self.clock.state = before
            if fold is not None:
                fold.undo()

        return fold, undo

    def walks(self) -> bool:
        """Whether the next call runs displaced passes."""
        return self.could_walk and self.clock.strength() > 0

    def begin_step(self, step: int) -> None:
        """Begin the optimizer step with this number. All calls until the next `begin_step` use the same strength."""
        self.clock.begin_step(step)

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule, as plain numbers, and the tensors that the method keeps, if it keeps any."""
        state = self.clock.state_dict()
        return state | {METHOD: self.method_state.state_dict(self.parameters)} if self.method_state else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clock.load_state_dict(state)
        self.method_state.load_state_dict(state.get(METHOD, {}), self.parameters)

    def _walk(self, function: Callable[[], Any], strength: float, fold: Fold) -> tuple[Any, Trace]:
        trained, around = [p for p in self.parameters if p.requires_grad], self._around_passes()
        clean: list[Any] = []

        def evaluate(k: int) -> Pass:
            fold.make_room(k)
            with explained(), around(k, k == self.perturbation.steps):
                held = any(parameter.grad is not None for parameter in trained)
                loss, returned = passes.call(function)
                if held:
                    passes.check_kept(trained)
                if k == 0:
                    clean.append(returned)
                    passes.check_untouched(trained)
                elif not self._searched:
                    self._searched = True
                    warn_of_statistics(loss)
                factor = passes.back(loss, self.backward, fold.displaced if k else fold.first)
            if k == 0:
                passes.check_reached(trained)
            loss_scale = passes.now(self.gradient_scale)
            alone = fold.separately or k < self.perturbation.steps
            seen = Pass(loss.detach().clone().reshape(()), factor * loss_scale, loss_scale, alone)
            fold.passed(seen)
            return seen

        fold.set_aside()
        trace = traced_climb(
            self.weights,
            evaluate,
            self.perturbation,
            strength=strength,
            detailed=self.detailed,
            state=self.method_state,
        )
        fold.finish(trace.climbed)
        return clean[0], trace

    def _fold_plain_pass(self, function: Callable[[], Any], fold: Fold) -> tuple[Any, Trace]:
        """Run one plain pass, and let the risk function change its gradient."""
        trained, around = [p for p in self.parameters if p.requires_grad], self._around_passes()
        fold.set_aside()
        with around(0, True):
            loss, returned = passes.call(function)
            factor = passes.back(loss, self.backward, 1.0)
        passes.check_reached(trained)
        loss_scale = passes.now(self.gradient_scale)
        fold.passed(Pass(loss.detach(), factor * loss_scale))
        fold.finish()
        return returned, plain_trace(loss, 0.0, loss_scale, reason=BETWEEN)
