"""`SharpBackward`, which replaces `loss.backward()`, and the base class it shares with `SharpnessAware`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gasam import passes
from gasam.contexts import Statistics, freezing, frozen_batchnorm, includes, per_worker
from gasam.fold import Fold, Overflow, check_overflow
from gasam.mistakes import checked_once, explained, look_at_function, warn_of_statistics
from gasam.parameters import Parameters, read, weights_of
from gasam.passes import Around, Backward, GradientScale, Pass
from gasam.perturbation import Perturbation, check_perturbation, or_recommended
from gasam.schedule import Schedule, Strength, StrengthOfStep, group_of
from gasam.trace import BETWEEN, OFF, WAITING, Trace
from gasam.walk import traced_climb
from gasam.watch import Watch
from gasam.weights import run_again_if_interrupted


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
        passes.check_around(around)
        self._per_worker = includes(around, per_worker)
        check_overflow(on_overflow, self._per_worker)
        group = process_group or group_of(model, tensors)
        self.strength = Strength(
            schedule, tensors, accumulation=accumulation, total_steps=total_steps, process_group=group
        )
        self.model = model
        self.around = freezing(model, batchnorm, around)
        self.gradient_scale = gradient_scale
        self.on_overflow = on_overflow
        self.detailed = detailed
        self.enabled = True
        self.last: Trace | None = None
        # Whether a displaced pass was checked for updates of running statistics; not needed if they are restored.
        self._searched = model is not None or includes(around, frozen_batchnorm)
        self._knows_function = False  # until the first call has succeeded
        self._watch = Watch()

    @property
    def could_walk(self) -> bool:
        """Whether a strength above 0 leads to a walk."""
        return self.enabled and self.perturbation.size > 0

    def _reason_for_no_walk(self) -> int:
        if not self.could_walk:
            return OFF
        return BETWEEN if self.strength.between_walks else WAITING

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
            parameters that must not move into a group with "perturb": False. If you leave trained parameters out,
            their gradients are wrong in two cases: with risk "final", as in SAM, they accumulate the gradients of all
            K+1 passes, and with a schedule weight other than 1 they are not rescaled.
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
        self.weights = weights_of(entries, self.perturbation)
        self.backward = backward

    def __repr__(self) -> str:
        return f"SharpBackward({len(self.parameters)} parameters, {self.perturbation}, {self.strength.schedule})"

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self._knows_function:
            look_at_function(function)
            function = checked_once(function, self.gradient_scale)
        strength = self.strength()
        if self.could_walk and strength > 0:
            returned, trace = self._walk(function, strength)
            self.last = self._watch.add(trace)
        else:
            returned, self.last = passes.plain_pass(
                function, self.backward, self.around, self.gradient_scale, strength, reason=self._reason_for_no_walk()
            )
        self._knows_function = True
        self.strength.count(self.last.losses[0], self.last.loss_scale)
        return returned

    def walks(self) -> bool:
        """Whether the next call runs displaced passes."""
        return self.could_walk and self.strength() > 0

    def begin_step(self, step: int) -> None:
        """Begin the optimizer step with this number. All calls until the next `begin_step` use the same strength."""
        self.strength.begin_step(step)

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule, as plain numbers."""
        return self.strength.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.strength.load_state_dict(state)

    def _walk(self, function: Callable[[], Any], strength: float) -> tuple[Any, Trace]:
        trained = [p for p in self.parameters if p.requires_grad]
        fold = Fold(
            trained,
            self.perturbation,
            weight=self.strength.weight,
            separately=self.detailed and not self._per_worker,
            clean_if_overflow=self.on_overflow == "clean",
        )
        clean: list[Any] = []

        def evaluate(k: int) -> Pass:
            fold.make_room(k)
            with explained(), self.around(k, k == self.perturbation.steps):
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
            return Pass(loss.detach().clone().reshape(()), factor * loss_scale, loss_scale, alone)

        try:
            fold.set_aside()
            trace = traced_climb(self.weights, evaluate, self.perturbation, strength=strength, detailed=self.detailed)
            fold.finish()
        except BaseException:
            run_again_if_interrupted(fold.undo)
            raise
        return clean[0], trace
