"""Adversarial corruption of the weights: the highest loss that walks in a ball around them find."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from gasam.analysis.checks import check_radius, check_whole
from gasam.analysis.corruption import applied, length
from gasam.analysis.objective import Batches, Objective, Watch, back_propagate, examined
from gasam.analysis.results import Result
from gasam.ball import Start, uniform_start
from gasam.parameters import read, weights_of
from gasam.passes import Pass
from gasam.perturbation import Perturbation, check_perturbation
from gasam.trace import NOT_FINITE
from gasam.walk import Visit, climb
from gasam.weights import Weights


def plain(radius: float, norm: float = 2.0, steps: int = 10) -> Perturbation:
    """The ball |a|_norm <= radius with T = 1 over all weights together, as in the paper's Table 4."""
    check_radius(radius)
    return Perturbation(epsilon=radius, norm=norm, scale="one", granularity="model", steps=steps)


@dataclass(frozen=True)
class Attack(Result):
    """The worst point that was visited: the model itself, an offset of zero, if no walk found a higher loss."""

    perturbation: Perturbation
    clean_loss: float
    loss: float
    offset: dict[str, Tensor]  # as it was realised in the weights' own type
    walks: tuple[tuple[float, ...], ...]  # the loss of every visit; a walk ends at a loss that is not finite

    @property
    def rise(self) -> float:
        return self.loss - self.clean_loss

    def norm(self, p: float = 2.0) -> float:
        """|a|_p."""
        return length(self.offset.values(), p)

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """Hold the corrupted weights in `with found.applied(model):`, and restore them bit for bit."""
        return applied(model, self.offset)

    def as_json(self) -> dict[str, Any]:
        """Without the offset, with its norms."""
        record = super().as_json()
        del record["offset"]
        return record | {"norm_2": self.norm(), "norm_p": self.norm(self.perturbation.norm)}


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
    """Climb the mean loss over **all** batches, in eval mode, and keep the visit with the highest finite loss.

    The first walk begins at the model's weights; each of `restarts` others at a random point of the ball. Each has
    `steps` steps of 1.5 epsilon / steps. More restarts never find less, because the first ones stay the same.
    """
    check_perturbation(perturbation)
    check_whole("restarts", restarts, 0)
    check_whole("seed", seed, 0)
    total, passes = passes_of(perturbation, restarts), count(1)

    def evaluate(k: int) -> Pass:
        seen = back_propagate(model, objective, batches)
        if watch is not None:
            watch(next(passes), total)
        return seen

    starts = [None, *[random_start(perturbation.norm, seed)] * restarts]
    walks: list[tuple[float, ...]] = []
    highest, offset = -math.inf, list[Tensor]()
    with examined(model, batches) as named:
        weights = weights_of(read(named.items()), perturbation)
        for start in starts:
            losses = []
            with closing(visits_of(weights, evaluate, perturbation, start)) as visits:
                for visit in visits:
                    losses.append(float(visit.loss))
                    if highest < losses[-1] < math.inf:
                        highest, offset = losses[-1], visit.offset()
            walks.append(tuple(losses))
    return Attack(perturbation, walks[0][0], highest, dict(zip(named, offset, strict=True)), tuple(walks))


def visits_of(
    weights: Weights, evaluate: Callable[[int], Pass], perturbation: Perturbation, start: Start | None
) -> Generator[Visit, None, None]:
    """The visits of a walk, up to the first with a loss that is not finite: from there a walk only returns."""
    with closing(climb(weights, evaluate, perturbation, start)) as visits:  # type: ignore[type-var]
        for visit in visits:
            if visit.k == 0 and visit.walk.seen.state == NOT_FINITE:
                # The walk can't begin, which would look as if there were nothing to find.
                raise ValueError(
                    "the loss, the gradient or the scale is not finite where the model stands "
                    f"(loss {float(visit.loss):g}): nothing can be found around it"
                )
            yield visit
            if not visit.loss.isfinite():
                return


def passes_of(perturbation: Perturbation, restarts: int) -> int:
    """How often an attack goes through the batches: the first walk K + 1 times, one with a random start K + 2."""
    return perturbation.steps + 1 + restarts * (perturbation.steps + 2)


def random_start(norm: float, seed: int) -> Start:
    """Random points one after another, drawn on the CPU so that they are the same on every device."""
    draw = uniform_start(norm, torch.Generator().manual_seed(seed))
    return lambda like: draw(torch.empty(like.shape, dtype=like.dtype))
