"""LookSAM: SAM on every k-th step, whose orthogonal component is used again in the steps between.

Liu et al., "Towards Efficient and Scalable Sharpness-Aware Minimization", CVPR 2022, Algorithm 1:

    every k-th step:  gradient = g_1,  g_v = component of g_1 orthogonal to g_0
    other steps:      gradient = g_0 + alpha |g_0| / |g_v| g_v

Memory: g_v, of the size of the model, in float32; and one more gradient than SAM in the steps with a walk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from gasam.perturbation import Perturbation, Size, check_at_least_zero, sam
from gasam.schedule import Schedule
from gasam.step import Step
from gasam.vectors import Vector


@dataclass(frozen=True)
class ReusedComponent:
    """The risk of LookSAM.

    Args:
        alpha: Length of the reused component, relative to the gradient. The schedule's strength multiplies it.
    """

    alpha: float
    only_one_step = True
    folds_between = True
    usual_schedule = Schedule(every=5, weight=1)

    def __post_init__(self) -> None:
        check_at_least_zero("alpha", self.alpha)

    def __call__(self, step: Step) -> Vector:
        clean, newest = step.gradients[0], step.gradient
        if step.k == 0:  # a step between two walks
            return clean + step.kept("component").with_norm(self.alpha * step.strength * clean.norm())
        step.keep("component", newest.orthogonal_to(clean))
        return newest


def look_sam(
    epsilon: float | None = None,
    norm: float = 2.0,
    *,
    alpha: float = 0.7,
    **size: Unpack[Size],
) -> Perturbation:
    """LookSAM: SAM on every k-th step, and its kept orthogonal component in the steps between.

    Liu et al., CVPR 2022, Algorithm 1, over all parameters at once. Without a schedule k is 5; for another k give
    `Schedule(every=k, weight=1)`. Refuses other weights and `every=1`, because the kept component replaces them, and
    more than one ascent step, because the paper has one. Can't be used with `per_worker`.

    Args:
        epsilon: As in `Perturbation`.
        norm: As in `Perturbation`.
        alpha: Length of the kept component in the steps between, relative to the gradient.
        **size: `budget` and `cap`, as in `Perturbation`.
    """
    return replace(sam(epsilon, norm, **size), risk=ReusedComponent(alpha))
