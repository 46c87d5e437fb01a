"""`Step`, the argument of a method's `ascent` and `risk` functions, and `MethodState`, what a method keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gasam.portions import wide
from gasam.sharded import sharding
from gasam.torch_private import local
from gasam.vectors import Space, Tensors, Vector, refuse_sparse


class MethodState:
    """The tensors that a method keeps between steps, by name: one for each parameter.

    They are allocated once, in float32 or the wider type of the parameter, and sharded like it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[Tensor, Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def read(self, name: str, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """The local part of each kept tensor; None for what has not been kept yet."""
        known = self._kept.get(name, {})
        for parameter in known:
            if known[parameter].device != parameter.device:  # the model has moved
                known[parameter] = known[parameter].to(parameter.device)
        found = [known.get(parameter) for parameter in parameters]
        return [None if tensor is None else local(tensor) for tensor in found]

    @torch.no_grad()
    def write(self, name: str, parameter: Tensor, value: Tensor, finite: Tensor) -> None:
        """Keep the value, unless the step is not finite. Does not synchronise with the host."""
        known = self._kept.setdefault(name, {})
        if parameter not in known:
            known[parameter] = torch.zeros_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)
        kept = local(known[parameter])
        if value.is_sparse or value.shape != kept.shape:
            refuse_sparse()
        kept.copy_(torch.where(finite.to(kept.device), value, kept))

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, list[Tensor | None]]:
        """The kept tensors in the order of the parameters."""
        return {name: [known.get(parameter) for parameter in parameters] for name, known in self._kept.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Sequence[Tensor | None]], parameters: Sequence[Tensor]) -> None:
        loaded: dict[str, dict[Tensor, Tensor]] = {}
        for name, tensors in state.items():
            if len(tensors) != len(parameters):
                raise ValueError(f"the saved {name!r} has {len(tensors)} tensors, but there are {len(parameters)}")
            loaded[name] = {}
            for parameter, tensor in zip(parameters, tensors, strict=True):
                if tensor is not None and tensor.shape != parameter.shape:
                    raise ValueError(
                        f"the saved {name!r} has the shape {tuple(tensor.shape)} for a parameter of the shape "
                        f"{tuple(parameter.shape)}: load the state of the same model"
                    )
                if tensor is not None:
                    own = torch.zeros_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)
                    local(own).copy_(local(tensor))
                    loaded[name][parameter] = own
        self._kept = loaded

    def unchanged(self) -> MethodState:
        """The same tensors for reading; what is written to them is dropped."""
        return _Unchanged(self)


class _Unchanged(MethodState):
    def __init__(self, state: MethodState) -> None:
        self._kept = state._kept

    def write(self, name: str, parameter: Tensor, value: Tensor, finite: Tensor) -> None:
        return


class Step:
    """What the `ascent` and `risk` functions of a method can use in one training step.

    Args:
        parameters: The parameters of the vectors.
        gradients: The gradients of the mean loss, without factors such as a loss scale. `risk` gets those of all
            passes, the clean one first, and a single one in a step without a walk. `ascent` gets that of the newest
            pass.
        k: The number of passes before the newest one; 0 after the clean pass.
        strength: The strength of the schedule.
        state: What the method has kept.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Vector],
        *,
        k: int,
        strength: float,
        state: MethodState,
    ) -> None:
        self.gradients = tuple(gradients)
        self.k = k
        self.strength = strength
        self._parameters = parameters
        self._state = state
        self._pending: dict[str, Vector] = {}

    @property
    def gradient(self) -> Vector:
        """The gradient of the newest pass."""
        return self.gradients[-1]

    def kept(self, name: str) -> Vector:
        """The vector that an earlier step kept under this name; zero before the first."""
        return Vector(self.gradient.space, [(1.0, self._state.read(name, self._parameters))])

    def keep(self, name: str, vector: Vector) -> Vector:
        """Keep a vector for later steps, and return it. It is written after the function has returned.

        In a step with a loss or gradient that is not finite the old vector stays.
        """
        self._pending[name] = vector
        return vector

    @property
    def keeps(self) -> bool:
        return bool(self._pending)

    def write(self, i: int, finite: Tensor) -> None:
        """Write what is kept for parameter i."""
        values = {name: vector.entry(i) for name, vector in self._pending.items()}
        for name, value in values.items():
            if value is not None:
                self._state.write(name, self._parameters[i], value, finite)


Method = Callable[[Step], Vector]
"""A function of a step that returns the vector to climb (`ascent`) or the gradient for the optimizer (`risk`)."""


def space_of(parameters: Sequence[Tensor], like: Tensor) -> Space:
    return Space([sharding(parameter) for parameter in parameters], like)


def unscaled(space: Space, gradients: Tensors, scale: Tensor | float) -> Vector:
    """The gradient of the mean loss, from gradients that were multiplied by a scale."""
    if isinstance(scale, Tensor):
        return Vector(space, [(1 / scale.to(space.like), gradients)])
    return Vector(space, [(1 / scale, gradients)])


def result_of(method: Method, step: Step, option: str) -> Vector:
    """Call the user's function, and check what it returns."""
    found: Any = method(step)
    if not isinstance(found, Vector):
        raise TypeError(
            f"the {option} function must return a Vector computed from step.gradients, got {type(found).__name__}"
        )
    return found
