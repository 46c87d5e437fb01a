"""Climbing: visits along a walk, and the weights home again whatever happens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from gasam.layout import Weights
from gasam.parameters import Parameters, read, weights_of
from gasam.perturbation import Perturbation
from gasam.sharded import forget_derived, local
from gasam.trace import Trace
from gasam.walk import Pass, Start, Walk


@dataclass(frozen=True)
class Visit:
    """A point of the walk. Its offset and the variables' `.grad` are valid until the next visit."""

    k: int
    loss: Tensor
    norm: Tensor  # |a_k|_2
    walk: Walk

    def offset(self) -> list[Tensor]:
        """a_k as it was realised in the weights' own type: where they are, less home."""
        return self.walk.weights.offset()


def climb(
    variables: Weights | Parameters,
    evaluate: Callable[[int], Pass],
    perturbation: Perturbation,
    start: Start | None = None,
    *,
    detailed: bool = False,
) -> Iterator[Visit]:
    """Visit a_0 = 0, a_1, .., a_K; however it is left, the variables are home again with the very same bits.

    `variables` are given as to SharpBackward: parameters, named parameters or groups. `evaluate(k)` computes a loss
    where they are and leaves its gradient in their `.grad`.
    `start` draws a first point for attacks, say `uniform_start(norm)`: it is visited after home, K steps follow.
    """
    weights = variables if isinstance(variables, Weights) else weights_of(read(variables), perturbation)
    if weights.walking:
        raise RuntimeError("these weights are on a walk already: a loss function must not start another one on them")
    weights.walking = True
    try:
        yield from _visits(weights, evaluate, perturbation, start, detailed)
    finally:  # a second time, for an interrupt on the way out of the first
        weights.walking = False
        surely(weights.go_home)


def _visits(
    weights: Weights, evaluate: Callable[[int], Pass], perturbation: Perturbation, start: Start | None, detailed: bool
) -> Iterator[Visit]:
    seen = evaluate(0)
    walk = Walk(weights, perturbation, seen, keeps_position=perturbation.steps > 1 or bool(start), detailed=detailed)
    moves = [walk.step] * perturbation.steps
    if start is not None:
        moves.insert(0, lambda: walk.jump(start))
    try:
        yield Visit(0, seen.loss, walk.norm, walk)
        for k, move in enumerate(moves, start=1):
            if k > 1:
                walk.look(seen)
            move()
            seen = evaluate(k)
            yield Visit(k, seen.loss, walk.norm, walk)
    finally:
        weights.walking = False
        surely(weights.go_home)


def traced_climb(
    weights: Weights, evaluate: Callable[[int], Pass], perturbation: Perturbation, *, detailed: bool = False
) -> Trace:
    """Walk to the end, and say what happened."""
    visits = list(climb(weights, evaluate, perturbation, detailed=detailed))
    walk = visits[-1].walk
    return Trace(tuple(v.loss for v in visits), tuple(v.norm for v in visits), walk.state, walk.detail)


@contextmanager
def displaced(weights: Sequence[Tensor], offset: Sequence[Tensor]) -> Iterator[None]:
    """Hold weights + offset inside the block, and put the very same bits back whatever happens there."""
    home = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, step in zip(weights, offset, strict=True):
                weight.add_(step)
        forget_derived(weights)
        yield
    finally:
        surely(lambda: _copy(home, weights))


def uniform_start(norm: float, generator: torch.Generator | None = None) -> Start:
    """A random point: uniform in the box for norm inf, else on the ball's surface, where nearly all of a ball is."""

    def draw(like: Tensor) -> Tensor:
        if norm == math.inf:
            return torch.empty_like(like).uniform_(-1, 1, generator=generator)
        if norm == 2.0:
            return torch.empty_like(like).normal_(generator=generator)
        sizes = torch._standard_gamma(torch.full_like(like, 1 / norm), generator=generator).pow_(1 / norm)
        return sizes.mul_(torch.empty_like(like).uniform_(-1, 1, generator=generator).sign_())

    return draw


def surely(action: Callable[[], object]) -> None:
    """Do it, and do it again if an interrupt came in between: half restored is not home."""
    try:
        action()
    except BaseException:
        action()
        raise


@torch.no_grad()
def _copy(home: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    torch._foreach_copy_([local(weight) for weight in weights], [local(bits) for bits in home])
    forget_derived(weights)
