"""`FunctionFold`, which combines the gradients of all passes by a perturbation's `risk` function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gasam.fold import Fold
from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.sharded import is_sharded
from gasam.step import Method, MethodState, Step, result_of, space_of, unscaled
from gasam.torch_private import local
from gasam.vectors import Vector


class FunctionFold(Fold):
    """Adds the gradient that a function returns to the caller's gradients in `.grad`.

    Each pass starts with empty gradients, and the gradients of all passes are kept until the last one. Without a walk
    there is a single pass.

    Args:
        parameters: The trained parameters.
        function: The perturbation's risk.
        state: What the function keeps between steps.
        strength: The strength of this step.
        weight: v in g_0 + v (fold - g_0).
        clean_if_overflow: Replace a gradient that is not finite by the clean one.
        by_closure: Each pass is a closure, and the caller's gradients are dropped.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        function: Method,
        state: MethodState,
        *,
        strength: float,
        weight: float = 1.0,
        clean_if_overflow: bool = False,
        by_closure: bool = False,
    ) -> None:
        self.first = self.displaced = 1.0
        self.separately = True
        self._function, self._state, self._strength, self._weight = function, state, strength, weight
        self._clean_if_overflow = clean_if_overflow
        self._parameters = parameters
        self._gradients: list[list[Tensor | None]] = []  # of each pass, the local part of each
        self._scales: list[Tensor | float] = []  # the factor of the gradients of each pass
        self._total = [None] * len(parameters)
        self._clean = []
        self._callers = [None if by_closure else parameter.grad for parameter in parameters]
        self._copies = [None] * len(parameters)

    def passed(self, seen: Pass) -> None:
        self._scales.append(seen.gradient_scale)

    def make_room(self, k: int) -> None:
        """Before pass k: set the gradients of the pass before it aside."""
        if k > 0:
            self._gradients.append([self._taken(i, copied=True) for i in range(len(self._parameters))])

    @torch.no_grad()
    def finish(self, climbed: Tensor | None = None) -> None:
        """After the last pass: call the function, and put its result into `.grad`."""
        self._gradients.append([self._taken(i, copied=False) for i in range(len(self._parameters))])
        if self._clean_if_overflow:
            self._clean = list(self._gradients[0])
        device = self._parameters[0].device
        like = torch.ones((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        space = space_of(self._parameters, like)
        scales = [scale.abs() if isinstance(scale, Tensor) else abs(scale) for scale in self._scales]
        gradients = [unscaled(space, each, scale) for each, scale in zip(self._gradients, scales, strict=True)]
        k = len(gradients) - 1
        step = Step(self._parameters, gradients, k=k, strength=self._strength, state=self._state)
        found = result_of(self._function, step, "risk")
        if self._weight != 1:
            found = gradients[0] + self._weight * (found - gradients[0])
        self._compute(found * scales[-1], step, climbed)
        if self._clean_if_overflow:
            self._replace_overflow()
        self._put_back()

    def _compute(self, found: Vector, step: Step, climbed: Tensor | None) -> None:
        """Compute the result and what the function keeps, one parameter at a time, and free the gradients."""
        may_keep = torch.tensor(True) if climbed is None else climbed
        if step.keeps:
            for gradient in step.gradients:
                may_keep = may_keep & gradient.dot(gradient).isfinite()
        for i in range(len(self._parameters)):
            like = next((each[i] for each in reversed(self._gradients) if each[i] is not None), None)
            value = None if like is None else found.entry(i)
            if like is not None and value is not None:
                self._total[i] = _in_type_of(self._parameters[i], like, value)
            step.write(i, may_keep)
            for each in self._gradients:
                each[i] = None

    def _taken(self, i: int, copied: bool) -> Tensor | None:
        """Remove the gradient from `.grad`. It is copied if another pass may overwrite it, as DDP's buckets."""
        gradient = self._parameters[i].grad
        self._parameters[i].grad = None
        if gradient is None:
            return None
        own = local(gradient).detach()
        return own.clone() if copied else own


def _in_type_of(parameter: Tensor, gradient: Tensor, value: Tensor) -> Tensor:
    """The value as a tensor of the gradient's type, sharded like the parameter."""
    if value.is_sparse:
        return value.to(gradient.dtype)
    if is_sharded(parameter):
        target = torch.empty_like(parameter, dtype=gradient.dtype, requires_grad=False)
    else:
        target = torch.empty_like(gradient)
    local(target).copy_(value)
    return target


def make_fold(
    parameters: Sequence[Tensor],
    perturbation: Perturbation,
    state: MethodState,
    *,
    strength: float,
    weight: float = 1.0,
    separately: bool = False,
    clean_if_overflow: bool = False,
    by_closure: bool = False,
) -> Fold:
    """The fold of a step: by the perturbation's risk function, or by autograd's own accumulation.

    Args:
        parameters: The trained parameters.
        perturbation: Its risk and number of steps.
        state: What a risk function keeps between steps.
        strength: The strength of this step.
        weight: As in `Fold`.
        separately: As in `Fold`.
        clean_if_overflow: As in `Fold`.
        by_closure: As in `Fold`.
    """
    function = perturbation.risk_function
    if function is None:
        return Fold(
            parameters,
            perturbation,
            weight=weight,
            separately=separately,
            clean_if_overflow=clean_if_overflow,
            by_closure=by_closure,
        )
    return FunctionFold(
        parameters,
        function,
        state,
        strength=strength,
        weight=weight,
        clean_if_overflow=clean_if_overflow,
        by_closure=by_closure,
    )
