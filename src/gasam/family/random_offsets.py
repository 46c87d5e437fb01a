"""Random offsets: the loss at random weights nearby, in one pass a step."""

import math
from dataclasses import dataclass
from typing import Any

from gasam.family import Kept, Method, Noise
from gasam.perturbation import Perturbation, preset


@dataclass(frozen=True)
class RandomDirection(Method):
    """Climbs noise instead of a gradient."""

    seed: int
    clean_pass = False

    def direction(self, g: None, kept: Kept) -> Noise:
        """Another one in each optimizer step, the same for all its micro-batches and in all processes."""
        return Noise(self.seed + kept.step)


def random_offsets(
    epsilon: float | None = None, norm: float = math.inf, *, seed: int = 0, **options: Any
) -> Perturbation:
    """One pass a step at w + a, where a is random.

    With the default norm each weight of tensor i moves by plus or minus epsilon rms(w_i), so that epsilon is
    |a_i| / |w_i|. Use it if weights will be disturbed at random, for example rounded to few bits, and as the control of
    every walk with a direction. Needs no memory beside w + a.

    Args:
        seed: The offsets depend on it and on the number of the optimizer step.
    """
    method = RandomDirection(seed)
    return preset(options, epsilon=epsilon, norm=norm, scale="weight_rms", risk="final", method=method)
