"""Adversarial corruption of the weights: the highest loss that walks in a ball around them can find."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from gasam.analysis.corruption import applied, uniform_start
from gasam.analysis.objective import (
    Batches,
    Named,
    Objective,
    Watch,
    back_propagate,
    check_number,
    check_whole,
    examined,
)
from gasam.parameters import Parameters, read, weights_of
from gasam.passes import Pass, uninterrupted
from gasam.perturbation import Perturbation, check_perturbation
from gasam.trace import Trace
from gasam.walk import Start, walk

Offset = Callable[[], list[Tensor]]
Evaluate = Callable[[int, Offset], Pass | None]
"""Evaluates visit k of a walk, whose offset it may ask for; None ends the walk."""


def plain(radius: float, norm: float = 2.0, steps: int = 10) -> Perturbation:
    """The ball |a|_norm <= radius over all weights, with T = 1, as in the paper's Table 4.

    Args:
        radius: Radius of the ball, in units of the weights.
        norm: p of the ball's norm, > 1 or math.inf.
        steps: The number of ascent steps of an attack.
    """
    check_number("radius", radius, above=0)
    return Perturbation(epsilon=radius, norm=norm, scale="one", granularity="model", steps=steps)


@dataclass(frozen=True)
class Attack:
    """The result of `attack`: the offset with the highest loss, which is zero if no walk found a higher loss.

    Args:
        clean_loss: The loss at the model's weights.
        loss: The highest loss.
        offset: The offset with this loss by parameter name, after rounding to the weights' type.
        walks: The loss of every visit of each walk. A walk ends at a loss that is not finite.
    """

    clean_loss: float
    loss: float
    offset: dict[str, Tensor]
    walks: tuple[tuple[float, ...], ...]

    @property
    def rise(self) -> float:
        return self.loss - self.clean_loss

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """Set the corrupted weights inside `with found.applied(model):`, and restore the weights bit for bit."""
        return applied(model, self.offset)


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
    """Search the ball for the offset with the highest finite mean loss over **all** batches, in eval mode.

    The first walk starts at the model's weights. More restarts never find a lower loss, because the first walks stay
    the same.

    Args:
        perturbation: The ball and the number of ascent steps, for example `plain(0.05)`.
        restarts: The number of additional walks that start at random points of the ball.
        seed: Seed of the random points.
        watch: Called with the number of passes over the batches that are done, and with their total.
    """
    check_perturbation(perturbation)
    check_whole("restarts", restarts, 0)
    passes = count(1)
    total = perturbation.steps + 1 + restarts * (perturbation.steps + 2)  # a random start is one more point
    highest, worst = -math.inf, list[Tensor]()

    def evaluate(k: int, offset: Offset) -> Pass:
        nonlocal highest, worst
        seen = back_propagate(model, objective, batches)
        if highest < float(seen.loss) < math.inf:
            highest, worst = float(seen.loss), offset()
        if watch is not None:
            watch(next(passes), total)
        return seen

    starts = [None, *[random_start(perturbation.norm, seed)] * restarts]
    with examined(model, batches) as weights:
        walks = [tuple(losses_of(weights, evaluate, perturbation, start)) for start in starts]
    return Attack(walks[0][0], highest, dict(zip(weights, worst, strict=True)), tuple(walks))


def climb(
    variables: Parameters,
    evaluate: Evaluate,
    perturbation: Perturbation,
    start: Start | None = None,
) -> Trace:
    """Run a walk for an analysis, and return its trace. The weights are home again afterwards, bit for bit.

    Args:
        variables: A model, parameters, named parameters or parameter groups, as for SharpBackward.
        evaluate: Called with k and a function that returns the offset a_k, rounded to the weights' type. It computes
            the loss at the present weights and leaves its gradient in their `.grad`. If it returns None, the walk ends.
        perturbation: The ball, the scale and the number of steps.
        start: Draws a random first point, for example `uniform_start(norm)`. It is visited after a_0, and K ascent
            steps follow, so there are K+2 visits. None means that the first step starts at the weights.
    """
    model = variables if isinstance(variables, nn.Module) else None
    weights = weights_of(read(variables), perturbation, model)
    with uninterrupted() as held:

        def run(k: int) -> Pass | None:
            with held.let():
                return evaluate(k, weights.offset)

        return walk(weights, perturbation, run, start=start)


def losses_of(weights: Named, evaluate: Evaluate, perturbation: Perturbation, start: Start | None) -> list[float]:
    """The losses of a walk, up to the first that is not finite."""
    losses = list[float]()

    def run(k: int, offset: Offset) -> Pass | None:
        seen = evaluate(k, offset)
        if seen is None:
            return None
        losses.append(float(seen.loss))
        return seen if k == 0 or math.isfinite(losses[-1]) else None

    trace = climb(weights.items(), run, perturbation, start)
    if trace.not_finite and not any(trace.norms):
        # The walk could not begin; without an error it would look as if no higher loss existed.
        raise ValueError(
            "the loss, the gradient or the scale is not finite at the model's weights "
            f"(loss {losses[0]:g}): give a model and batches with a finite loss and gradient"
        )
    return losses


def random_start(norm: float, seed: int) -> Start:
    """Draws a new random point in each call, on the CPU so that the points are the same on every device."""
    draw = uniform_start(norm, torch.Generator().manual_seed(seed))
    return lambda like: draw(torch.empty(like.shape, dtype=like.dtype))
