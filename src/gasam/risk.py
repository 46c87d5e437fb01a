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
    """The gradients of the passes so far, kept out of the next pass's way.

    `adds` says whether the last pass may add to what is in `.grad`: backward does, a closure may clear it first.
    """

    def __init__(self, parameters: Sequence[Tensor], perturbation: Perturbation, *, adds: bool) -> None:
        self.parameters = parameters
        self.perturbation = perturbation
        self.adds = adds
        self.before: list[Tensor | None] | None = None
        self.total: list[Tensor | None] = [None] * len(parameters)

    def make_room(self, k: int) -> None:
        """Before pass k: take what pass k-1 left (the caller's own gradient, for k = 0), and clear `.grad`.

        Before the last pass the sum goes back, so that autograd itself completes it: an all-reduce of accumulated
        gradients, as DDP does it, then sees all of them.
        """
        last = k == self.perturbation.steps
        if k == 0:
            before: list[Tensor | None] = [None] * len(self.parameters)
            if self.adds:
                add_gradients(before, self._gradients())
            self.before = before
        elif self.perturbation.risk == "mean":
            if k == 1 and last and self.adds and self._first_may_stay():
                return
            add_gradients(self.total, self._gradients())
        if last and self.adds:
            add_gradients(self.total, self.before or [])
            self._put(self.total)
            self.total = []
        else:
            self._put([None] * len(self.parameters))

    def _first_may_stay(self) -> bool:
        """With one step and nothing to add to, the first gradient is where the last pass can add to it."""
        return all(gradient is None for gradient in self.before or []) and not aliased(self._gradients())

    def complete(self) -> None:
        """After the last pass of closures: the mean of all, where the closures backed whole losses."""
        if self.perturbation.risk == "mean":
            add_gradients(self.total, self._gradients())
            self._put([g if g is None else g.mul_(share(self.perturbation)) for g in self.total])

    def undo(self) -> None:
        """Put the caller's own gradients back after a failure, if they were taken."""
        if self.before is not None:
            self._put(self.before)

    def _gradients(self) -> list[Tensor | None]:
        return [parameter.grad for parameter in self.parameters]

    def _put(self, gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
