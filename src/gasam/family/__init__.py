"""The sharpness-aware family: `Method`, what a published method changes in a step; one file for each method.

Vectors are lists with one tensor for each parameter. Write formulas with `dot`, `norm`, `add` and `scaled`, which
include the shards of all processes and never synchronise with the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gasam.distributed import sharding, total_of
from gasam.groups import wide
from gasam.scales import inverse
from gasam.torch_private import local

if TYPE_CHECKING:
    from gasam.schedule import Schedule

__all__ = ["Kept", "Method", "Noise", "Tensors", "add", "dot", "inverse", "norm", "scaled"]

Tensors = list[Tensor]


class Method:
    """Override what differs from SAM: `direction`, `fold`, `learn`. Gradients share one positive factor, `kept.factor`.

    Attributes:
        clean_pass: Whether a walk begins with a pass at w. Without one `direction` gets None instead of a gradient.
        between_walks: `fold` is also called in the steps that a schedule's `every` leaves out.
        only_steps: The only number of ascent steps that the method defines; None means any.
        usual_schedule: The schedule if the user gives none.
    """

    clean_pass: ClassVar[bool] = True
    between_walks: ClassVar[bool] = False
    only_steps: ClassVar[int | None] = None
    usual_schedule: ClassVar[Schedule | None] = None

    def direction(self, g: Any, kept: Kept) -> Tensors | Noise:
        """What the first ascent step climbs, from the gradient at w. Do not write to it.

        It has the unit of g: multiply what you have kept by `kept.factor`.
        """
        return g  # type: ignore[no-any-return]

    def fold(self, gradients: list[Any], kept: Kept, strength: float) -> Tensors:
        """The gradient for the optimizer, from those of all K+1 passes: a list of `Tensors`, which you may overwrite.

        An entry is None if its pass did not run: in a step between walks all but the first, and without a clean pass
        the first. `strength` is that of the schedule.
        """
        raise NotImplementedError

    def learn(self, g: Tensors, kept: Kept) -> None:
        """Keep something of the gradient that the optimizer gets. Called once in each optimizer step."""

    @property
    def has_direction(self) -> bool:
        return type(self).direction is not Method.direction

    @property
    def has_fold(self) -> bool:
        return type(self).fold is not Method.fold

    @property
    def learns(self) -> bool:
        return type(self).learn is not Method.learn


class Noise(NamedTuple):
    """A direction with entries from -1 to 1, drawn when the weights are written, so that it needs no memory."""

    seed: int


class Kept:
    """The tensors that a method keeps between steps, by name: one for each parameter, zeros before the first.

    They are allocated once, in float32 or the parameter's type if that is wider, and sharded like it. A step with a
    loss or gradient that is not finite does not change them.
    """

    def __init__(self) -> None:
        self._kept: dict[str, dict[Tensor, Tensor]] = {}
        self._parameters: Sequence[Tensor] = ()
        self._is_finite: Callable[[], Any] = bool  # gives False, and can be pickled
        self.factor: Tensor | float = 1.0
        """The gradients of this step divided by those of the mean loss, such as a loss scale."""
        self.step = 0
        """The number of the optimizer step."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def holds(self, parameter: Tensor) -> bool:
        """Whether something is kept for this parameter."""
        return any(parameter in known for known in self._kept.values())

    @contextmanager
    def bound(
        self, parameters: Sequence[Tensor], factor: Tensor | float, is_finite: Callable[[], Any]
    ) -> Iterator[None]:
        """Inside the block lists belong to these parameters."""
        self._parameters, self.factor, self._is_finite = parameters, factor, is_finite
        try:
            yield
        finally:
            self._parameters, self._is_finite = (), bool  # that of the step may hold its gradients

    def __getitem__(self, name: str) -> Tensors:
        known = self._kept.setdefault(name, {})
        for parameter in self._parameters:
            own = known[parameter] if parameter in known else _zeros(parameter)
            known[parameter] = own.to(parameter.device)  # the model may have moved
        return [known[parameter] for parameter in self._parameters]

    @torch.no_grad()
    def mix(self, name: str, decay: Tensor | float, g: Tensors) -> Tensors:
        """Keep decay * kept + (1 - decay) * g, where g is divided by this step's factor; return what is kept."""
        pairs = zip(map(local, self[name]), map(local, g), strict=True)
        return self.put(
            name, ((each / _on(self.factor, each)).to(own).lerp_(own, _on(decay, own)) for own, each in pairs)
        )

    @torch.no_grad()
    def put(self, name: str, values: Iterable[Tensor]) -> Tensors:
        """Keep these tensors, and return what is kept."""
        finite, found = torch.as_tensor(self._is_finite()), self[name]
        for own, each in zip(map(local, found), map(local, values), strict=True):
            own.copy_(torch.where(finite.to(own.device), each, own))
        return found

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, list[Tensor | None]]:
        """The kept tensors in the order of the parameters."""
        return {name: [known.get(parameter) for parameter in parameters] for name, known in self._kept.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Sequence[Tensor | None]], parameters: Sequence[Tensor]) -> None:
        loaded: dict[str, dict[Tensor, Tensor]] = {}
        for name, tensors in state.items():
            pairs = [(p, t) for p, t in zip(parameters, tensors, strict=False) if t is not None]
            if len(tensors) != len(parameters) or any(local(p).shape != local(t).shape for p, t in pairs):
                raise ValueError(f"the saved {name!r} is for other parameters: load the state of the same model")
            loaded[name] = {parameter: _zeros(parameter) for parameter, _ in pairs}
            for parameter, tensor in pairs:
                local(loaded[name][parameter]).copy_(local(tensor))
        self._kept = loaded


