"""What share of each visit counts, and how the visits' gradients become the one in `.grad`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gasam.perturbation import Perturbation
from gasam.tensors import added, aliased


def share(perturbation: Perturbation) -> float:
    """By what a loss is multiplied before it is backed: then adding up gradients is the fold.

    mean: (1 / (K+1)) sum of L(w + a_k), k = 0..K.  final: L(w + a_K), whose earlier gradients are dropped.
    """
    return 1 / (perturbation.steps + 1) if perturbation.risk == "mean" else 1.0


class Fold:
    """Gradients set aside: taken out of `.grad`, added up, and given back."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.total: list[Tensor | None] = [None] * len(parameters)
        self.taken = False

    def take(self, keep: bool = True) -> None:
        """Add what is in `.grad` to the total, or drop it, and clear `.grad`; one by one, so that memory is freed."""
        for i, parameter in enumerate(self.parameters):
            if keep and parameter.grad is not None:
                self.total[i] = added(self.total[i], parameter.grad)
            parameter.grad = None
        self.taken = True

    def add(self, other: Fold) -> None:
        for i, gradient in enumerate(other.total):
            if gradient is not None:
                self.total[i] = added(self.total[i], gradient)

    def give(self, factor: float = 1.0) -> None:
        """Put the total, times a factor, into `.grad`."""
        for parameter, total in zip(self.parameters, self.total, strict=True):
            parameter.grad = total if total is None or factor == 1 else total.mul_(factor)

    def undo(self) -> None:
        """Give back after a failure; if it came in the midst of the taking, what was not taken is still there."""
        for parameter, total in zip(self.parameters, self.total, strict=True):
            if self.taken or total is not None:
                parameter.grad = total

    def is_empty(self) -> bool:
        return all(total is None for total in self.total)

    def may_be_added_to(self) -> bool:
        """Whether `.grad` can stay where it is while another pass adds to it."""
        return not aliased(self._gradients())

    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.parameters]
