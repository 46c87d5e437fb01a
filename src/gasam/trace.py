"""What a walk did: losses, distances, whether it climbed. Tensors stay on the device until somebody prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gasam.layout import Layout
from gasam.tensors import Stretch, inverse

OFF, CLIMBED, NO_GRADIENT, NOT_FINITE = 0, 1, 2, 3

MEANING = {
    OFF: "off: one plain pass",
    CLIMBED: "climbed",
    NO_GRADIENT: "stayed home: no gradient to climb, or a scale of zero",
    NOT_FINITE: "stayed home: loss, gradient or scale not finite",
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


@dataclass(frozen=True)
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

    def __str__(self) -> str:
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


class Comparison:
    """Compares offsets with home and with what became of them, stretch by stretch."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def see(self, stretch: Stretch, offset: Tensor) -> None:
        assert stretch.home is not None
        home = stretch.home.to(stretch.wide)
        realised = stretch.weights() - home
        dots = torch.dot(realised, realised), torch.dot(realised, offset)
        squares = stretch.squares(offset), stretch.squares(home)
        self.parts.append(tuple(part.to(self.layout.sizes) for part in (*squares, *dots)))  # type: ignore[arg-type]

    def detail(self) -> Detail | None:
        if not self.parts:
            return None
        offsets, homes, realised, products = zip(*self.parts, strict=True)
        offset_squares = self.layout.to_groups(torch.cat(offsets))
        ratios = offset_squares.sqrt() * inverse(self.layout.to_groups(torch.cat(homes)).sqrt())
        norm = torch.stack(realised).sum().sqrt()
        cosine = torch.stack(products).sum() * inverse(norm * offset_squares.sum().sqrt())
        return Detail(self.layout.labels, ratios, norm, cosine)
