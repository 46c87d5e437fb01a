"""`climb`, which runs a walk: the K ascent steps from the weights w to w + a_1, .., w + a_K of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from gasam.ascent import Ascent
from gasam.ball import Start
from gasam.parameters import Parameters, check_names, read, weights_of
from gasam.passes import Pass
from gasam.perturbation import Perturbation
from gasam.step import MethodState
from gasam.trace import Trace
from gasam.weights import Weights, run_again_if_interrupted


@dataclass(frozen=True)
class Visit:
    """One pass of a walk. Its offset and the gradients in `.grad` are valid until the next visit.

    Args:
        k: The number of the pass; 0 is the clean pass.
        loss: The loss at w + a_k.
        norm: |a_k|_2.
        walk: The state of the walk.
    """

    k: int
    loss: Tensor
    norm: Tensor
    walk: Ascent

    def offset(self) -> list[Tensor]:
        """a_k after rounding to the weights' type: the present weights minus the saved ones."""
        return self.walk.weights.offset()


def climb(
    variables: Weights | Parameters,
    evaluate: Callable[[int], Pass],
    perturbation: Perturbation,
    start: Start | None = None,
    *,
    strength: float = 1.0,
    detailed: bool = False,
    state: MethodState | None = None,
) -> Iterator[Visit]:
    """Run a walk: visit the offsets a_0 = 0, a_1, .., a_K, each reached by an ascent step from the one before.

    The weights are restored bit for bit when the walk ends, also after an exception or if you stop early.

    Args:
        variables: A model, parameters, named parameters or parameter groups, as for SharpBackward.
        evaluate: Called with k. Computes the loss at the present weights, and leaves its gradient in their `.grad`.
        perturbation: The ball, the scale and the number of steps.
        start: Draws a random first point, for example `uniform_start(norm)`. It is visited after a_0, and K ascent
            steps follow, so there are K+2 visits. None means that the first step starts at the weights.
        strength: Multiplies epsilon or the budget.
        detailed: Also measure the rounding error of the offset, and compare the clean with the last gradient.
        state: What the perturbation's `ascent` function keeps between walks; None means that it keeps nothing.
    """
    if isinstance(variables, Weights):
        weights = variables
    else:
        model = variables if isinstance(variables, nn.Module) else None
        weights = weights_of(read(variables), perturbation, model)
    check_names(perturbation, weights.names)
    if weights.walking:
        raise RuntimeError("these weights are on a walk already: do not start another walk in the loss function")
    keeps_position = perturbation.steps > 1 or start is not None
    with _restored(weights), _restored(weights):  # twice, in case an interrupt cuts off the first cleanup
        weights.begin()
        seen = evaluate(0)  # g_0
        ascent = Ascent(  # T and epsilon
            weights,
            perturbation,
            seen,
            strength=strength,
            keeps_position=keeps_position,
            detailed=detailed,
            state=MethodState() if state is None else state,
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
    """Restore the weights after the block, also after an exception."""
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
    state: MethodState | None = None,
) -> Trace:
    """Run the whole walk, and return its trace."""
    visits = list(climb(weights, evaluate, perturbation, strength=strength, detailed=detailed, state=state))
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
