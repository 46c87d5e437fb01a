"""SharpnessAware: the walk behind torch's closure contract, around any base optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from inspect import Parameter, signature
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gasam.ascent import Pass
from gasam.contexts import leaves_passes_local, warn_of_statistics
from gasam.fold import GradientSum, loss_factor
from gasam.parameters import read, weights_of
from gasam.passes import Around, GradientScale, check_around, check_reduced, now, plainly
from gasam.perturbation import Perturbation, check_perturbation
from gasam.trace import Trace, plain_trace
from gasam.walk import traced_climb
from gasam.weights import Weights

_KEPT = ("base", "perturbation", "before_step", "around", "gradient_scale", "detailed", "enabled", "last")


class SharpnessAware(Optimizer):
    """A torch optimizer around another one: `step(closure)` calls the closure K+1 times, then the base steps.

    The closure computes the loss, calls backward and returns the loss. Gradients are cleared before each call, whether
    the closure does it or not. Parameter groups, state and state dict are the base's own.

    Args:
        base: The optimizer that makes the step, built as usual. A group with "perturb": False does not move.
        perturbation: The walk, for example `ga_sam(1e-4)`.
        before_step: Called after the gradients are folded and before the base steps: the place for clipping.
        around: A function of (k, last) that returns a context for pass k, for example `same_noise()`.
        gradient_scale: How many times the gradient of the mean loss the closure leaves behind, for example the number
            of tokens of a sum: a number, or a function that returns one.
        detailed: Also measure |a|/|w| of each group and what rounding leaves of the offset.
    """

    _looked = False  # for running statistics, in the first displaced pass

    def __init__(
        self,
        base: Optimizer,
        perturbation: Perturbation,
        *,
        before_step: Callable[[], object] | None = None,
        around: Around = plainly,
        gradient_scale: GradientScale = 1.0,
        detailed: bool = False,
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch optimizer, built as usual, got {type(base).__name__}")
        closure = signature(base.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise TypeError(f"base must be able to step without a closure, and {type(base).__name__} is not")
        check_perturbation(perturbation)
        check_around(around)
        self.base = base
        self.perturbation = perturbation
        self.before_step = before_step
        self.around = around
        self.gradient_scale = gradient_scale
        self.detailed = detailed
        self.enabled = True
        self.last: Trace | None = None
        # Optimizer's constructor would make groups and state of its own; all else it sets up, unpickling does too.
        self.__setstate__({})
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
        """Return what the closure returned in the clean pass.

        Without a closure only the base steps, and only where every learning rate is 0: torch.distributed.checkpoint
        creates the state of a new optimizer in this way.
        """
        if closure is None:
            if any(group.get("lr", 1) != 0 for group in self.param_groups):
                raise RuntimeError(
                    "SharpnessAware.step needs a closure that computes the loss and calls backward, because it is run "
                    "K+1 times: where you can't give one, use SharpBackward with the plain optimizer"
                )
            return self.base.step()
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        walks, mean = self.enabled and self.perturbation.epsilon > 0, self.perturbation.risk == "mean"
        if walks and mean and leaves_passes_local(self.around):
            raise RuntimeError(
                "per_worker needs SharpBackward for the mean risk: a closure may clear the gradients of the earlier "
                "passes, and then the last pass can't reduce them"
            )
        passes = GradientSum(parameters)
        clean: list[Any] = []

        def evaluate(k: int) -> Pass:
            passes.take(keep=mean and k > 0)
            with self.around(k, k == self.perturbation.steps or not walks), torch.enable_grad():
                returned = closure()
            if k == 0:
                clean.append(returned)
            elif not self._looked:
                self._looked = True
                warn_of_statistics(returned)
            return Pass(_loss(returned, parameters), now(self.gradient_scale))

        if walks:
            self.last = traced_climb(self._weights(), evaluate, self.perturbation, detailed=self.detailed)
        else:
            self.last = plain_trace(evaluate(0).loss)
        if walks and mean:  # a closure may clear what is there, so nothing was left for the last one to add to
            passes.take()
            passes.give(loss_factor(self.perturbation))
        if self.before_step is not None:
            self.before_step()
        self.base.step()
        return clean[0]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """The base's own. A group that can't be walked on is refused, and the base stays as it was."""
        self.base.add_param_group(param_group)
        try:
            self._weights()
        except BaseException:
            self.base.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The base's own. Groups keep their "perturb" if the saved groups do not have it."""
        still = [group.get("perturb") for group in self.param_groups]
        self.base.load_state_dict(state_dict)
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
        super().__setstate__(state)

    def __repr__(self) -> str:
        return f"SharpnessAware({self.perturbation}, base={self.base!r})"

    def _weights(self) -> Weights:
        """The weights with their buffers; read anew when the base's groups have changed."""
        key = [(group.get("perturb", True), *map(id, group["params"])) for group in self.param_groups]
        if self._known is None or self._known[0] != key:
            self._known = key, weights_of(read(self.param_groups), self.perturbation)
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
