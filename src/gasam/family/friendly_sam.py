"""Friendly-SAM: SAM that climbs the noise of the batch instead of its gradient."""

from dataclasses import dataclass
from typing import Any

from gasam.family import Kept, Method, Tensors, add
from gasam.perturbation import Perturbation, check_at_least_zero, sam


@dataclass(frozen=True)
class FriendlySAM(Method):
    sigma: float
    decay: float
    only_steps = 1

    def direction(self, g: Tensors, kept: Kept) -> Tensors:
        """g_0 - sigma m,  m <- decay m + (1 - decay) g_0"""
        return add(g, kept.mix("running mean", self.decay, g), -self.sigma * kept.factor, new=True)


def friendly_sam(
    epsilon: float | None = None, norm: float = 2.0, *, sigma: float = 1.0, decay: float = 0.9, **options: Any
) -> Perturbation:
    """Friendly-SAM: SAM that climbs g_0 - sigma m, where m is a running mean of the clean gradients.

    Li et al., "Friendly Sharpness-Aware Minimization", CVPR 2024, Algorithm 1. m begins at zero, and is the mean over
    the calls that walk, so micro-batches count one by one. With `per_worker` each worker keeps the mean of its own
    gradients.

    Args:
        sigma: The share of the running mean that is removed. 0 means SAM.
        decay: lambda, the decay of the running mean.
    """
    check_at_least_zero("sigma", sigma)
    check_at_least_zero("decay", decay, below=1)
    return sam(epsilon, norm, method=FriendlySAM(sigma, decay), **options)
