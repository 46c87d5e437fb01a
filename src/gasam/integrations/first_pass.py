"""`FirstPass`, a walk whose clean pass is run by the framework, and checks that the integrations share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gasam.backward import SharpBackward
from gasam.contexts import includes, together
from gasam.distributed import per_worker, shared_walk
from gasam.fold import clean_factor
from gasam.optimizer import SharpnessAware
from gasam.passes import Backward, now


class FirstPass:
    """Created before the framework's forward pass, so that `around(0, ..)` covers all of it, as in a plain loop."""

    def __init__(self, sharp: SharpBackward, model: object) -> None:
        self.sharp = sharp
        self.loss: Tensor | None = None
        self._around = sharp.around
        if isinstance(model, DistributedDataParallel) and not includes(sharp.around, per_worker):
            # Frameworks accumulate under no_sync, where each worker would compute its own perturbation. A method's fold
            # needs the reduced gradient of the last pass as well.
            share = shared_walk(model, also_last=sharp.perturbation.own_fold is not None)
            self._around = together(share, sharp.around)
        self._stack = ExitStack()
        self._stack.enter_context(self._around(0, not sharp.walks()))

    def close(self) -> None:
        self._stack.close()

    def fold(
        self, made: Tensor, backward: Backward, again: Callable[[], Any], *, items: Tensor | float = 1.0
    ) -> Tensor:
        """Run the walk; return the factor by which the framework multiplied the loss, for example 1 / accumulation.

        Args:
            made: The tensor that the framework computed from the clean loss; the clean pass calls backward on it.
            backward: The framework's backward.
            again: Computes the loss of a displaced pass. It is multiplied by the same factor, d(made)/d(loss), which
                two hooks read in the clean backward pass.
            items: The loss divided by the mean over its examples. Multiplies the user's `gradient_scale`.
        """
        loss, scale, plan = self.loss, self.sharp.gradient_scale, self.sharp.perturbation
        assert loss is not None
        factors: list[Tensor] = []

        def scaled_backward(share: Tensor) -> None:
            """Run backward on a multiple of the pass's loss, as the framework would."""
            if factors:
                backward(share * factors[0])
                return
            with _derivative(loss) as at_loss, _derivative(made) as at_made:
                backward(made if share is loss else made * clean_factor(plan.steps, plan.risk))
            if not at_loss:
                raise RuntimeError(
                    "the tensor given to backward does not depend on the loss of the clean pass: do not detach it"
                )
            factors.append(at_loss[0] / at_made[0])

        replaced = {"backward": scaled_backward, "around": self._pass, "gradient_scale": lambda: now(scale) * items}
        with shadowed(self.sharp, knows_function=True, **replaced):
            self.sharp(lambda: again() if factors else loss)
        return factors[0]

    def _pass(self, k: int, last: bool) -> AbstractContextManager[Any]:
        return self._stack if k == 0 else self._around(k, last)


@contextmanager
def _derivative(tensor: Tensor) -> Iterator[list[Tensor]]:
    """Collect the gradient of the tensor in a backward pass."""
    seen: list[Tensor] = []
    hook = tensor.register_hook(seen.append)  # type: ignore[no-untyped-call]
    try:
        yield seen
    finally:
        hook.remove()


@contextmanager
def shadowed(owner: object, **attributes: object) -> Iterator[None]:
    """Replace attributes of an object inside the block."""
    missing = object()
    before = {name: vars(owner).get(name, missing) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def check_order(cls: type, mixin: type, framework: str) -> None:
    """Raise if the mixin comes after the framework's class in the list of bases."""
    names = [base.__name__ for base in cls.__mro__]
    if framework in names and names.index(framework) < names.index(mixin.__name__):
        raise TypeError(
            f"{cls.__name__} has {mixin.__name__} after {framework} in its bases, where it has no effect: write class "
            f"{cls.__name__}({mixin.__name__}, ...)"
        )


def check_optimizers(optimizers: Iterable[object], mixin: str) -> None:
    """Raise if an optimizer would run the walk a second time."""
    for optimizer in optimizers:
        if isinstance(getattr(optimizer, "optimizer", optimizer), SharpnessAware):
            raise RuntimeError(
                f"{mixin} and SharpnessAware are both used, so each would run a walk: give the plain optimizer, or "
                f"remove {mixin}"
            )


def check_parts(sharp: object, model: nn.Module, builder: str) -> None:
    """Raise unless `sharp` has all trained parameters and the default backward."""
    if not isinstance(sharp, SharpBackward):
        raise TypeError(f"{builder} must return a SharpBackward, got {type(sharp).__name__}")
    if sharp.backward is not torch.Tensor.backward:
        raise ValueError(f"{builder} must not give SharpBackward a backward, because the framework has one")
    known = set(map(id, sharp.parameters))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in known:
            raise RuntimeError(
                f"parameter {name!r} is trained, but {builder} did not give it to SharpBackward: give all of "
                "named_parameters(), including frozen ones, and add no module later"
            )


def knows_all(sharp: SharpBackward, optimizers: Iterable[Any]) -> bool:
    """Whether `sharp` has all parameters that the optimizers train now; gradual unfreezing adds parameters.

    It runs in every step, so it does not search the whole model.
    """
    known = set(map(id, sharp.parameters))
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return all(id(p) in known or not p.requires_grad for group in groups for p in group["params"])
