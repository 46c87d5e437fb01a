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
from gasam.family import Kept, Method, dense_gradient, dot
from gasam.fold import Fold
from gasam.mistakes import checked_once, look_at_function, warn_of_gradients, warn_of_statistics
from gasam.parameters import Entry, Parameters, read, weights_of
from gasam.passes import Around, Backward, GradientScale, Pass, uninterrupted
from gasam.perturbation import Perturbation
from gasam.recommended import Setting, chosen
from gasam.schedule import Clock, Schedule, StrengthOfStep
from gasam.trace import BETWEEN, LEARNING, OFF, WAITING, Trace, Watch
from gasam.walk import walk

METHOD = "method"
"""Key of a state dict for what the perturbation's method keeps."""


class Passes(Protocol):
    """Runs the passes of one step: a loss function, or an optimizer's closure."""

    returned: Any  # by the first pass

    has_ascent: bool  # whether passes that only find a direction are others

    def plain(self) -> Pass:
        """Run one pass without a walk."""

    def __call__(self, factor: float, last: bool, for_direction: bool) -> Pass:
        """Run one pass of a walk, and leave the gradient of factor * loss in `.grad`."""


class SharpBackward:
    """Replaces `loss.backward()`: runs the passes of the walk and adds their combined gradient to `.grad`.

    Call it with a function that returns the loss or (loss, anything), and that does not call backward. The call returns
    what the function returned in its first pass, with the loss detached. With `enabled = False` or a perturbation of
    size 0 it runs one plain pass. `last` is the trace of the last step. You may change `enabled` and `perturbation`
    between steps.

    A cheaper call is `sharp(function, ascent=other)`: passes that only find a direction run `other`, for example the
    loss of a quarter of the batch, in the same unit. With risk "mean" the gradient is then the mean over the displaced
    passes alone.

    Args:
        model: The model or its parameters: `model.named_parameters()`, `model.parameters()` or parameter groups. Put
            parameters that must not move into a group with "perturb": False. Give all trained parameters: others simply
            add up the gradients of all passes, which is right only with one pass, or with risk "mean", schedule weight
            1 and no `ascent`.
        perturbation: The walk, for example `ga_sam(1e-4)`, or a pair with its schedule, as `recommended(passes=1)`
            returns it. None means `recommended()`.
        schedule: When to walk and how strongly: a `Schedule`, or a function from the step to a strength in [0, 1].
            None means full strength in every step, unless `perturbation` is None.
        backward: Called instead of `loss.backward()`, for example `accelerator.backward`. It receives the loss times a
            positive factor, which may differ between passes. Factors that it applies, such as a loss scale, do not
            change the walk.
        around: A function of (k, last) that returns a context manager for a pass, for example `same_noise()`. k counts
            the passes of the loss function from 0; a pass of `ascent` has -1.
        gradient_scale: Your loss divided by the mean loss, for example the number of tokens if you return a sum: a
            number, or a function that returns one. If your function divides the loss, as in `loss / 8`, give 1/8.
        batchnorm: "clean pass" updates running statistics, for example of BatchNorm, in the first pass of the loss
            function only. "every pass" updates them in all passes. Has an effect only if you give the model.
        detailed: Measure every walk in full, and compare the clean and the last gradient of each group. Needs memory
            for two copies of the gradient.
        accumulation: The number of calls per optimizer step, for schedules, moving averages and random offsets; see
            also `begin_step`.
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
        perturbation: Perturbation | Setting | None = None,
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
        self.kept, self._learner = Kept(), self.perturbation.method
        # Whether a displaced pass was checked for updates of running statistics; not needed if they are restored.
        self.searched = self.model is not None or includes(around, frozen_batchnorm)
        self.knows_function = False  # until the first call has succeeded
        self.last: Trace | None = None
        self._watch = Watch()
        self._scale: Any = None  # of the gradient that the micro-batches of this step have added up so far

    def set_parameters(self, entries: list[Entry]) -> None:
        """Walk with these parameters from now on."""
        self.parameters = [entry.tensor for entry in entries]
        self.weights = weights_of(entries, self.perturbation, self.model, in_place=self.in_place)

    def __repr__(self) -> str:
        return f"SharpBackward({len(self.parameters)} parameters, {self.perturbation}, {self.clock.schedule})"

    def __call__(self, function: Callable[[], Any], *, ascent: Callable[[], Any] | None = None) -> Any:
        if not self.knows_function:
            look_at_function(function)
            function = checked_once(function, self.gradient_scale)
        method = self.perturbation.method
        if method is not None and method.learns and self.could_walk and self._scale is None:
            warn_of_gradients(self.parameters)
        with uninterrupted() as held:
            run = LossPasses(self, function, ascent, held)
            self.step(run)
            return run.returned

    @property
    def could_walk(self) -> bool:
        """Whether the walk is switched on: enabled, with a size above 0."""
        return self.enabled and self.perturbation.size > 0

    def walks(self, strength: float | None = None) -> bool:
        """Whether the next call runs displaced passes; `strength` if the schedule was asked already."""
        return self.could_walk and (self.clock.strength() if strength is None else strength) > 0 and not self.must_learn

    @property
    def must_learn(self) -> bool:
        """Whether the method has no direction yet, because it has seen no gradient."""
        method = self.perturbation.method
        return method is not None and not method.clean_pass and method.learns and not self.kept

    def begin_step(self, step: int, *, last: bool = True) -> None:
        """Begin the optimizer step with this number. All calls until the next `begin_step` use the same strength.

        `last` says whether the next call is the last one of the step, from whose gradient a moving average learns.
        """
        self.clock.begin_step(step, last=last)

    def metrics(self) -> dict[str, float]:
        """Metrics of the last step as plain numbers, for loggers. Reading them synchronises with the device."""
        return {} if self.last is None else self.last.metrics()

    @property
    def has_state(self) -> bool:
        """Whether a resumed run needs the state dict."""
        method = self.perturbation.method
        one_pass = method is not None and not method.clean_pass  # noise is drawn by the number of the step
        return self.clock.schedule is not None or one_pass or bool(self.kept)

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule, as plain numbers, and the tensors that the method keeps, if it keeps any."""
        state = self.clock.state_dict()
        return state | {METHOD: self.kept.state_dict(self.parameters)} if self.kept else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept.load_state_dict(state.get(METHOD, {}), self.parameters)
        self.clock.load_state_dict(state)

    def step(self, run: Passes, *, by_closure: bool = False, count: bool = True) -> None:
        """Run the passes of one step, and leave its gradient in `.grad`.

        After a failure `.grad`, the weights and the schedule are as before.

        Args:
            run: The passes.
            by_closure: Whether they are closures, which call backward and may clear `.grad`.
            count: Count the call for the schedule. Otherwise use `counted` later.
        """
        plan, clock, method = self.perturbation, self.clock, self.perturbation.method
        self._begin(run.has_ascent)
        strength = clock.strength()
        walks, between = self.walks(strength), self.could_walk and clock.between_walks and plan.folds_between
        clean_counts = not run.has_ascent and (method is None or method.clean_pass)
        compares = self.detailed and clean_counts and not self.per_worker  # whose last gradient is not alone in `.grad`
        fold = None
        if walks or between:
            fold = Fold(
                [p for p in self.parameters if p.requires_grad],
                plan,
                self.kept,
                weight=clock.weight,
                strength=clock.strength_of_walk(),
                apart=compares,
                clean_counts=clean_counts,
                by_closure=by_closure,
            )
        passes_of_step = _PassesOfStep(run, fold, 0 if between else plan.steps)
        self.kept.step = clock.state.step
        try:
            if walks:
                measured = self.detailed or self._watch.measures_next
                options: Any = {"strength": strength, "measured": measured, "detailed": compares}
                trace = walk(self.weights, plan, passes_of_step, kept=self.kept, **options)
            else:
                trace = Trace([passes_of_step(0).loss], plain=self._why_plain(strength))
            passes_of_step.finish(trace)
            trace.strength, trace.step = strength, clock.state.step
            if walks:
                self._watch.add(trace)
            first = passes_of_step.first
            after = clock.after(first.loss, first.loss_scale)
            if method is not None and method.learns and self.could_walk:
                self._learn(method, passes_of_step.scale)
            if count:
                clock.state = after
        except BaseException:
            if fold is not None:
                fold.undo()
            raise
        self.last, self.knows_function = trace, True

    def _begin(self, has_ascent: bool) -> None:
        """Check the step, and forget what another method has kept."""
        method = self.perturbation.method
        if method != self._learner:
            self.kept, self._learner, self._scale = Kept(), method, None
        if self.could_walk:
            self.check_ascent(has_ascent=has_ascent)

    def _why_plain(self, strength: float) -> str:
        if not self.could_walk:
            return OFF
        if self.clock.between_walks:
            return BETWEEN
        return LEARNING if self.must_learn and strength > 0 else WAITING

    def check_ascent(self, *, has_ascent: bool) -> None:
        """Raise if `ascent` is missing, or if the schedule or method needs a clean gradient that no pass computes."""
        method = self.perturbation.method
        if self.perturbation.needs_ascent and not has_ascent:
            raise ValueError(
                "this perturbation has needs_ascent=True, because a step without `ascent` costs whole passes: call "
                "sharp(lambda: loss_of(batch), ascent=lambda: loss_of(part)), or set ascent_fraction=0.25 in Lightning "
                "and the Trainer"
            )
        if not has_ascent and (method is None or method.clean_pass):
            return
        if self.clock.weight != 1:
            raise ValueError(
                f"a schedule weight of {self.clock.weight:g} needs the clean gradient of the whole batch, which a step "
                "with `ascent` or with one pass does not compute: give Schedule(..., weight=1)"
            )
        if has_ascent and self.perturbation.own_fold is not None:
            name = type(method).__name__
            raise ValueError(f"{name} needs the clean gradient of the whole batch: call SharpBackward without ascent")

    def _learn(self, method: Method, scale: Tensor | float) -> None:
        """In the last call of an optimizer step let the method learn from its gradient.

        `scale` is the gradient of this call divided by that of the mean loss.
        """
        scale = scale if self._scale is None else self._scale + scale  # gradients of micro-batches add up
        if not self.clock.ends_step:
            self._scale = scale
            return
        parameters = [tensor for tensor in self.weights.tensors if tensor.requires_grad and tensor.grad is not None]
        gradients = [dense_gradient(parameter, parameter.grad) for parameter in parameters]

        # Whether the gradient is finite is the same in all processes; whether the loss was, is not.
        with torch.no_grad(), self.kept.bound(parameters, scale, lambda: dot(gradients, gradients).isfinite()):
            method.learn(gradients, self.kept)
        self._scale = None

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


