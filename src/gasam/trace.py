"""What a walk did: losses, distances, whether it climbed. Tensors stay on the device until somebody prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gasam.ball import inverse
from gasam.moving import Moving
from gasam.portions import Portion

OFF, CLIMBED, NO_GRADIENT, NOT_FINITE = 0, 1, 2, 3

MEANING = {
    OFF: "off: one plain pass",
    CLIMBED: "climbed",
    NO_GRADIENT: "did not move: the gradient or the scale is zero",
    NOT_FINITE: "stopped: a loss, gradient or scale was not finite",
}


@dataclass(frozen=True)
class Detail:
    """The last offset, group by group, and what rounding to the weights' own type left of it."""

    labels: Sequence[str]  # the groups; element-wise the tensors
    ratios: Tensor  # |a_i| / |w_i|
    realised_norm: Tensor  # |fl(w + a) - w|
    realised_cosine: Tensor  # between a and what was realised of it

    def __str__(self) -> str:
        rows = [f"{ratio:10.3e}  {label}" for label, ratio in zip(self.labels, self.ratios.tolist(), strict=True)]
        head = f"realised |a| {self.realised_norm.item():.4g}, cosine {self.realised_cosine.item():.4f}; |a|/|w|:"
        return "\n".join([head, *rows])


@dataclass(frozen=True, repr=False)
class Trace:
    """One step's walk. All entries are 0-dim tensors; printing is what synchronises."""

    losses: tuple[Tensor, ...]  # L(w + a_k), k = 0..K
    norms: tuple[Tensor, ...]  # |a_k|_2
    active: Tensor  # a code; MEANING has the words
    detail: Detail | None = None

    @property
    def sharpness(self) -> Tensor:
        """L(w + a_K) - L(w)."""
        return self.losses[-1] - self.losses[0]

    @property
    def climbed(self) -> Tensor:
        """Whether the weights were displaced, and everything was finite."""
        return self.active == CLIMBED

    def __repr__(self) -> str:
        losses = ", ".join(f"{loss.item():.6g}" for loss in self.losses)
        norms = ", ".join(f"{norm.item():.4g}" for norm in self.norms)
        lines = (
            f"{MEANING[int(self.active.item())]}; losses {losses}; |a| {norms}; sharpness {self.sharpness.item():.4g}"
        )
        return lines if self.detail is None else f"{lines}\n{self.detail}"


def plain_trace(loss: Tensor) -> Trace:
    """The trace of a pass without a walk."""
    loss = loss.detach().reshape(())
    return Trace((loss,), (torch.zeros_like(loss),), torch.tensor(OFF))


class Realised:
    """Collects what became of an offset in the weights' own type."""

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.squares: list[Tensor] = []
        self.products: list[Tensor] = []  # with the offset

    def add(self, portion: Portion, offset: Tensor) -> None:
        """After a portion was displaced by this offset."""
        difference = portion.read(self.moving.operands) - portion.saved_weights()
        self.squares.append(portion.squares(difference))
        self.products.append(portion.sums(difference * offset))

    def detail(self, offset_squares: Tensor, weights: Tensor) -> Detail:
        """From |a_i|^2 and |w_i| of each group."""
        squares, product = self.moving.sum(self.squares, self.products).sum(1)
        norm = squares.sqrt()
        cosine = product * inverse(norm * offset_squares.sum().sqrt())
        return Detail(self.moving.groups.labels(), offset_squares.sqrt() * inverse(weights), norm, cosine)
