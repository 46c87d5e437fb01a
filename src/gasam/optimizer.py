"""`SharpnessAware`, a torch optimizer that wraps another one and runs the walk in `step(closure)`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from inspect import Parameter, signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gasam.backward import LossPasses, SharpBackward
from gasam.mistakes import look_at_function
from gasam.parameters import read
from gasam.passes import Pass, check_reached, explained, now, uninterrupted
from gasam.perturbation import Perturbation

_KEY = "walk"  # of a state dict


def _of(owner: str, name: str) -> Any:
    """A property that reads and sets this attribute of the owner."""
    return property(
        lambda self: getattr(getattr(self, owner), name),
        lambda self, value: setattr(getattr(self, owner), name, value),
    )


class SharpnessAware(Optimizer):
    """A torch optimizer that wraps another one: `step(closure)` runs the closure K+1 times, then the base steps.

    The closure computes the loss, calls backward and returns the loss; gradients are cleared before each call. Groups
    and state are those of the base. With a schedule, or a method that keeps tensors, the state dict has the additional
    key "walk". `enabled`, `perturbation`, `last` and `metrics` are as in SharpBackward.

    Args:
        base: The optimizer that updates the weights. Parameter groups with "perturb": False do not move in the walk,
            but are trained.
        perturbation: The walk, for example `ga_sam(1e-4)`. None means `recommended()`, with its schedule.
        model: The model. Needed for the names of its parameters and for `batchnorm`.
        before_step: Called with the combined gradient in `.grad`, before the base steps. Clip gradients here.
        **options: As in SharpBackward, all but `backward` and `accumulation`. `gradient_scale` is the gradient that the
            closure leaves, divided by that of the mean loss.
    """

    def __init__(
        self,
        base: Optimizer,
        perturbation: Perturbation | None = None,
        *,
        model: nn.Module | None = None,
        before_step: Callable[[], object] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch optimizer, built as usual, got {type(base).__name__}")
        closure = signature(base.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise TypeError(f"base must be able to step without a closure, got {type(base).__name__}: choose another")
        if not isinstance(model, nn.Module | None):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        if refused := options.keys() & {"backward", "accumulation"}:
            raise TypeError(f"SharpnessAware has no option {min(refused)!r}: the closure calls backward")
        self.base, self.before_step = base, before_step
        self.__setstate__({})  # instead of Optimizer's constructor, which would create groups and a state
        self.sharp = SharpBackward(model or base.param_groups, perturbation, **options)
        self._update()

    param_groups = _of("base", "param_groups")
    state = _of("base", "state")
    defaults = _of("base", "defaults")
    register_state_dict_pre_hook = _of("base", "register_state_dict_pre_hook")
    register_state_dict_post_hook = _of("base", "register_state_dict_post_hook")
    register_load_state_dict_pre_hook = _of("base", "register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = _of("base", "register_load_state_dict_post_hook")
    enabled = _of("sharp", "enabled")
    perturbation = _of("sharp", "perturbation")
    last = _of("sharp", "last")
    metrics = _of("sharp", "metrics")
    _known: object = None  # the groups that `sharp` uses now

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the walk, step the base, and return what the closure returned in its first pass."""
        if closure is None:
            # torch.distributed.checkpoint creates the state of a new optimizer by a step with learning rates of 0.
            if any(group.get("lr", 1) != 0 for group in self.param_groups):
                raise RuntimeError(
                    "SharpnessAware.step needs a closure that computes the loss and calls backward: if you can't give "
                    "one, use SharpBackward with the plain optimizer"
                )
            return self.base.step()
        self._update()
        sharp = self.sharp
        if sharp.last is None:
            look_at_function(closure)
        with uninterrupted() as held:
            run = _ClosurePasses(sharp, closure, held)
            after = sharp.step(run)
            if self.before_step is not None:
                with held.let():
                    self.before_step()
            self.base.step()
            sharp.clock.state = after  # the base has stepped, so this step is counted
            return run.returned

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the base. If the walk can't use the group, the base is left unchanged."""
        self.base.add_param_group(param_group)
        try:
            self._update()
        except BaseException:
            self.base.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """The state of the base, and under "walk" that of the schedule and what the method keeps, if there is any."""
        return self.base.state_dict() | ({_KEY: self.sharp.state_dict()} if self.sharp.has_state else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the base and of the walk. Groups keep their "perturb" if the saved groups have none."""
        still = [{"perturb": group["perturb"]} if "perturb" in group else {} for group in self.param_groups]
        self.base.load_state_dict({name: value for name, value in state_dict.items() if name != _KEY})
        for group, own in zip(self.param_groups, still, strict=True):
            group |= own | group
        self._update()
        if _KEY in state_dict:
            self.sharp.load_state_dict(state_dict[_KEY])
        elif self.sharp.clock.schedule is not None:
            warnings.warn(f"the state dict has no {_KEY!r}, so the schedule begins again at step 0", stacklevel=2)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("base", "before_step", "sharp")}

    def __repr__(self) -> str:
        return f"SharpnessAware({self.perturbation}, base={self.base!r})"

    def _update(self) -> None:
        """Use the base's groups, which may have changed."""
        known = [(group.get("perturb", True), *map(id, group["params"])) for group in self.param_groups]
        if self._known != known:
            self.sharp.set_parameters(read(self.param_groups))
            self._known = known


class _ClosurePasses(LossPasses):
    """The passes of a closure, which calls backward itself."""

    by_closure = True

    def run(self, for_direction: bool, walks: bool) -> tuple[Pass, Any, Any]:
        for parameter in self.trained:
            parameter.grad = None
        with torch.enable_grad(), explained():
            returned = self.function()
        if not isinstance(returned, Tensor | Real) or (isinstance(returned, Tensor) and returned.numel() != 1):
            kind = type(returned).__name__
            raise TypeError(f"the closure must return the loss as a single number, got {kind}: is a `return` missing?")
        check_reached(self.trained, "the closure left no gradient on any parameter: it must call loss.backward()")
        loss = returned if isinstance(returned, Tensor) else torch.tensor(float(returned), dtype=torch.float64)
        loss, scale = loss.detach().reshape(()), self.sharp.gradient_scale
        # A closure with a scale may return the loss before or after scaling it.
        return Pass(loss, now(scale), 1.0 if scale == 1.0 else None), returned, returned
