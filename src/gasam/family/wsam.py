"""WSAM: the clean loss plus a weighted sharpness.

Yue et al., "Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term", KDD 2023, section 3:

    L_WSAM = L(w) + v (L(w + a) - L(w)),  v = gamma / (1 - gamma)        gradient = g_0 + v (g_1 - g_0)

Memory: one more gradient than SAM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

from gasam.perturbation import Perturbation, Size, check_below_one, sam
from gasam.step import Step
from gasam.vectors import Vector


@dataclass(frozen=True)
class WeightedSharpness:
    """The risk of WSAM. With K > 1, g_1 is the gradient of the last pass.

    Args:
        gamma: From 0 (plain training) over 0.5 (SAM) to below 1.
    """

    gamma: float

    def __post_init__(self) -> None:
        check_below_one("gamma", self.gamma)

    def __call__(self, step: Step) -> Vector:
        clean, displaced = step.gradients[0], step.gradients[-1]
        return clean + self.gamma / (1 - self.gamma) * (displaced - clean)


def wsam(
    epsilon: float | None = None,
    norm: float = 2.0,
    *,
    gamma: float = 0.9,
    **size: Unpack[Size],
) -> Perturbation:
    """WSAM: the clean loss plus the sharpness L(w + a) - L(w), with the weight v = gamma / (1 - gamma).

    Yue et al., KDD 2023, section 3: the gradient is g_0 + v (g_1 - g_0). The optimizer gets it as one gradient. The
    paper's decoupled form, which adds v (g_1 - g_0) after the optimizer's own update, is the same for SGD without
    momentum, and is not offered for other optimizers. A large gamma multiplies the noise between the passes: in a model
    with dropout share the masks (`same_noise`) or lower gamma. Can't be used with `per_worker`.

    Args:
        epsilon: As in `Perturbation`.
        norm: As in `Perturbation`.
        gamma: Weight of the sharpness, from 0 (plain training) over 0.5 (SAM) to below 1. The paper recommends 0.8 to
            0.95.
        **size: `budget` and `cap`, as in `Perturbation`.
    """
    return replace(sam(epsilon, norm, **size), risk=WeightedSharpness(gamma))
