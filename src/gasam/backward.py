"""`SharpBackward`, which replaces `loss.backward()`: one training step from beginning to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gasam import passes
from gasam.contexts import Statistics, freezing, frozen_batchnorm, includes, together
from gasam.distributed import group_of, per_worker, shared_walk
from gasam.family import Kept
from gasam.fold import Fold
from gasam.mistakes import checked_once, look_at_function, warn_of_statistics
from gasam.parameters import Entry, Parameters, read, weights_of
from gasam.passes import Around, Backward, GradientScale, Pass, uninterrupted
from gasam.perturbation import Perturbation, chosen
from gasam.schedule import Clock, Schedule, StrengthOfStep
from gasam.trace import BETWEEN, OFF, WAITING, Trace, Watch
from gasam.walk import walk

METHOD = "method"
"""Key of a state dict for what the perturbation's method keeps."""


class Passes(Protocol):
    """Runs the passes of one step: a loss function, or an optimizer's closure."""

    returned: Any  # by the clean pass

    def plain(self) -> Tensor:
        """Run one pass without a walk; return its loss."""

    def __call__(self, k: int, factor: float, last: bool) -> Pass:
        """Run pass k, and leave the gradient of factor * loss in `.grad`."""


class SharpBackward:
    """Replaces `loss.backward()`: runs K+1 passes along the walk and adds their combined gradient to `.grad`.

    Call it with a function that returns the loss or (loss, anything), and that does not call backward. The call returns
    what the function returned in the clean pass, with the loss detached. With `enabled = False` or a perturbation of
    size 0 it runs one plain pass. `last` is the trace of the last step. You may change `enabled` and `perturbation`
    between steps.

    Args:
        model: The model or its parameters: `model.named_parameters()`, `model.parameters()` or parameter groups. Put
            parameters that must not move into a group with "perturb": False. If you leave trained parameters out, their
            gradients are wrong in two cases: if the risk is "final", as in SAM, or a method's, they accumulate the
            gradients of all K+1 passes, and with a schedule weight other than 1 they are not rescaled.
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
        detailed: Measure every walk in full, and compare the clean and the last gradient of each group. Needs memory
            for two copies of the gradient.
        accumulation: The number of calls per optimizer step. Only the schedule uses it; see also `begin_step`.
        total_steps: Optimizer steps of the whole training. Needed if the schedule contains shares of training.
        process_group: The processes over which the schedule averages the loss. By default those of the DDP or FSDP2
            model, or else all processes.
        in_place: Write displaced weights into the weights' own memory. By default the parameters point to other memory
            during a pass at w + a, which a model does not see if it reads its weights by another name: a view of a flat
            buffer, or an address captured in a CUDA graph.
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
        detailed: bool = False,
        accumulation: int = 1,
        total_steps: int | None = None,
        process_group: Any = None,
        in_place: bool = False,
    ) -> None:
        around = passes.plainly if around is None else around
        self.perturbation, schedule = chosen(perturbation, schedule)
        passes.check_around(around)
        self.model = model if isinstance(model, nn.Module) else None
        self.per_worker = includes(around, per_worker)
        self.backward, self.gradient_scale = backward, gradient_scale
        self.detailed, self.in_place = detailed, in_place
        self.around = freezing(self.model, batchnorm, around)
        self.set_parameters(read(model))
        group = process_group or group_of(self.model, self.parameters)
        self.clock = Clock(
            schedule, self.parameters, accumulation=accumulation, total_steps=total_steps, process_group=group
        )
        self.enabled = True
        self.kept = Kept()
        # Whether a displaced pass was checked for updates of running statistics; not needed if they are restored.
        self.searched = self.model is not None or includes(around, frozen_batchnorm)
        self.knows_function = False  # until the first call has succeeded
        self.last: Trace | None = None
        self._watch = Watch()

    def set_parameters(self, entries: list[Entry]) -> None:
        """Walk with these parameters from now on."""
        self.parameters = [entry.tensor for entry in entries]
        self.weights = weights_of(entries, self.perturbation, self.model, in_place=self.in_place)

    def __repr__(self) -> str:
        return f"SharpBackward({len(self.parameters)} parameters, {self.perturbation}, {self.clock.schedule})"

    def __call__(self, function: Callable[[], Any]) -> Any:
        if not self.knows_function:
            look_at_function(function)
            function = checked_once(function, self.gradient_scale)
        with uninterrupted() as held:
            run = _LossPasses(self, function, held)
            self.step(run)
            return run.returned

    @property
    def could_walk(self) -> bool:
        """Whether a strength above 0 leads to a walk."""
        return self.enabled and self.perturbation.size > 0

    def walks(self) -> bool:
        """Whether the next call runs displaced passes."""
        return self.could_walk and self.clock.strength() > 0

    def begin_step(self, step: int) -> None:
        """Begin the optimizer step with this number. All calls until the next `begin_step` use the same strength."""
        self.clock.begin_step(step)

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step as plain numbers, for loggers. Reading them synchronises with the device."""
        return {} if self.last is None else self.last.metrics()

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule, as plain numbers, and the tensors that the method keeps, if it keeps any."""
        state = self.clock.state_dict()
        return state | {METHOD: self.kept.state_dict(self.parameters)} if self.kept else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clock.load_state_dict(state)
        self.kept.load_state_dict(state.get(METHOD, {}), self.parameters)

    def step(self, run: Passes, *, by_closure: bool = False, count: bool = True) -> None:
        """Run the passes of one step, and leave its gradient in `.grad`. After a failure everything is as before.

        Args:
            run: The passes.
            by_closure: Whether they are closures, which call backward and may clear `.grad`.
            count: Count the call for the schedule. Otherwise use `counted` later.
        """
        plan, clock, watch, method = self.perturbation, self.clock, self._watch, self.perturbation.own_fold
        strength = clock.strength()
        walks = self.could_walk and strength > 0
        between = self.could_walk and not walks and clock.between_walks and method is not None and method.between_walks
        compares = self.detailed and not self.per_worker  # whose last gradient is not alone in `.grad`
        fold: Any = None
        seen: Any = None
        if walks or between:
            fold = Fold(
                [p for p in self.parameters if p.requires_grad],
                plan,
                self.kept,
                weight=clock.weight,
                strength=strength if walks else clock.strength_of_walk(),
                apart=compares,
                by_closure=by_closure,
            )

        def run_and_fold(k: int) -> Pass:
            nonlocal seen
            seen = run(k, fold.before(k), between or k == plan.steps)
            return seen  # type: ignore[no-any-return]

        try:
            if walks:
                trace = walk(
                    self.weights,
                    plan,
                    run_and_fold,
                    strength=strength,
                    kept=self.kept,
                    measured=self.detailed or watch.measures_next,
                    detailed=compares,
                )
            elif between:
                seen = run_and_fold(0)
                trace = Trace([seen.loss], plain=BETWEEN, loss_scale=seen.loss_scale)
            else:
                why = OFF if not self.could_walk else BETWEEN if clock.between_walks else WAITING
                trace = Trace([run.plain()], plain=why, loss_scale=self.loss_scale(by_closure))
            if fold is not None and seen is not None:
                fold.finish(trace.finite, abs(seen.gradient_scale))
            trace.strength, trace.step = strength, clock.state.step
            if walks:
                watch.add(trace)
            if count:
                clock.state = clock.after(trace.losses[0], trace.loss_scale)
        except BaseException:
            if fold is not None:
                fold.undo()
            raise
        self.last, self.knows_function = trace, True

    def around_passes(self, k: int, last: bool) -> Any:
        """`around`; for a method's fold also synchronised, because it needs the reduced gradient of every pass."""
        around = self.around
        if self.perturbation.own_fold is not None and self.could_walk:
            if self.per_worker:
                raise RuntimeError(
                    "per_worker can't be used with a method's fold, because it combines the gradients of the passes "
                    "after they are reduced over the workers: leave per_worker out"
                )
            if isinstance(self.model, DistributedDataParallel):
                around = together(shared_walk(self.model, also_last=True), around)
        return around(k, last)

    def loss_scale(self, by_closure: bool) -> Tensor | float | None:
        """The losses divided by the mean loss.

        It is not known for a closure with a `gradient_scale`, which may return the loss before or after scaling it.
        """
        if by_closure:
            return 1.0 if self.gradient_scale == 1.0 else None
        return passes.now(self.gradient_scale)


class _LossPasses:
    """The passes of a loss function."""

    def __init__(self, sharp: SharpBackward, function: Callable[[], Any], held: uninterrupted) -> None:
        self._sharp, self._function, self._held = sharp, function, held
        self._trained = [p for p in sharp.parameters if p.requires_grad]
        self.returned: Any = None

    def plain(self) -> Tensor:
        with self._sharp.around(0, True), self._held.let():
            loss, self.returned = passes.call(self._function)
            self._sharp.backward(loss)
        return loss.detach().reshape(())

    def __call__(self, k: int, factor: float, last: bool) -> Pass:
        sharp, trained = self._sharp, self._trained
        before = k > 0 and passes.have_gradients(trained)
        with sharp.around_passes(k, last), self._held.let():
            loss, returned = passes.call(self._function)
            passes.check_untouched(trained, before=before, is_first=k == 0)
            if k == 0:
                self.returned = returned
            elif not sharp.searched:
                sharp.searched = True
                warn_of_statistics(loss)
            of_backward = passes.back(loss, sharp.backward, factor)
        if k == 0:
            passes.check_reached(trained)
        loss_scale = passes.now(sharp.gradient_scale)
        return Pass(loss.detach().clone().reshape(()), of_backward * loss_scale, loss_scale)
