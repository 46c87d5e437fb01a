"""The walk a_0 = 0, a_1, .., a_K of the paper's Algorithm 1, as visits to its points; the weights return from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from gasam.ascent import Ascent
from gasam.ball import Start
from gasam.parameters import Parameters, check_names, read, weights_of
from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.trace import Trace
from gasam.weights import Weights, run_again_if_interrupted


@dataclass(frozen=True)
class Visit:
    """A point of the walk. Its offset and the variables' `.grad` are valid until the next visit."""

    k: int
    loss: Tensor
    norm: Tensor  # |a_k|_2
    walk: Ascent

    def offset(self) -> list[Tensor]:
        """a_k as it was realised in the weights' own type: where they are, minus where they were saved."""
        return self.walk.weights.offset()


def climb(
    variables: Weights | Parameters,
    evaluate: Callable[[int], Pass],
    perturbation: Perturbation,
    start: Start | None = None,
    *,
    strength: float = 1.0,
    detailed: bool = False,
) -> Iterator[Visit]:
    """Visit a_0 = 0, a_1, .., a_K; with `start` one more. However the walk is left, all is restored bit for bit.

    Args:
        variables: Parameters, named parameters or groups, as for SharpBackward.
        evaluate: Called with k: computes a loss at the present weights and leaves its gradient in their `.grad`.
        perturbation: The ball, the scale and the number of steps.
        start: Draws a first point, for example `uniform_start(norm)`. It is visited after a_0, and K steps follow.
        strength: Multiplies epsilon or the budget.
        detailed: Also measure what rounding leaves of the offset.
    """
    weights = variables if isinstance(variables, Weights) else weights_of(read(variables), perturbation)
    check_names(perturbation, weights.names)
    if weights.walking:
        raise RuntimeError("these weights are on a walk already: a loss function must not start another one on them")
    keeps_position = perturbation.steps > 1 or start is not None
    with _restored(weights), _restored(weights):  # twice, in case an interrupt cuts off the first cleanup
        weights.walking = True
        seen = evaluate(0)  # g_0
        ascent = Ascent(  # T and epsilon
            weights, perturbation, seen, strength=strength, keeps_position=keeps_position, detailed=detailed
        )
        moves = [ascent.step] * perturbation.steps
        if start is not None:
            moves.insert(0, partial(ascent.move_to_start, start))
        yield Visit(0, seen.loss, ascent.seen.norm, ascent)
        for k, move in enumerate(moves, start=1):
            if k > 1:
                ascent.read_gradient(seen)
            move()  # a_k
            seen = evaluate(k)  # g_k
            if k == len(moves):
                ascent.seen.last_pass(seen)
            yield Visit(k, seen.loss, ascent.seen.norm, ascent)


@contextmanager
def _restored(weights: Weights) -> Iterator[None]:
    """However the block is left, the weights are restored."""
    try:
        yield
    finally:
        weights.walking = False
        run_again_if_interrupted(weights.restore)


def traced_climb(
    weights: Weights,
    evaluate: Callable[[int], Pass],
    perturbation: Perturbation,
    *,
    strength: float = 1.0,
    detailed: bool = False,
) -> Trace:
    """Walk to the end, and report what happened."""
    visits = list(climb(weights, evaluate, perturbation, strength=strength, detailed=detailed))
    seen = visits[-1].walk.seen
    return Trace(
        losses=tuple(visit.loss for visit in visits),
        norms=tuple(visit.norm for visit in visits),
        active=seen.state,
        strength=strength,
        predicted_rise=seen.predicted_rise(),
        loss_scale=seen.loss_scale,
        groups=seen.groups(),
        detail=seen.detail,
    )
