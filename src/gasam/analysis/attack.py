"""Adversarial corruption of the weights: the highest loss that walks in a ball around them find."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from gasam.analysis.corruption import applied, length
from gasam.analysis.objective import Batches, Objective, back_propagate, examined
from gasam.analysis.values import Result, Watch, check_radius, check_whole, plain_value
from gasam.ball import Start, uniform_start
from gasam.parameters import read, weights_of
from gasam.passes import Pass
from gasam.perturbation import Perturbation, check_perturbation
from gasam.trace import NOT_FINITE
from gasam.walk import Visit, climb


def plain(radius: float, norm: float = 2.0, steps: int = 10) -> Perturbation:
    """The ball |a|_norm <= radius with T = 1, all weights together, as in the paper's table 4."""
    check_radius(radius)
    return Perturbation(epsilon=radius, norm=norm, scale="one", granularity="model", steps=steps)


@dataclass(frozen=True)
class Attack(Result):
    """The worst point that was visited; home itself, an offset of zero, where no walk found anything worse."""

    perturbation: Perturbation
    clean_loss: float
    loss: float
    offset: dict[str, Tensor]  # as it was realised in the weights' own type
    walks: tuple[tuple[float, ...], ...]  # the loss of every visit, from home on; cut after one that is not finite

    @property
    def rise(self) -> float:
        return self.loss - self.clean_loss

    def norm(self, p: float = 2.0) -> float:
        """|a|_p."""
        return length(self.offset.values(), p)

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """`with found.applied(model):` holds the corrupted weights, and restores the very same bits."""
        return applied(model, self.offset)

    def as_json(self) -> dict[str, Any]:
        """Without the offset, with its norms."""
        plain_fields = {f.name: plain_value(getattr(self, f.name)) for f in fields(self) if f.name != "offset"}
        return plain_fields | {"norm_2": self.norm(), "norm_p": self.norm(self.perturbation.norm)}


def attack(
    model: nn.Module,
    objective: Objective,
    batches: Batches,
    perturbation: Perturbation,
    *,
    restarts: int = 1,
    seed: int = 0,
    watch: Watch | None = None,
) -> Attack:
    """Climb L = the mean loss over **all** batches, in eval mode, and keep the visit with the highest finite loss.

    The first walk begins at home; each of `restarts` others at a random point of the ball. Each has `steps` steps
    of 1.5 epsilon / steps. More restarts never find less: the first ones stay the same.
    """
    check_perturbation(perturbation)
    check_whole("restarts", restarts, 0)
    check_whole("seed", seed, 0)
    done, total = 0, passes_of(perturbation, restarts)
    start = random_start(perturbation.norm, seed)

    def evaluate(k: int) -> Pass:
        nonlocal done
        seen = back_propagate(model, objective, batches)
        done += 1
        if watch is not None:
            watch(done, total)
        return seen

    with examined(model, batches) as named:
        weights = weights_of(read(named.items()), perturbation)
        best, walks = _Best(), []
        for beginning in [None, *[start] * restarts]:
            with closing(climb(weights, evaluate, perturbation, beginning)) as visits:  # type: ignore[type-var]
                walks.append(tuple(best.losses_of(visits)))
        offset = dict(zip(named, best.offset, strict=True))
    return Attack(perturbation, walks[0][0], best.loss, offset, tuple(walks))


class _Best:
    """The worst visit so far, which for an attack is the best."""

    def __init__(self) -> None:
        self.loss = -math.inf
        self.offset: list[Tensor] = []

    def losses_of(self, visits: Iterator[Visit]) -> Iterator[float]:
        """Stops at a loss that is not finite: from there a walk only goes home."""
        for visit in visits:
            check_home(visit)
            loss = float(visit.loss)
            yield loss
            if not math.isfinite(loss):
                return
            if loss > self.loss:
                self.loss, self.offset = loss, visit.offset()


def check_home(visit: Visit) -> None:
    """A walk that cannot leave home for this reason would look as if there were nothing to find."""
    if visit.k == 0 and visit.walk.seen.state == NOT_FINITE:
        raise ValueError(
            f"the loss, the gradient or the scale is not finite where the model stands (loss {float(visit.loss):g}): "
            "nothing can be found around it"
        )


def passes_of(perturbation: Perturbation, restarts: int) -> int:
    """How often an attack goes through the batches: each walk sees home, its start where it has one, and its steps."""
    return perturbation.steps + 1 + restarts * (perturbation.steps + 2)


def random_start(norm: float, seed: int) -> Start:
    """Random points one after another, drawn on the CPU: the same ones on every device."""
    draw = uniform_start(norm, torch.Generator().manual_seed(seed))
    return lambda like: draw(torch.empty(like.shape, dtype=like.dtype))
