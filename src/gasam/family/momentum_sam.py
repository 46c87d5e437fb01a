"""Momentum-SAM: SAM in one pass a step, along a moving average of earlier gradients."""

from dataclasses import dataclass
from typing import Any

from gasam.family import Kept, Method, Tensors, dot
from gasam.perturbation import Perturbation, check_at_least_zero, sam


@dataclass(frozen=True)
class MovingAverage(Method):
    """Give it to any preset, as in `ga_sam(budget=0.1, cap=0.01, method=MovingAverage(0.9))`.

    The first ascent step climbs the moving average of the gradients of earlier optimizer steps; T and a budget are
    computed from it. Steps are plain until there is a gradient. Needs memory for one copy of the weights beside w + a.

    Args:
        decay: How slowly earlier gradients fade. 0 means the gradient of the last step.
    """

    decay: float = 0.9
    clean_pass = False

    def __post_init__(self) -> None:
        check_at_least_zero("decay", self.decay, below=1)

    def direction(self, g: None, kept: Kept) -> Tensors:
        """m"""
        return kept["average"]

    def learn(self, g: Tensors, kept: Kept) -> None:
        """m <- decay m + (1 - decay) g, and g in the first step that is finite"""
        squares = dot(kept["average"], kept["average"])
        kept.mix("average", self.decay * (squares > 0).to(squares), g)


def momentum_sam(
    epsilon: float | None = None, norm: float = 2.0, *, decay: float = 0.9, **options: Any
) -> Perturbation:
    """Momentum-SAM: SAM in one pass a step, at w + a, where a goes along a moving average of the gradients.

    Becker et al., "Momentum-SAM: Sharpness Aware Minimization without Computational Overhead", 2024. The average is
    that of the gradients at w + a, which the optimizer gets, and not the optimizer's own momentum.

    Args:
        decay: How slowly earlier gradients fade.
    """
    return sam(epsilon, norm, method=MovingAverage(decay), **options)
