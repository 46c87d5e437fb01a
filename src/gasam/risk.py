"""What share of each visit counts, and how the visits' gradients become the one in `.grad`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gasam.perturbation import Perturbation
from gasam.tensors import add_gradients, aliased


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
        """Add what is in `.grad` to the total, or drop it; either way clear `.grad`, once nothing can be lost."""
        if keep:
            total = list(self.total)
            add_gradients(total, self._gradients())
            self.total = total
        self.taken = True
        for parameter in self.parameters:
            parameter.grad = None

    def add(self, other: Fold) -> None:
        add_gradients(self.total, other.total)

    def give(self, factor: float = 1.0) -> None:
        """Put the total, times a factor, into `.grad`."""
        for parameter, total in zip(self.parameters, self.total, strict=True):
            parameter.grad = total if total is None or factor == 1 else total.mul_(factor)

    def undo(self) -> None:
        """Give back after a failure, if it came after the taking."""
        if self.taken:
            self.give()

    def is_empty(self) -> bool:
        return all(total is None for total in self.total)

    def may_be_added_to(self) -> bool:
        """Whether `.grad` can stay where it is while another pass adds to it."""
        return not aliased(self._gradients())

    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.parameters]