def dot(a: Tensors, b: Tensors) -> Tensor:
    """The sum of the products of all entries, over all processes, as a scalar tensor."""
    return total_of((sharding(x), _product(local(x), local(y))) for x, y in zip(a, b, strict=True))


def norm(a: Tensors) -> Tensor:
    """The Euclidean norm over all parameters."""
    return dot(a, a).sqrt()


def add(a: Tensors, b: Tensors, factor: Tensor | float, *, new: bool = False) -> Tensors:
    """a + factor * b, in place unless `new`."""
    found = [x.clone() if new else x for x in a]
    for x, y in zip(map(local, found), map(local, b), strict=True):
        x.add_(y * _on(factor, y))
    return found


def scaled(a: Tensors, factor: Tensor | float) -> Tensors:
    """factor * a, in place."""
    for x in a:
        local(x).mul_(_on(factor, x))
    return a


def dense_gradient(parameter: Tensor, gradient: Tensor | None) -> Tensor:
    """A gradient of the parameter in float32 or wider; zeros if there is none. Raises if it is sparse."""
    if gradient is None:
        return _zeros(parameter)
    if gradient.is_sparse:
        raise TypeError(
            "a method with its own direction or fold can't combine the sparse gradient of an embedding: use "
            "sparse=False, or a walk without a method, such as sam(0.05)"
        )
    return gradient.to(wide(gradient.dtype))


def check_result(found: object, parameters: Sequence[Tensor], who: str) -> None:
    """Raise unless a method returned a list with one tensor for each parameter."""
    if not isinstance(found, list) or [getattr(x, "shape", None) for x in found] != [p.shape for p in parameters]:
        raise TypeError(
            f"{who} must return a list with one tensor for each parameter, as `add` and `scaled` do, got "
            f"{type(found).__name__}"
        )


def _product(x: Any, y: Any) -> Tensor:
    kind = torch.float32 if x.device.type == "mps" else torch.float64
    parts = zip(x.reshape(-1).split(1 << 18), y.reshape(-1).to(x.dtype).split(1 << 18), strict=True)
    return torch.stack([torch.dot(one, other) for one, other in parts]).to(kind).sum()


def _on(factor: Tensor | float, like: Tensor) -> Tensor | float:
    return factor.to(like.device, like.dtype) if isinstance(factor, Tensor) else factor


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, dtype=wide(parameter.dtype), requires_grad=False)
