"""`SharpBackward`, which replaces `loss.backward()`: one training step from beginning to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gasam import passes
from gasam.contexts import Statistics, freezing, frozen_batchnorm, includes, together
from gasam.distributed import group_of, per_worker, shared_walk
from gasam.family import Kept, dense_gradient, dot
from gasam.fold import Fold
from gasam.mistakes import checked_once, look_at_function, warn_of_gradients, warn_of_statistics
from gasam.parameters import Entry, Parameters, read, weights_of
from gasam.passes import Around, Backward, GradientScale, Pass, uninterrupted
from gasam.perturbation import Perturbation
from gasam.recommended import Setting, chosen
from gasam.schedule import Clock, Schedule, State, StrengthOfStep
from gasam.trace import BETWEEN, LEARNING, OFF, WAITING, Trace, Watch
from gasam.walk import walk

_METHOD = "method"  # of a state dict: what the perturbation's method keeps


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
            parameters that must not move into a group with "perturb": False. Give all trained parameters: others add up
            the gradients of all passes.
        perturbation: The walk, for example `ga_sam(1e-4)`, or a pair with its schedule, as `recommended(passes=1)`
            returns it. None means `recommended()`.
        schedule: When to walk and how strongly: a `Schedule`, or a function from the step to a strength in [0, 1].
            None means that of the perturbation, or else full strength in every step.
        backward: Called instead of `loss.backward()`, for example `accelerator.backward`, with the loss times a
            positive factor, which may differ between passes. Factors that it applies itself do not change the walk.
        around: A function of (k, last) that returns a context manager for a pass, for example `same_noise()`. k counts
            the passes of the loss function from 0; a pass of `ascent` has -1.
        gradient_scale: Your loss divided by the mean loss: a number, or a function that returns one. Give the number of
            tokens if you return a sum, and 1/8 if you return `loss / 8`.
        batchnorm: "clean pass" updates running statistics, for example of BatchNorm, in the first pass of the loss
            function only, if you give the model; "every pass" in all passes.
        detailed: Measure every walk in full, and compare the clean and the last gradient of each group. Needs memory
            for two copies of the gradient.
        accumulation: The number of calls per optimizer step; see also `begin_step`.
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
        self.kept, self._followed = Kept(), self.perturbation
        # Whether a displaced pass was checked for updates of running statistics; not needed if they are restored.
        self.searched = self.model is not None or includes(around, frozen_batchnorm)
        self.last: Trace | None = None  # until the first call has succeeded
        self._watch = Watch()
        self._scale: Any = None  # of the gradient that the micro-batches of this step have added up so far

    def set_parameters(self, entries: list[Entry]) -> None:
        """Walk with these parameters from now on."""
        self._entries, self.parameters = entries, [entry.tensor for entry in entries]
        self.weights = weights_of(entries, self.perturbation, self.model, in_place=self.in_place)

    def _follow(self) -> None:
        """Forget what belongs to another perturbation."""
        plan, before = self.perturbation, self._followed
        if plan is before or plan == before:
            return
        self._followed, self._watch = plan, Watch()
        if plan.method != before.method:
            self.kept, self._scale = Kept(), None
        if (plan.perturb, plan.granularity) != (before.perturb, before.granularity):
            self.set_parameters(self._entries)

    def __repr__(self) -> str:
        return f"SharpBackward({len(self.parameters)} parameters, {self.perturbation}, {self.clock.schedule})"

    def __call__(self, function: Callable[[], Any], *, ascent: Callable[[], Any] | None = None) -> Any:
        if self.last is None:
            look_at_function(function)
            function = checked_once(function, self.gradient_scale)
        if self.learns and self._scale is None:
            warn_of_gradients(self.parameters)
        with uninterrupted() as held:
            run = LossPasses(self, function, held, ascent)
            self.clock.state = self.step(run)
            return run.returned

    @property
    def could_walk(self) -> bool:
        """Whether the walk is switched on: enabled, with a size above 0."""
        return self.enabled and self.perturbation.size > 0

    @property
    def learns(self) -> bool:
        """Whether the method learns from the gradient of every optimizer step."""
        method = self.perturbation.method
        return self.could_walk and method is not None and method.learns

    def walks(self) -> bool:
        """Whether the next call runs displaced passes."""
        self._follow()
        return self._why_plain(self.clock.strength()) is None

    def _why_plain(self, strength: float) -> str | None:
        """Why the next call runs one plain pass; None if it walks with this strength."""
        if not self.could_walk:
            return OFF
        if self.clock.between_walks:
            return BETWEEN
        if strength == 0:
            return WAITING
        method = self.perturbation.method
        can_climb = self.perturbation.clean_pass or bool(self.kept) or not (method and method.learns)
        return None if can_climb else LEARNING

    def begin_step(self, step: int, *, last: bool = True) -> None:
        """Begin the optimizer step with this number. All calls until the next `begin_step` use the same strength.

        `last` says whether the next call is the last one of the step, from whose gradient a moving average learns.
        """
        if step != self.clock.state.step:
            self._scale = None
        self.clock.begin_step(step, last=last)

    def metrics(self) -> dict[str, float]:
        """Plain numbers for loggers, of the last measured walk or of a plain pass. Reading them synchronises."""
        return {} if self.last is None else self.last.metrics()

    @property
    def has_state(self) -> bool:
        """Whether a resumed run needs the state dict."""
        counts_steps = not self.perturbation.clean_pass  # noise is drawn by the number of the step
        return self.clock.schedule is not None or counts_steps or bool(self.kept)

    def state_dict(self) -> dict[str, Any]:
        """The state of the schedule, as plain numbers, and the tensors that the method keeps, if it keeps any."""
        state = self.clock.state_dict()
        return state | {_METHOD: self.kept.state_dict(self.parameters)} if self.kept else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept.load_state_dict(state.get(_METHOD, {}), self.parameters)
        self.clock.load_state_dict(state)

    def step(self, run: LossPasses) -> State:
        """Run the passes of one step, and leave its gradient in `.grad`.

        Returns the state of the schedule after the step; assign it to `clock.state` to count the step. After a failure
        the weights and the schedule are as before, and so is `.grad`, except after a plain pass and with closures.
        """
        plan, clock = self.perturbation, self.clock
        self._follow()
        if self.could_walk:
            self._check(run)
        strength = clock.strength()  # asked once, because a function of the user may answer differently
        plain = self._why_plain(strength)
        # Not with per_worker, whose last gradient is not alone in `.grad`.
        compares = self.detailed and run.has_clean_pass and not self.per_worker
        fold = None
        if plain is None or (plain == BETWEEN and plan.folds_between):
            fold = Fold(run, plan, clock, self.kept, strength=strength, apart=compares)
        run_pass = run.plain if fold is None else fold
        self.kept.step = clock.state.step
        try:
            if plain is None:
                trace = walk(
                    self.weights,
                    plan,
                    run_pass,
                    strength=strength,
                    kept=self.kept,
                    measured=self.detailed or self._watch.measures_next,
                    detailed=compares,
                )
            else:
                seen = run_pass(0)
                trace = Trace([seen.loss], plain=plain, loss_scale=seen.loss_scale)
            if fold is not None:
                fold.finish(trace.finite)
            first, trace.passes = run.seen[0], len(run.seen)
            if directions := len(run.seen) - run.number:
                trace.ascent_loss, trace.losses = first.loss, trace.losses[directions:]
            trace.strength, trace.step = 0.0 if clock.between_walks else strength, clock.state.step
            if plain is None:
                trace.first = plan.steps + 1 - len(trace.losses)
                self._watch.add(trace)
            after = clock.after(first.loss, first.loss_scale)
            self._learn(run)
        except BaseException:
            if fold is not None:
                fold.undo()
            raise
        self.last = trace
        return after

    def _check(self, run: LossPasses) -> None:
        """Raise if `ascent` is missing, or if a gradient is needed that is not computed or not reduced."""
        plan, weight, name = self.perturbation, self.clock.weight, type(self.perturbation.method).__name__
        if plan.needs_ascent and run.ascent is None:
            raise ValueError(
                "this perturbation has needs_ascent=True, because a step without `ascent` costs whole passes: call "
                "sharp(function, ascent=other), or set ascent_fraction=0.25 in Lightning and the Trainer"
            )
        if weight != 1 and not run.has_clean_pass:
            raise ValueError(
                f"a schedule weight of {weight:g} needs the clean gradient of the whole batch, which a step with "
                "`ascent` or with one pass does not compute: give Schedule(..., weight=1)"
            )
        if run.ascent is not None and plan.own_fold is not None:
            raise ValueError(f"{name} needs the clean gradient of the whole batch: call SharpBackward without ascent")
        if self.per_worker and plan.own_fold is not None:
            raise RuntimeError(
                f"per_worker can't be used with {name}, which combines gradients after they are reduced: leave it out"
            )
        if self.per_worker and run.by_closure and (plan.risk == "mean" or weight != 1):
            raise RuntimeError(
                "per_worker can't be used with a closure if the risk is 'mean' or the schedule's weight is not 1, "
                "because it may clear gradients before they are reduced: use SharpBackward"
            )

    def _learn(self, run: LossPasses) -> None:
        """In the last call of an optimizer step a method that learns gets its gradient."""
        if not self.learns:
            self._scale = None
            return
        scale = run.gradient_scale / run.factor  # the gradient of this call divided by that of the mean loss
        scale = scale if self._scale is None else self._scale + scale  # gradients of micro-batches add up
        if not self.clock.ends_step:
            self._scale = scale
            return
        parameters = [tensor for tensor in self.weights.tensors if tensor.requires_grad and tensor.grad is not None]
        gradients = [dense_gradient(parameter, parameter.grad) for parameter in parameters]

        # Whether the gradient is finite is the same in all processes; whether the loss was, is not.
        with torch.no_grad(), self.kept.bound(parameters, scale, lambda: dot(gradients, gradients).isfinite()):
            self.perturbation.method.learn(gradients, self.kept)  # type: ignore[union-attr]
        self._scale = None


class LossPasses:
    """The passes of one step: of a loss function, and of `ascent`."""

    by_closure = False

    def __init__(
        self,
        sharp: SharpBackward,
        function: Callable[[], Any],
        held: uninterrupted,
        ascent: Callable[[], Any] | None = None,
    ) -> None:
        self.sharp, self.function, self.held, self.ascent = sharp, function, held, ascent
        self.trained = [p for p in sharp.parameters if p.requires_grad]
        self.seen: list[Pass] = []
        self.number = 0  # of the next pass of the loss function
        self.factor = 1.0  # of the loss of the present pass
        self.returned: Any = None  # by the first pass of the loss function

    @property
    def has_clean_pass(self) -> bool:
        """Whether walks begin with a pass of the loss function at w."""
        return self.ascent is None and self.sharp.perturbation.clean_pass

    @property
    def gradient_scale(self) -> Any:
        """The gradient of the last pass divided by that of the mean loss; its sign does not matter."""
        return abs(self.seen[-1].gradient_scale)

    def plain(self, k: int) -> Pass:
        """Run the only pass of a step without a walk."""
        return self(1.0, last=True, for_direction=False, walks=False)

    def __call__(self, factor: float, *, last: bool, for_direction: bool, walks: bool = True) -> Pass:
        """Run one pass, and leave the gradient of factor * loss in `.grad`."""
        sharp, number, around = self.sharp, -1 if for_direction else self.number, self.sharp.around
        if walks and sharp.perturbation.own_fold is not None and isinstance(sharp.model, DistributedDataParallel):
            around = together(shared_walk(sharp.model, also_last=True), around)  # it needs all gradients reduced
        self.factor = factor
        with around(number, last), self.held.let():
            seen, loss, returned = self.run(for_direction, walks)
        if number == 0:
            self.returned = returned
        elif not sharp.searched:  # a displaced pass, or one of `ascent`
            sharp.searched = True
            warn_of_statistics(loss)
        self.number += not for_direction
        self.seen.append(seen)
        return seen

    def run(self, for_direction: bool, walks: bool) -> tuple[Pass, Any, Any]:
        """Forward and backward: the pass, its loss with the graph, and what the function returned."""
        before = passes.have_gradients(self.trained)
        loss, returned = passes.call(self.ascent if for_direction else self.function)  # type: ignore[arg-type]
        if walks and passes.have_gradients(self.trained) != before:
            raise RuntimeError(
                "the loss function called backward, or cleared the gradients of earlier passes: only return the loss"
            )
        factor = passes.back(loss, self.sharp.backward, self.factor)
        if walks and not before:
            passes.check_reached(
                self.trained, "no parameter got a gradient: give SharpBackward the parameters that the loss depends on"
            )
        scale = passes.now(self.sharp.gradient_scale)
        return Pass(loss.detach().clone().reshape(()), factor * scale, scale), loss, returned
