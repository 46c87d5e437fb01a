"""LookSAM: SAM on every k-th step, whose orthogonal component is used again in the steps between."""

from dataclasses import dataclass
from typing import Any

from gasam.family import Kept, Method, Tensors, add, dot, inverse
from gasam.family import norm as norm_of
from gasam.perturbation import Perturbation, check_at_least_zero, sam
from gasam.schedule import Schedule


@dataclass(frozen=True)
class LookSAM(Method):
    alpha: float
    between_walks = True
    only_steps = 1
    usual_schedule = Schedule(every=5, weight=1)

    def fold(self, gradients: list[Any], kept: Kept, strength: float) -> Tensors:
        """In a walk g_1, and keep g_1 - (g_0.g_1 / g_0.g_0) g_0; between walks g_0 + alpha |g_0| / |g_v| g_v"""
        g_0, g_1 = gradients
        if g_1 is None:
            g_v = kept["component"]
            return add(g_0, g_v, self.alpha * strength * norm_of(g_0) * inverse(norm_of(g_v)))
        kept.put("component", add(g_1, g_0, -dot(g_0, g_1) * inverse(dot(g_0, g_0)), new=True))
        return g_1  # type: ignore[no-any-return]


def look_sam(epsilon: float | None = None, norm: float = 2.0, *, alpha: float = 0.7, **options: Any) -> Perturbation:
    """LookSAM: SAM on every k-th step, and its kept orthogonal component in the steps between.

    Liu et al., "Towards Efficient and Scalable Sharpness-Aware Minimization", CVPR 2022, Algorithm 1, over all
    parameters at once: a walk keeps g_v, the component of its gradient that is orthogonal to g_0, and the steps between
    use g_0 + alpha |g_0| / |g_v| g_v. By default k is 5; for another one give `Schedule(every=k, weight=1)`. Can't be
    used with `per_worker`.

    Args:
        alpha: Length of the kept component relative to the gradient, times the schedule's strength.
    """
    check_at_least_zero("alpha", alpha)
    return sam(epsilon, norm, method=LookSAM(alpha), **options)
