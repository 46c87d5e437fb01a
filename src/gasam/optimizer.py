"""`SharpnessAware`, a torch optimizer that wraps another one and runs the walk in `step(closure)`."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gasam.backward import Walker
from gasam.contexts import Statistics
from gasam.fold import Overflow
from gasam.function_fold import make_fold
from gasam.mistakes import explained, look_at_function, warn_of_statistics
from gasam.parameters import names_in, read, weights_of
from gasam.passes import Around, GradientScale, Pass, check_reduced, now
from gasam.perturbation import Perturbation
from gasam.schedule import Schedule, StrengthOfStep
from gasam.trace import Trace, plain_trace
from gasam.walk import traced_climb
from gasam.watch import Watch
from gasam.weights import Weights, run_again_if_interrupted

_KEPT = (
    "base", "perturbation", "model", "clock", "before_step", "around", "gradient_scale", "on_overflow", "detailed",
    "enabled", "last", "method_state", "_per_worker", "_searched", "_knows_function",
)  # fmt: skip
_SCHEDULE, _METHOD = "walk_schedule", "walk_method"  # keys of a state dict


class SharpnessAware(Walker, Optimizer):
    """A torch optimizer that wraps another one: `step(closure)` runs the closure K+1 times, then the base steps.

    The closure computes the loss, calls backward and returns the loss. Gradients are cleared before each call, so the
    closure need not do it. Parameter groups and state are those of the base. With a schedule, the state dict has the
    additional key "walk_schedule", and "walk_method" if the method keeps tensors.

    Args:
        base: The optimizer that updates the weights. Parameter groups with "perturb": False do not move in the walk,
            and those with "perturb": 0.5 move half as far.
        perturbation: The walk, for example `ga_sam(1e-4)`. None means `recommended()`, with its schedule.
        model: The model. Needed for the names of its parameters and for `batchnorm`.
        schedule: When to walk and how strongly: a `Schedule`, or a function from the step to a strength in [0, 1].
            None means full strength in every step, unless `perturbation` is None.
        before_step: Called with the combined gradient in `.grad`, before the base steps. Clip gradients here.
        around: A function of (k, last) that returns a context manager for pass k, for example `same_noise()`.
        gradient_scale: The gradient that the closure leaves, divided by the gradient of the mean loss, for example the
            number of tokens if the loss is a sum: a number, or a function that returns one.
        batchnorm: As in SharpBackward. Has an effect only if you give the model.
        on_overflow: As in SharpBackward.
        detailed: As in SharpBackward.
        total_steps: As in SharpBackward.
        process_group: As in SharpBackward.
    """

    def __init__(
        self,
        base: Optimizer,
        perturbation: Perturbation | None = None,
        *,
        model: nn.Module | None = None,
        schedule: Schedule | StrengthOfStep | None = None,
        before_step: Callable[[], object] | None = None,
        around: Around | None = None,
        gradient_scale: GradientScale = 1.0,
        batchnorm: Statistics = "clean pass",
        on_overflow: Overflow = "keep",
        detailed: bool = False,
        total_steps: int | None = None,
        process_group: Any = None,
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch optimizer, built as usual, got {type(base).__name__}")
        closure = signature(base.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise TypeError(f"base must be able to step without a closure, got {type(base).__name__}: choose another")
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        self.base = base
        self.before_step = before_step
        # Optimizer's constructor would create groups and a state. Unpickling sets up everything else.
        self.__setstate__({})
        self._set_up(
            model,
            [tensor for group in base.param_groups for tensor in group["params"]],
            perturbation,
            schedule,
            around=around,
            gradient_scale=gradient_scale,
            batchnorm=batchnorm,
            on_overflow=on_overflow,
            detailed=detailed,
            total_steps=total_steps,
            process_group=process_group,
        )
        self._weights()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.base.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the walk, step the base, and return what the closure returned in the clean pass.

        Without a closure only the base steps. This is allowed only if every learning rate is 0, because
        torch.distributed.checkpoint creates the state of a new optimizer this way.
        """
        if closure is None:
            if any(group.get("lr", 1) != 0 for group in self.param_groups):
                raise RuntimeError(
                    "SharpnessAware.step needs a closure that computes the loss and calls backward, because it runs "
                    "K+1 passes: if you can't give one, use SharpBackward with the plain optimizer"
                )
            return self.base.step()
        if not self._knows_function:
            look_at_function(closure)
        strength = self.clock.strength()
        if self.could_walk and strength > 0:
            returned, trace = self._walk(closure, strength)
            self.last = self._watch.add(trace)
        else:
            returned, self.last = self._plain_pass(closure, strength)
        self._knows_function = True
        if self.before_step is not None:
            self.before_step()
        after = self.clock.after(self.last.losses[0], self.last.loss_scale)
        self.base.step()
        # The base has stepped, so an interrupt may not leave this step out of the schedule.
        run_again_if_interrupted(partial(setattr, self.clock, "state", after))
        return returned

    def _plain_pass(self, closure: Callable[[], Any], strength: float) -> tuple[Any, Trace]:
        """Run the closure once. Between two walks a risk function may change the gradient."""
        parameters, folds = self._trained(), self._folds_this_step
        for parameter in parameters:
            parameter.grad = None
        with (self._around_passes() if folds else self.around)(0, True), torch.enable_grad():
            returned = closure()
        loss, reason = _loss(returned, parameters), self._reason_for_no_walk()
        if folds:
            fold = make_fold(
                parameters,
                self.perturbation,
                self.method_state,
                strength=self.clock.strength_of_walk(),
                by_closure=True,
            )
            fold.passed(Pass(loss, now(self.gradient_scale)))
            fold.finish()
        return returned, plain_trace(loss, strength, self._loss_scale(), reason=reason)

    def _walk(self, closure: Callable[[], Any], strength: float) -> tuple[Any, Trace]:
        """Run the walk, and leave the combined gradient in `.grad`."""
        weight, around = self.clock.weight, self._around_passes()
        if self._per_worker and (self.perturbation.risk == "mean" or weight != 1):
            raise RuntimeError(
                "per_worker can't be used with a closure if the risk is 'mean' or the schedule's weight is not 1, "
                "because a closure may clear the gradients of earlier passes before they are reduced: use SharpBackward"
            )
        parameters, clean = self._trained(), list[Any]()
        fold = make_fold(
            parameters,
            self.perturbation,
            self.method_state,
            strength=strength,
            weight=weight,
            clean_if_overflow=self.on_overflow == "clean",
            by_closure=True,
        )

        def evaluate(k: int) -> Pass:
            fold.make_room(k)
            with explained(), around(k, k == self.perturbation.steps), torch.enable_grad():
                returned = closure()
            if k == 0:
                clean.append(returned)
            elif not self._searched:
                self._searched = True
                warn_of_statistics(returned)
            seen = Pass(_loss(returned, parameters), now(self.gradient_scale), self._loss_scale())
            fold.passed(seen)
            return seen

        fold.set_aside()
        trace = traced_climb(
            self._weights(),
            evaluate,
            self.perturbation,
            strength=strength,
            detailed=self.detailed,
            state=self.method_state,
        )
        fold.finish(trace.climbed)
        return clean[0], trace

    def first_step(self, *args: object, **kwargs: object) -> None:
        """Not supported: explains what to call instead of other libraries' `first_step` and `second_step`."""
        raise RuntimeError(
            "SharpnessAware has no first_step and second_step: call step(closure) once, with a closure that computes "
            "the loss, calls backward and returns the loss"
        )

    def _all(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _trained(self) -> list[Tensor]:
        return [p for p in self._all() if p.requires_grad]

    def _loss_scale(self) -> float | None:
        """None with a `gradient_scale`, because the closure may return the loss before or after scaling it."""
        return 1.0 if self.gradient_scale == 1.0 else None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the base. If the walk can't use the group, the base is left unchanged."""
        self.base.add_param_group(param_group)
        try:
            self._weights()
        except BaseException:
            self.base.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """The state of the base, of the schedule if there is one, and the tensors that the method keeps, if any."""
        state = self.base.state_dict()
        if self.clock.schedule is not None:
            state |= {_SCHEDULE: self.clock.state_dict()}
        return state | {_METHOD: self.method_state.state_dict(self._all())} if self.method_state else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the base and of the schedule. Groups keep their "perturb" if the saved groups have none."""
        still = [group.get("perturb") for group in self.param_groups]
        state_dict = dict(state_dict)
        of_schedule, of_method = state_dict.pop(_SCHEDULE, None), state_dict.pop(_METHOD, {})
        self.base.load_state_dict(state_dict)
        self.method_state.load_state_dict(of_method, self._all())
        if of_schedule is not None:
            self.clock.load_state_dict(of_schedule)
        elif self.clock.schedule is not None:
            warnings.warn(
                f"the state dict has no {_SCHEDULE!r}, so the schedule begins again at step 0",
                UserWarning,
                stacklevel=2,
            )
        for group, perturb in zip(self.param_groups, still, strict=True):
            if perturb is not None:
                group.setdefault("perturb", perturb)

    def register_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        return self.base.register_state_dict_pre_hook(hook, prepend)

    def register_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        return self.base.register_state_dict_post_hook(hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        return self.base.register_load_state_dict_pre_hook(hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        return self.base.register_load_state_dict_post_hook(hook, prepend)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._known: tuple[object, Weights] | None = None
        self._watch = Watch()
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"SharpnessAware({self.perturbation}, base={self.base!r})"

    def _weights(self) -> Weights:
        """The weights with their buffers; rebuilt when the base's groups have changed."""
        key = [(group.get("perturb", True), *map(id, group["params"])) for group in self.param_groups]
        if self._known is None or self._known[0] != key:
            entries = read(self.param_groups)
            if self.model is not None:
                names = names_in(self.model)
                entries = [replace(entry, name=names.get(id(entry.tensor), entry.name)) for entry in entries]
            self._known = key, weights_of(entries, self.perturbation, self.model)
        return self._known[1]


def _loss(returned: Any, parameters: list[Tensor]) -> Tensor:
    if returned is None:
        raise TypeError("the closure must return the loss, got None: is a `return` missing?")
    if not isinstance(returned, Tensor | Real) or (isinstance(returned, Tensor) and returned.numel() != 1):
        raise TypeError(f"the closure must return the loss as a single number, got {type(returned).__name__}")
    if all(parameter.grad is None for parameter in parameters):
        check_reduced(parameters)
        raise RuntimeError(
            "the closure left no gradient on any parameter: it must call loss.backward() before it returns"
        )
    return torch.as_tensor(returned).detach().reshape(())