class _PassesOfStep:
    """Runs the passes of one step, and combines their gradients by the fold; without a fold one plain pass."""

    def __init__(self, run: Passes, fold: Fold | None, last: int) -> None:
        self._run, self._fold, self._last = run, fold, last
        self._factor = 1.0
        self._seen: list[Pass] = []
        self._ascents: list[Pass] = []

    def __call__(self, k: int) -> Pass:
        if self._fold is None:
            seen = self._run.plain()
        else:
            self._factor = self._fold.before(k)
            for_direction = self._run.has_ascent and self._fold.only_finds_direction(k)
            seen = self._run(self._factor, k == self._last, for_direction)
            if for_direction:
                self._ascents.append(seen)
        self._seen.append(seen)
        return seen

    @property
    def first(self) -> Pass:
        return self._seen[0]

    @property
    def _last_scale(self) -> Any:
        return abs(self._seen[-1].gradient_scale)

    @property
    def scale(self) -> Any:
        """The gradient of this step divided by that of the mean loss."""
        return self._last_scale / self._factor

    def finish(self, trace: Trace) -> None:
        """Leave the gradient in `.grad`, and tell the trace which passes were run."""
        if self._fold is not None:
            self._fold.finish(trace.finite, self._last_scale)
        trace.passes, trace.loss_scale = len(self._seen), self._seen[-1].loss_scale
        if self._ascents:
            trace.ascent_loss, trace.losses = self.first.loss, trace.losses[len(self._ascents) :]
        trace.first = self._last + 1 - len(trace.losses) if self._fold is not None else 0


