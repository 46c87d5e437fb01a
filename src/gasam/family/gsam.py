"""GSAM: SAM minus a share of the clean gradient's component that is orthogonal to SAM's gradient."""

from dataclasses import dataclass
from typing import Any

from gasam.family import Kept, Method, Tensors, add, dot, inverse, scaled
from gasam.perturbation import Perturbation, check_at_least_zero, sam


@dataclass(frozen=True)
class GSAM(Method):
    alpha: float

    def fold(self, gradients: list[Any], kept: Kept, strength: float) -> Tensors:
        """g_1 - alpha (g_0 - (g_0.g_1 / g_1.g_1) g_1)"""
        g_0, *_, g_1 = gradients
        along = dot(g_0, g_1) * inverse(dot(g_1, g_1))
        return add(scaled(g_1, 1 + self.alpha * along), g_0, -self.alpha)


def gsam(epsilon: float | None = None, norm: float = 2.0, *, alpha: float = 0.4, **options: Any) -> Perturbation:
    """GSAM: SAM minus a share of the component of the clean gradient that is orthogonal to SAM's gradient.

    Zhuang et al., "Surrogate Gap Minimization Improves Sharpness-Aware Training", ICLR 2022, Algorithm 1: the gradient
    is g_1 - alpha (g_0 - (g_0.g_1 / g_1.g_1) g_1), where g_1 is the gradient of the last pass. The paper's radius
    follows the learning rate; give a schedule for that. Can't be used with `per_worker`.

    Args:
        alpha: Weight of the surrogate gap L(w + a) - L(w). 0 means SAM. The paper searches from 0.01 to 0.4.
    """
    check_at_least_zero("alpha", alpha)
    return sam(epsilon, norm, method=GSAM(alpha), **options)