class LossPasses:
    """The passes of a loss function, and of `ascent`."""

    def __init__(
        self,
        sharp: SharpBackward,
        function: Callable[[], Any],
        ascent: Callable[[], Any] | None,
        held: uninterrupted,
    ) -> None:
        self._sharp, self._function, self._ascent, self._held = sharp, function, ascent, held
        self.trained = [p for p in sharp.parameters if p.requires_grad]
        self._passes = 0  # of the loss function so far
        self.has_ascent = ascent is not None
        self.returned: Any = None

    def plain(self) -> Pass:
        with self._sharp.around(0, True), self._held.let():
            loss, self.returned = passes.call(self._function)
            factor = passes.back(loss, self._sharp.backward, 1.0)
        loss_scale = passes.now(self._sharp.gradient_scale)
        return Pass(loss.detach().reshape(()), factor * loss_scale, loss_scale)

    def __call__(self, factor: float, last: bool, for_direction: bool) -> Pass:
        sharp, trained = self._sharp, self.trained
        before, number = passes.have_gradients(trained), -1 if for_direction else self._passes
        with sharp.around_passes(number, last), self._held.let():
            loss, returned = passes.call(self._ascent if for_direction else self._function)  # type: ignore[arg-type]
            passes.check_untouched(trained, before=before)
            if number == 0:
                self.returned = returned
            elif not sharp.searched:  # a displaced pass, or one of `ascent`
                sharp.searched = True
                warn_of_statistics(loss)
            of_backward = passes.back(loss, sharp.backward, factor)
        if not before:
            passes.check_reached(trained)
        self._passes += not for_direction
        loss_scale = passes.now(sharp.gradient_scale)
        return Pass(loss.detach().clone().reshape(()), of_backward * loss_scale, loss_scale)
